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

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* ---- kernels ---- */

static double best_bytes_rate(const wefti_device_model *d) {
    double rate = d->memory_bytes_per_second.value;
    if (!d->memory.count)
        return d->memory_efficiency.source ? rate * d->memory_efficiency.value : rate;
    rate = 0;
    for (int32_t i = 0; i < d->memory.count; i++) rate = larger(rate, d->memory.rate[i]);
    return rate;
}

/* The size of a dimension for a very large number of samples. */
static double limit_of(double one, double two) {
    return two > one ? one * (1 << 20) : one;
}

/* The part of the rate that a product reaches for no number of samples. */
static double best_use(const wefti_device_model *d, const weft_node *one, const weft_node *two,
                       double flops) {
    wefti_product_shape a, b;
    if (!d->units.source || !wefti_node_product(one, &a) || !wefti_node_product(two, &b)) return 1;
    const double own = 2 * a.batch * a.rows * a.columns * a.depth;
    if (fabs(own - flops) > 0.05 * flops) return 1;
    const wefti_product_shape large = {limit_of(a.batch, b.batch), limit_of(a.rows, b.rows),
                                       limit_of(a.columns, b.columns), limit_of(a.depth, b.depth)};
    return (1 + 1e-5) * wefti_tile_use(d, &large) *
           wefti_shape_use(d, wefti_node_arithmetic(one), &large);
}

/* Seconds that a kernel takes for each sample, without its launch. */
static double kernel_growth(const wefti_device_model *d, const wefti_instruction *one,
                            const wefti_instruction *two) {
    const double flops = larger(0, two->cost.flops - one->cost.flops);
    const double bytes = larger(0, two->cost.bytes - one->cost.bytes);
    const double memory = bytes / best_bytes_rate(d);
    double compute = flops / d->vector_flops.value;
    if (one->node->op->work == WEFTI_WORK_PRODUCT) {
        const double use = best_use(d, one->node, two->node, one->cost.flops);
        const double rate = wefti_joint_best_rate(d, wefti_node_arithmetic(one->node));
        compute = flops / (rate * (use < 1 ? use : 1));
    }
    return larger(compute, memory) * wefti_joint_least_factor(d, one->node);
}

typedef struct growth {
    double fixed, each;
} growth;

/* False: the programs differ, so nothing is known. */
static bool kernels_of(const wefti_machine_model *m, const wefti_step *one, const wefti_step *two,
                       growth *out) {
    const double launch = m->device.launch_seconds.value;
    if (one->to - one->from != two->to - two->from) return false;
    for (int32_t k = 0; k < one->to - one->from; k++) {
        const wefti_instruction *a = &one->routine->code[one->from + k];
        const wefti_instruction *b = &two->routine->code[two->from + k];
        if ((a->transfer < 0) != (b->transfer < 0) || !a->node != !b->node) return false;
        if (a->transfer >= 0) continue;
        if (!a->node) {
            if (a->bytes > 0 && b->bytes > 0) out->fixed += launch;
            continue;
        }
        if (a->node->op != b->node->op) return false;
        out->fixed += launch;
        out->each += kernel_growth(&m->device, a, b);
    }
    return true;
}

/* ---- calls ---- */

static void waits_of(const wefti_joint_walk *one, const wefti_joint_walk *two, const wefti_step *a,
                     const wefti_step *b, growth *out) {
    wefti_joint_walk instant_one = *one, instant_two = *two;
    double kernels, bytes[2], all[2];
    instant_one.seconds = one->instant;
    instant_two.seconds = two->instant;
    wefti_joint_walk_call(&instant_one, a, false, &kernels, &bytes[0]);
    wefti_joint_walk_call(&instant_two, b, false, &kernels, &bytes[1]);
    wefti_joint_walk_call(one, a, false, &kernels, &all[0]);
    wefti_joint_walk_call(two, b, false, &kernels, &all[1]);
    out->each += larger(0, bytes[1] - bytes[0]);
    const double latency[2] = {all[0] - bytes[0], all[1] - bytes[1]};
    if (fabs(latency[0] - latency[1]) <= 1e-6 * latency[0]) out->fixed += latency[0] * (1 - 1e-6);
}

static void add_step(const wefti_joint *j, const wefti_joint_walk *one, const wefti_joint_walk *two,
                     const wefti_step *a, const wefti_step *b, wefti_joint_line *out) {
    const int32_t k = wefti_joint_call_of(&j->shape, a->name);
    growth g = {0}, waits = {0};
    if (k < 0 || !kernels_of(one->machine, a, b, &g)) return;
    waits_of(one, two, a, b, &waits);
    const double times = k == j->shape.middle ? j->shape.copies : 1;
    out->fixed += times * (g.fixed + waits.fixed);
    out->each += times * (g.each + waits.each);
    out->wait_fixed += times * waits.fixed;
    out->wait_each += times * waits.each;
    double kept[2] = {0, 0};
    if (a->phase == WEFTI_FORWARD) {
        kept[0] = (double)a->routine->saved_bytes;
        kept[1] = (double)b->routine->saved_bytes;
    } else if (a->part == 0) {
        kept[0] = (double)wefti_joint_kept_bytes(one->program, a);
        kept[1] = (double)wefti_joint_kept_bytes(two->program, b);
    }
    if (a->phase == WEFTI_BACKWARD) {
        out->frame[0] = larger(out->frame[0], (double)a->routine->frame_bytes);
        out->frame[1] = larger(out->frame[1], (double)b->routine->frame_bytes);
    }
    const double growth_of_kept = larger(0, kept[1] - kept[0]);
    out->kept_each += times * growth_of_kept;
    out->kept_fixed += times * larger(0, kept[0] - growth_of_kept);
}

static bool computes(const wefti_step *s) {
    return s->kind == WEFTI_STEP_CALL && (s->phase == WEFTI_FORWARD || s->phase == WEFTI_BACKWARD);
}

/* Programs of other steps: only what is certain, nothing. */
static void read_steps(const wefti_joint *j, const wefti_joint_walk *one,
                       const wefti_joint_walk *two, wefti_joint_line *out) {
    const wefti_program *p = one->program, *q = two->program;
    const int32_t count = p->step_count[WEFTI_SECTION_FIRST];
    if (count != q->step_count[WEFTI_SECTION_FIRST]) return;
    for (int32_t i = 0; i < count; i++) {
        const wefti_step *a = &p->steps[WEFTI_SECTION_FIRST][i];
        const wefti_step *b = &q->steps[WEFTI_SECTION_FIRST][i];
        if (a->kind != b->kind || a->phase != b->phase || a->part != b->part) return;
        if (computes(a) && !strcmp(a->name, b->name)) add_step(j, one, two, a, b, out);
    }
}

/* Blocks of the whole model for each block of the short one, by bytes of parameters: all tensors of
 * the middle call count `copies` times. */
static bool of_middle(const wefti_joint_shape *s, const char *parameter) {
    const char *scope = s->middle >= 0 ? s->scope[s->middle] : NULL;
    return scope && !strncmp(parameter, scope, strlen(scope)) && parameter[strlen(scope)] == '.';
}

static void read_tensors(const wefti_joint_shape *s, const wefti_program *p,
                         wefti_joint_line *out) {
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        const bool state = t->role == WEFTI_TENSOR_OPTIMIZER && t->param >= 0;
        if (!state && t->role != WEFTI_TENSOR_PARAM) continue;
        const double times =
            of_middle(s, state ? p->tensors[t->param].name : t->name) ? s->copies : 1;
        *(state ? &out->optimizer : &out->parameters) += times * (double)weft_desc_bytes(&t->desc);
        *(state ? &out->whole_optimizer : &out->whole_parameters) +=
            times * (double)weft_desc_bytes(&t->whole);
    }
}

/* ---- the table ---- */

static weft_status read_programs(const wefti_joint *j, const wefti_program *one,
                                 const wefti_program *two, wefti_joint_line *out) {
    wefti_joint_walk a, b;
    WEFT_TRY(wefti_joint_walk_begin(j, one, &a));
    const weft_status status = wefti_joint_walk_begin(j, two, &b);
    if (status >= 0) {
        read_steps(j, &a, &b, out);
        read_tensors(&j->shape, one, out);
        wefti_joint_walk_end(&b);
        out->legal = true;
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
    weft_status status = wefti_joint_build(j, &d, d.expert, j->shape.layers, &g, &one);
    if (wefti_joint_refuses(status)) {
        wefti_error_clear();
        return WEFT_OK;
    }
    WEFT_TRY(status);
    status = wefti_joint_build(j, &d, 2 * (int64_t)d.expert, j->shape.layers, &g, &two);
    if (status >= 0) {
        status = read_programs(j, one, two, line);
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
