/* Lines: what microbatches of every size take at least, from two programs: see parts.h.
 *
 * The programs of one and of two samples have the same instructions. FLOPs and bytes of each grow
 * by the same amount from sample to sample, and what does not grow is not negative. So an
 * instruction takes at least its launch, and for each sample the growth at the best rate. Products
 * reach the use of tiles and depth that their fixed sizes allow when the growing ones are large.
 * Transfers take at least their bytes, and their latencies if these do not depend on the size. */
#include <math.h>
#include <string.h>

#include "cost/cost.h"
#include "search/joint/parts.h"

/* ---- kernels ---- */

static double best_bytes_rate(const wefti_device_model *d) {
    double rate = d->memory_bytes_per_second.value;
    if (!d->memory.count)
        return d->memory_efficiency.source ? rate * d->memory_efficiency.value : rate;
    rate = 0;
    for (int32_t i = 0; i < d->memory.count; i++) rate = wefti_larger(rate, d->memory.rate[i]);
    return rate;
}

/* The size of a dimension for a very large number of samples. */
static double limit_of(double one, double two) {
    return two > one ? one * (1 << 20) : one;
}

/* Whether the rate of a product follows from its sizes, as in cost/kernel.c; then they are in
 * `shape`. */
static bool has_sizes(const wefti_device_model *d, const wefti_instruction *x,
                      wefti_product_shape *shape) {
    if (!d->units.source || d->product[wefti_node_arithmetic(x->node)].count ||
        !wefti_node_product(x->node, shape))
        return false;
    const double own = 2 * shape->batch * shape->rows * shape->columns * shape->depth;
    return fabs(own - x->cost.flops) <= 0.05 * x->cost.flops;
}

typedef struct pair_of_kernels {
    const wefti_instruction *one, *two; /* with one sample, with two */
} pair_of_kernels;

/* Seconds that a kernel takes for each sample, without its launch. `shapes` NULL: not known. */
static double kernel_growth(const wefti_device_model *d, const pair_of_kernels *x,
                            const wefti_product_shape *shapes) {
    const double flops = wefti_larger(0, x->two->cost.flops - x->one->cost.flops);
    const double bytes = wefti_larger(0, x->two->cost.bytes - x->one->cost.bytes);
    const double memory = bytes / best_bytes_rate(d);
    const weft_node *n = x->one->node;
    double compute = flops / d->vector_flops.value;
    if (n->op->work == WEFTI_WORK_PRODUCT) {
        const wefti_arithmetic arithmetic = wefti_node_arithmetic(n);
        double use = 1;
        if (shapes) {
            const wefti_product_shape *a = &shapes[0], *b = &shapes[1];
            const wefti_product_shape large = {
                limit_of(a->batch, b->batch), limit_of(a->rows, b->rows),
                limit_of(a->columns, b->columns), limit_of(a->depth, b->depth)};
            use = wefti_joint_product_use(d, arithmetic, &large);
        }
        compute = flops / (wefti_joint_best_rate(d, arithmetic) * use);
    }
    return wefti_larger(compute, memory) * wefti_joint_least_factor(d, n);
}

static weft_status add_product(const wefti_device_model *d, const pair_of_kernels *x,
                               const wefti_product_shape shapes[2], int32_t call, bool backward,
                               wefti_joint_line *out) {
    const wefti_product_shape *a = &shapes[0], *b = &shapes[1];
    const weft_node *n = x->one->node;
    const wefti_arithmetic arithmetic = wefti_node_arithmetic(n);
    WEFT_TRY(WEFT_GROW(out->products, out->product_count, out->product_cap));
    out->products[out->product_count++] = (wefti_joint_product){
        .one = {a->batch, a->rows, a->columns, a->depth},
        .more = {b->batch - a->batch, b->rows - a->rows, b->columns - a->columns,
                 b->depth - a->depth},
        .flops = wefti_larger(0, x->two->cost.flops - x->one->cost.flops),
        .memory = wefti_larger(0, x->two->cost.bytes - x->one->cost.bytes) / best_bytes_rate(d),
        .rate = wefti_joint_best_rate(d, arithmetic),
        .factor = wefti_joint_least_factor(d, n),
        .arithmetic = arithmetic,
        .call = call,
        .backward = backward};
    return WEFT_OK;
}

static weft_status add_kernel(const wefti_device_model *d, const pair_of_kernels *x, int32_t call,
                              bool backward, wefti_joint_line *out, wefti_joint_growth *g) {
    wefti_product_shape shapes[2];
    const bool product = x->one->node->op->work == WEFTI_WORK_PRODUCT;
    const bool known =
        product && has_sizes(d, x->one, &shapes[0]) && has_sizes(d, x->two, &shapes[1]);
    const double each = kernel_growth(d, x, known ? shapes : NULL);
    const double flops = wefti_larger(0, x->two->cost.flops - x->one->cost.flops);
    g->fixed += d->launch_seconds.value;
    g->each += each;
    if (product) g->flops += flops;
    if (known) return add_product(d, x, shapes, call, backward, out);
    *(product ? &g->unknown : &g->others) += each;
    if (product && flops > 0) g->dearest = wefti_larger(g->dearest, each / flops);
    return WEFT_OK;
}

/* *out_same false: the programs differ, so nothing is known. */
static weft_status kernels_of(const wefti_machine_model *m, const wefti_step *one,
                              const wefti_step *two, int32_t call, wefti_joint_line *out,
                              wefti_joint_growth *g, bool *out_same) {
    *out_same = one->to - one->from == two->to - two->from;
    for (int32_t k = 0; *out_same && k < one->to - one->from; k++) {
        const pair_of_kernels x = {&one->routine->code[one->from + k],
                                   &two->routine->code[two->from + k]};
        const wefti_instruction *a = x.one, *b = x.two;
        *out_same = (a->transfer < 0) == (b->transfer < 0) && !a->node == !b->node &&
                    (!a->node || a->node->op == b->node->op);
        if (!*out_same || a->transfer >= 0) continue;
        if (a->node)
            WEFT_TRY(add_kernel(&m->device, &x, call, one->phase == WEFTI_BACKWARD, out, g));
        else if (a->bytes > 0 && b->bytes > 0)
            g->fixed += m->device.launch_seconds.value;
    }
    return WEFT_OK;
}

/* ---- calls ---- */

/* Seconds of waits with these times of transfers. */
static double waits_with(const wefti_joint_walk *walk, const double *seconds, bool rings,
                         const wefti_step *step) {
    wefti_joint_walk w = *walk;
    double kernels, waits;
    w.seconds = (double *)seconds;
    w.only_rings = rings;
    wefti_joint_walk_call(&w, step, false, &kernels, &waits);
    return waits;
}

/* Growth and latency of waits; latencies that depend on the size count as none. */
static void find_waits(const wefti_joint_walk *one, const wefti_joint_walk *two,
                       const wefti_step *a, const wefti_step *b, bool rings, double *fixed,
                       double *each, double *out_latency) {
    const double bytes[2] = {waits_with(one, one->instant, rings, a),
                             waits_with(two, two->instant, rings, b)};
    const double all[2] = {waits_with(one, one->seconds, rings, a),
                           waits_with(two, two->seconds, rings, b)};
    const double latency[2] = {all[0] - bytes[0], all[1] - bytes[1]};
    *out_latency += wefti_larger(latency[0], latency[1]);
    *each += wefti_larger(0, bytes[1] - bytes[0]);
    if (fabs(latency[0] - latency[1]) <= 1e-6 * latency[0]) *fixed += latency[0] * (1 - 1e-6);
}

static void add_growth(const wefti_joint_growth *g, wefti_joint_growth *sum) {
    sum->fixed += g->fixed, sum->each += g->each;
    sum->others += g->others, sum->unknown += g->unknown;
    sum->flops += g->flops, sum->dearest = wefti_larger(sum->dearest, g->dearest);
    sum->wait_fixed += g->wait_fixed, sum->wait_each += g->wait_each;
    sum->wait_latency += g->wait_latency, sum->ring_latency += g->ring_latency;
    sum->ring_fixed += g->ring_fixed, sum->ring_each += g->ring_each;
}

/* Bytes of the values of a saved block, if it certainly stays in device memory. They lie at aligned
 * places, so the block has no fewer bytes; but only these grow by the same amount from sample to
 * sample. */
static double saved_bytes(const wefti_joint *j, const wefti_routine *r) {
    double bytes = 0;
    if (wefti_joint_offloads(j, WEFT_OFFLOAD_SAVED)) return 0;
    for (int64_t o = r->outputs; o < r->body->out_count; o++)
        bytes += (double)weft_desc_bytes(&r->body->values[r->body->out[o]].desc);
    return bytes;
}

static weft_status add_step(const wefti_joint *j, const wefti_joint_walk *one,
                            const wefti_joint_walk *two, const wefti_step *a, const wefti_step *b,
                            wefti_joint_line *out) {
    const int32_t k = wefti_joint_call_of(&j->shape, a->name);
    const int64_t products = out->product_count;
    wefti_joint_growth g = {0};
    bool same;
    if (k < 0) return WEFT_OK;
    WEFT_TRY(kernels_of(one->machine, a, b, k, out, &g, &same));
    if (!same) {
        out->product_count = products;
        return WEFT_OK;
    }
    find_waits(one, two, a, b, false, &g.wait_fixed, &g.wait_each, &g.wait_latency);
    find_waits(one, two, a, b, true, &g.ring_fixed, &g.ring_each, &g.ring_latency);
    g.fixed += g.wait_fixed;
    g.each += g.wait_each;
    const double times = k == j->shape.middle ? j->shape.copies : 1;
    out->fixed += times * g.fixed;
    out->each += times * g.each;
    add_growth(&g, &out->call[k][a->phase == WEFTI_BACKWARD]);
    double kept[2] = {0, 0};
    const weft_body *body = a->routine->body;
    const int32_t middle = j->shape.middle < 0 ? j->shape.calls / 2 : j->shape.middle;
    if (a->phase == WEFTI_FORWARD && k == middle && body->out_count && a->part == 0)
        out->boundary = (double)weft_desc_bytes(&body->values[body->out[0]].desc);
    if (a->phase == WEFTI_FORWARD) {
        kept[0] = saved_bytes(j, a->routine);
        kept[1] = saved_bytes(j, b->routine);
    } else if (a->part == 0) {
        kept[0] = (double)wefti_joint_kept_bytes(one->program, a);
        kept[1] = (double)wefti_joint_kept_bytes(two->program, b);
    }
    if (a->phase == WEFTI_BACKWARD) {
        out->frame[0] = wefti_larger(out->frame[0], (double)a->routine->frame_bytes);
        out->frame[1] = wefti_larger(out->frame[1], (double)b->routine->frame_bytes);
    }
    const double growth_of_kept = wefti_larger(0, kept[1] - kept[0]);
    out->kept_each += times * growth_of_kept;
    out->kept_fixed += times * wefti_larger(0, kept[0] - growth_of_kept);
    return WEFT_OK;
}

static bool computes(const wefti_step *s) {
    return s->kind == WEFTI_STEP_CALL && (s->phase == WEFTI_FORWARD || s->phase == WEFTI_BACKWARD);
}

/* Programs of other steps: only what is certain, nothing. */
static weft_status read_steps(const wefti_joint *j, const wefti_joint_walk *one,
                              const wefti_joint_walk *two, wefti_joint_line *out) {
    const wefti_program *p = one->program, *q = two->program;
    const int32_t count = p->step_count[WEFTI_SECTION_FIRST];
    if (count != q->step_count[WEFTI_SECTION_FIRST]) return WEFT_OK;
    for (int32_t i = 0; i < count; i++) {
        const wefti_step *a = &p->steps[WEFTI_SECTION_FIRST][i];
        const wefti_step *b = &q->steps[WEFTI_SECTION_FIRST][i];
        if (a->kind != b->kind || a->phase != b->phase || a->part != b->part) return WEFT_OK;
        if (computes(a) && !strcmp(a->name, b->name)) WEFT_TRY(add_step(j, one, two, a, b, out));
    }
    return WEFT_OK;
}

/* Blocks of the whole model for each block of the short one, by bytes of parameters: all tensors of
 * the middle call count `copies` times. */
static bool of_middle(const wefti_joint_shape *s, const char *parameter) {
    const char *scope = s->middle >= 0 ? s->scope[s->middle] : NULL;
    return scope && !strncmp(parameter, scope, strlen(scope)) && parameter[strlen(scope)] == '.';
}

static void read_tensors(const wefti_joint *j, const weft_graph *g, const wefti_program *p,
                         wefti_joint_line *out) {
    const wefti_joint_shape *s = &j->shape;
    const int64_t threshold = j->problem->settings->optimizer.threshold;
    int32_t first;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        const bool state = t->role == WEFTI_TENSOR_OPTIMIZER && t->param >= 0;
        if (!state && t->role != WEFTI_TENSOR_PARAM) continue;
        if (state && wefti_joint_offloads(j, WEFT_OFFLOAD_OPTIMIZER)) continue;
        const double times =
            of_middle(s, state ? p->tensors[t->param].name : t->name) ? s->copies : 1;
        *(state ? &out->optimizer : &out->parameters) += times * (double)weft_desc_bytes(&t->desc);
        *(state ? &out->whole_optimizer : &out->whole_parameters) +=
            times * (double)weft_desc_bytes(&t->whole);
        if (state || t->frozen) continue;
        out->tensors += times;
        out->trained += times * (double)weft_desc_bytes(&t->desc);
        out->whole_trained += times * (double)weft_desc_bytes(&t->whole);
        if (wefti_joint_readers(g, t->name, &first) > 1)
            out->tied += (double)weft_desc_bytes(&t->desc);
        /* All blocks are like the middle one. A backward pass may not read biases. */
        const int64_t bytes = weft_desc_bytes(&t->whole);
        if (of_middle(s, t->name) && t->whole.rank > 1 && bytes / j->devices >= threshold)
            out->shared_blocks += (s->copies + 2) * (double)bytes;
    }
}

/* ---- the table ---- */

static weft_status read_programs(const wefti_joint *j, const weft_graph *g,
                                 const wefti_program *one, const wefti_program *two,
                                 wefti_joint_line *out) {
    wefti_joint_walk a, b;
    WEFT_TRY(wefti_joint_walk_begin(j, one, &a));
    weft_status status = wefti_joint_walk_begin(j, two, &b);
    if (status >= 0) {
        status = read_steps(j, &a, &b, out);
        read_tensors(j, g, one, out);
        wefti_joint_walk_end(&b);
        out->legal = status >= 0;
    }
    wefti_joint_walk_end(&a);
    return status;
}

static weft_status make(wefti_joint *j, wefti_joint_line *line) {
    const wefti_joint_work_key *k = &line->key;
    wefti_degrees d = wefti_degrees_none();
    wefti_program *one, *two;
    weft_graph *g;
    d.expert = k->expert, d.context = k->context, d.tensor = k->tensor;
    d.sequence = k->sequence;
    d.recompute = (weft_recompute)k->recompute;
    memcpy(d.order, k->order, sizeof d.order);
    line->call = wefti_arena_alloc(j->arena, (size_t)j->shape.calls * sizeof *line->call);
    WEFT_REQUIRE(line->call, WEFT_E_NOMEM, "no memory for a search");
    weft_status status = wefti_joint_build(j, &d, d.expert, j->shape.layers, &g, &one);
    if (wefti_joint_refuses(status)) {
        wefti_error_clear();
        return WEFT_OK;
    }
    WEFT_TRY(status);
    status = wefti_joint_build(j, &d, 2 * (int64_t)d.expert, j->shape.layers, &g, &two);
    if (status >= 0) {
        status = read_programs(j, g, one, two, line);
        wefti_program_destroy(two);
    }
    wefti_program_destroy(one);
    if (!wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    return WEFT_OK;
}

weft_status wefti_joint_line_find(wefti_joint *j, const wefti_degrees *d,
                                  const wefti_joint_line **out) {
    wefti_joint_work_key key;
    memset(&key, 0, sizeof key);
    key.data = 1, key.samples = 1;
    key.expert = d->expert, key.context = d->context, key.tensor = d->tensor;
    key.sequence = d->sequence, key.recompute = (int32_t)d->recompute;
    memcpy(key.order, d->order, sizeof key.order);
    for (int64_t i = 0; i < j->line_count; i++)
        if (!memcmp(&j->lines[i].key, &key, sizeof key)) {
            *out = &j->lines[i];
            return WEFT_OK;
        }
    WEFT_TRY(WEFT_GROW(j->lines, j->line_count, j->line_cap));
    wefti_joint_line *line = &j->lines[j->line_count++];
    *line = (wefti_joint_line){.key = key};
    WEFT_TRY(make(j, line));
    *out = line;
    return WEFT_OK;
}
