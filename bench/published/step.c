/* Seconds of a step: kernels of a layer, then stages, transfers, and the update. Kernels and
 * transfers take what cost/cost.h says; the profile says which there are and what overlaps. */
#include <math.h>
#include <string.h>

#include "published.h"

typedef struct layer_times {
    double forward, backward, again;        /* kernels of one microbatch; recomputed */
    double tensor_forward, tensor_backward; /* transfers */
    double context, expert;                 /* forward and backward */
    double tensor_again, context_again, expert_again;
} layer_times;

typedef struct work {
    const pub_run *run;
    const pub_profile *p;
    const wefti_machine_model *m;
    double rows, part_rows; /* tokens of a microbatch on a device; and of its part in norms */
} work;

static double larger(double a, double b) {
    return a > b ? a : b;
}
static double smaller(double a, double b) {
    return a < b ? a : b;
}

/* ---- transfers ---- */

/* NCCL gathers and scatters along rings, through all devices one after the other
 * (src/graph/tuning.cc has the seconds of a hop; other algorithms came with release 2.23, of 2024).
 * Beyond what cost/cost.h says for rounds that double. */
static double ring_hops(const work *w, wefti_transfer_kind kind, double size, double stride) {
    if (kind != WEFTI_TRANSFER_ALL_GATHER && kind != WEFTI_TRANSFER_REDUCE_SCATTER) return 0;
    const double hosts = ceil(size * stride / w->run->per_node - 1e-9);
    if (hosts <= 1) return (size - 1) * w->p->hop_seconds;
    return larger(0, size - hosts) * w->p->hop_seconds + hosts * w->p->network_hop_seconds;
}

/* A group of `size` devices, `stride` apart. */
static double group_seconds(const work *w, wefti_transfer_kind kind, double bytes, double size,
                            double stride) {
    int32_t per_level[WEFTI_LEVELS_MAX] = {0};
    double below = 1, top = 0;
    if (size <= 1 || bytes <= 0) return 0;
    for (int32_t l = 0; l < w->m->level_count; l++) {
        const double block = wefti_model_block(w->m, l);
        double inside = stride >= block ? 1 : floor(block / stride);
        if (l == w->m->level_count - 1 || inside > size) inside = size;
        double per = ceil(inside / below - 1e-9);
        per_level[l] = (int32_t)(per < 1 ? 1 : per);
        if (per > 1) top = l;
        below *= per_level[l];
    }
    const wefti_active active = {0, (int32_t)w->run->devices};
    double seconds = wefti_collective_seconds(w->m, kind, bytes, per_level, active);
    if (top > w->m->host_level) {
        const double hosts = size * stride / w->run->per_node;
        seconds /= w->p->network_use;
        if (hosts > 1) seconds *= 1 + w->p->network_decay * log2(hosts);
    }
    return w->p->call_seconds + seconds + ring_hops(w, kind, size, stride);
}

/* One message to the device `stride` away. */
static double hop_seconds(const work *w, double bytes, double stride) {
    int32_t level = 0;
    while (level < w->m->level_count - 1 && wefti_model_block(w->m, level) <= stride) level++;
    const double active = level ? smaller(wefti_model_block(w->m, level - 1), w->run->devices) : 1;
    double seconds = bytes * wefti_model_byte_seconds(w->m, level, active);
    if (level > w->m->host_level) seconds /= w->p->network_use;
    return w->p->call_seconds + w->m->level[level].latency_seconds.value + seconds;
}

/* ---- kernels ---- */

static double vector(const work *w, double elements) {
    return wefti_vector_seconds(&w->m->device, elements, elements * w->run->element_bytes);
}

/* `batch` products of rows x depth by depth x columns. */
static double product_one(const work *w, wefti_arithmetic arithmetic, double batch, double rows,
                          double columns, double depth) {
    const wefti_product_shape shape = {batch, rows, columns, depth};
    const bool eight = arithmetic == WEFTI_ARITHMETIC_F8;
    double bytes = eight ? 1 : w->run->element_bytes,
           use = eight ? w->p->f8_use : w->p->product_use;
    if (eight && w->run->four_bits) use *= w->p->f4_speedup;
    if (w->m->device.peak_flops[WEFTI_ARITHMETIC_F8].source) use *= w->p->hopper_products;
    bytes =
        batch * (bytes * (rows * depth + depth * columns) + w->run->element_bytes * rows * columns);
    return wefti_product_seconds(&w->m->device, arithmetic, &shape,
                                 2 * batch * rows * columns * depth / use, bytes);
}

typedef struct pair {
    double forward, backward;
} pair;

static void product_of(const work *w, wefti_arithmetic arithmetic, double batch, double rows,
                       double columns, double depth, pair *sum) {
    sum->forward += product_one(w, arithmetic, batch, rows, columns, depth);
    sum->backward += product_one(w, arithmetic, batch, rows, depth, columns);
    if (!w->run->frozen) {
        sum->backward += product_one(w, arithmetic, batch, depth, columns, rows);
        /* Gradients are added to those of earlier microbatches. */
        sum->backward += wefti_vector_seconds(&w->m->device, 0,
                                              2 * w->p->gradient_bytes * batch * columns * depth);
    }
    if (arithmetic == WEFTI_ARITHMETIC_F8) {
        sum->forward += vector(w, w->p->cast_bytes * batch * rows * depth);
        sum->backward += vector(w, w->p->cast_bytes * batch * rows * columns);
    }
}

static void product(const work *w, double rows, double columns, double depth, pair *sum) {
    product_of(w, w->run->arithmetic, 1, rows, columns, depth, sum);
}

/* Megatron's fused softmax needs a multiple of four heads and samples on a device
 * (megatron/model/fused_softmax.py); else several kernels do its work. */
static bool unfused_scores(const work *w) {
    const double heads = larger(1, w->run->model.heads / w->run->tensor);
    return w->p->flash < 0.5 && fmod(heads * w->run->micro, 4) > 0;
}

/* Scores and values of attention. */
static pair attention(const work *w) {
    const pub_model *m = &w->run->model;
    const double s = m->sequence, heads = larger(1, m->heads / w->run->tensor), b = w->run->micro;
    const double size = m->head_size, c = w->run->context;
    wefti_arithmetic plain = w->run->arithmetic;
    pair sum = {0, 0};
    if (plain == WEFTI_ARITHMETIC_F8) plain = WEFTI_ARITHMETIC_BF16;
    if (w->p->flash > 0.5 && !w->run->flash_off) {
        const double flops = 4 * b * heads * s * s * size / c * w->p->mask_part;
        const wefti_figure *peak = &w->m->device.peak_flops[plain];
        double rate = w->p->attention_use *
                      (peak->source ? peak->value : wefti_model_product_rate(&w->m->device, plain));
        /* Devices with 8-bit products have asynchronous units, which older kernels leave idle. */
        if (w->m->device.peak_flops[WEFTI_ARITHMETIC_F8].source) rate *= w->p->hopper_attention;
        const double narrow = size / (size + 32); /* short heads use the units worse */
        sum.forward = w->m->device.launch_seconds.value + flops / (rate * narrow);
        sum.backward = 3 * w->m->device.launch_seconds.value + 2.5 * flops / (rate * narrow);
        return sum;
    }
    pair one = {0, 0};
    one.forward = product_one(w, plain, b * heads, s / c, s, size) +
                  product_one(w, plain, b * heads, s / c, size, s);
    one.backward = 2 * one.forward;
    const double scores = b * heads * s * s / c;
    const double bytes = w->p->score_bytes * (unfused_scores(w) ? 3 : 1);
    sum.forward = one.forward + wefti_vector_seconds(&w->m->device, 5 * scores, bytes * scores);
    sum.backward =
        one.backward + wefti_vector_seconds(&w->m->device, 5 * scores, 1.25 * bytes * scores);
    return sum;
}

static void mixture(const work *w, pair *sum, layer_times *out) {
    const pub_run *run = w->run;
    const pub_model *m = &run->model;
    const double t = run->tensor, local = larger(1, m->experts / run->expert);
    const double tokens = w->rows * m->chosen / t, wide = m->gated ? 2 : 1;
    pair experts = {0, 0};
    product_of(w, run->arithmetic, local, larger(1, tokens / local), wide * m->expert_ffn,
               m->hidden, &experts);
    product_of(w, run->arithmetic, local, larger(1, tokens / local), m->hidden, m->expert_ffn,
               &experts);
    sum->forward += experts.forward / w->p->expert_use;
    sum->backward += experts.backward / w->p->expert_use;
    sum->forward += vector(w, w->p->act_bytes * wide * tokens * m->expert_ffn) +
                    vector(w, w->p->route_bytes * tokens * m->hidden);
    sum->backward += vector(w, 1.5 * w->p->act_bytes * wide * tokens * m->expert_ffn) +
                     vector(w, w->p->route_bytes * tokens * m->hidden);
    /* Router. */
    sum->forward += vector(w, 8 * w->part_rows * m->experts);
    sum->backward += vector(w, 8 * w->part_rows * m->experts);
    if (m->shared_ffn > 0) {
        product(w, w->rows, wide * m->shared_ffn / t, m->hidden, sum);
        product(w, w->rows, m->hidden, m->shared_ffn / t, sum);
    }
    /* A token goes to each host, or each device within it, at most once. */
    double near = run->per_node;
    for (int32_t l = w->m->host_level + 1; l < w->m->level_count - 1; l++)
        near = wefti_model_block(w->m, l);
    const double places = run->expert <= near ? run->expert : ceil(run->expert / near);
    const double bytes = w->rows / t * smaller(m->chosen, places) * m->hidden * run->element_bytes;
    const double move = group_seconds(w, WEFTI_TRANSFER_ALL_TO_ALL, bytes, run->expert, 1);
    out->expert += 4 * move * w->p->expert_exposed;
    out->expert_again += 2 * move * w->p->expert_exposed;
}

static pair products_of_layer(const work *w, bool experts, layer_times *out) {
    const pub_model *m = &w->run->model;
    const double t = w->run->tensor, heads = larger(1, m->heads / t);
    const double kv = larger(1, m->kv_heads / t), r = w->rows, h = m->hidden;
    pair sum = {0, 0};
    if (m->value_rank > 0) { /* latent attention: parts of 128, and 64 with positions */
        if (m->query_rank > 0) {
            product(w, w->part_rows, m->query_rank, h, &sum);
            product(w, r, heads * m->head_size, m->query_rank, &sum);
        } else {
            product(w, r, heads * m->head_size, h, &sum);
        }
        product(w, w->part_rows, m->value_rank + 64, h, &sum);
        product(w, r, heads * 256, m->value_rank, &sum);
        product(w, r, h, heads * 128, &sum);
    } else {
        product(w, r, (heads + 2 * kv) * m->head_size, h, &sum);
        product(w, r, h, heads * m->head_size, &sum);
    }
    if (experts) {
        mixture(w, &sum, out);
        return sum;
    }
    const double f = m->ffn / t, wide = m->gated ? 2 : 1;
    product(w, r, wide * f, h, &sum);
    product(w, r, h, f, &sum);
    sum.forward += vector(w, w->p->act_bytes * wide * r * f);
    sum.backward += vector(w, 1.5 * w->p->act_bytes * wide * r * f);
    return sum;
}

/* Partial results of two products forward, two backward; with norms split along the sequence, a
 * gather and a scatter each, and two more gathers for the gradients of weights. */
static void tensor_transfers(const work *w, layer_times *out) {
    const pub_run *run = w->run;
    const double bytes = w->rows * run->model.hidden * run->element_bytes;
    double once;
    if (run->sequence_parallel)
        once = group_seconds(w, WEFTI_TRANSFER_ALL_GATHER, bytes, run->tensor, 1) +
               group_seconds(w, WEFTI_TRANSFER_REDUCE_SCATTER, bytes, run->tensor, 1);
    else
        once = group_seconds(w, WEFTI_TRANSFER_ALL_REDUCE, bytes, run->tensor, 1);
    if (run->async_tensor) once *= 0.5;
    out->tensor_forward = 2 * once * w->p->tensor_exposed;
    out->tensor_backward = 2 * once * w->p->tensor_backward_exposed;
    /* The gather of gradients comes before the products of backward: nothing hides it. */
    if (run->sequence_parallel)
        out->tensor_backward += once * w->p->tensor_exposed * (1 - w->p->tensor_backward_exposed);
    if (run->recompute == PUB_RECOMPUTE_FULL)
        out->tensor_again = out->tensor_forward * run->recompute_part;
}

/* Keys and values go around the devices that share a sequence. */
static void context_transfers(const work *w, layer_times *out) {
    const pub_run *run = w->run;
    const pub_model *m = &run->model;
    if (run->context <= 1) return;
    const double kv = larger(1, m->kv_heads / run->tensor) * m->head_size;
    const double ring = group_seconds(w, WEFTI_TRANSFER_ALL_GATHER,
                                      2 * m->sequence * run->micro * kv * run->element_bytes,
                                      run->context, run->tensor);
    out->context = w->p->context_exposed * 3 * ring;
    if (run->recompute == PUB_RECOMPUTE_FULL) out->context_again = w->p->context_exposed * ring;
}

/* The device and the host work beside each other, each on what it has: the slower one counts, and
 * where both are about equal, they wait for each other in turn. */
static double beside(double device, double moves, double host) {
    const double both = device + moves, top = larger(both, host);
    if (top <= 0) return 0;
    return larger(device, top * pow(pow(both / top, 6) + pow(host / top, 6), 1.0 / 6) - moves);
}

/* The host starts one kernel after another, and may be slower than the device. */
static void start_kernels(const work *w, layer_times *out) {
    const pub_run *run = w->run;
    double host = w->p->kernels * w->p->kernel_seconds * (run->compiled ? 0.5 : 1);
    if (run->tensor > 1) host += 2 * 2 * w->p->kernel_seconds; /* a transfer: two kernels' time */
    if (run->deterministic) host *= w->p->deterministic_slowdown;
    if (unfused_scores(w)) host *= 1.35;
    out->forward = beside(out->forward, out->tensor_forward, host);
    if (run->recompute == PUB_RECOMPUTE_FULL)
        out->again = beside(out->again, out->tensor_again, run->recompute_part * host);
    out->backward = beside(out->backward, out->tensor_backward, host);
}

static layer_times layer_seconds(const work *w, bool experts) {
    const pub_run *run = w->run;
    const pub_model *m = &run->model;
    layer_times out = {0};
    const double h = m->hidden, part = w->part_rows * h;
    pair products = products_of_layer(w, experts, &out), core = attention(w);
    pair chains = {0, 0};
    /* A compiled step fuses chains. */
    const double fused = run->compiled ? 0.5 : 1;
    const double norm = fused * w->p->norm_bytes, residual = fused * w->p->residual_bytes;
    chains.forward = 2 * vector(w, norm * part) + 2 * vector(w, residual * part);
    chains.backward = 2 * vector(w, 1.5 * norm * part) + 2 * vector(w, residual * part);
    out.forward = products.forward + core.forward + chains.forward;
    out.backward = products.backward + core.backward + chains.backward;
    if (run->recompute == PUB_RECOMPUTE_FULL)
        out.again = run->recompute_part * out.forward;
    else if (run->recompute == PUB_RECOMPUTE_PRODUCTS)
        out.again = 0.5 * products.forward + chains.forward;
    else if (run->recompute == PUB_RECOMPUTE_CHAINS)
        out.again = chains.forward + vector(w, w->p->act_bytes * w->rows * m->ffn / run->tensor);
    else if (run->recompute == PUB_RECOMPUTE_CORE && (w->p->flash < 0.5 || run->flash_off))
        out.again = core.forward;
    if (run->blocking) {
        const double wait = w->p->kernels * w->p->blocking_seconds;
        out.forward += wait;
        out.backward += 1.5 * wait;
        if (run->recompute == PUB_RECOMPUTE_FULL) out.again += run->recompute_part * wait;
    }
    tensor_transfers(w, &out);
    context_transfers(w, &out);
    start_kernels(w, &out);
    if (run->recompute != PUB_RECOMPUTE_FULL) out.expert_again = 0;
    return out;
}

/* ---- stages ---- */

typedef struct stage_times {
    double forward, backward, again, tensor, context, expert;
} stage_times;

static double total(const stage_times *s) {
    return s->forward + s->backward + s->again + s->tensor + s->context + s->expert;
}

static void add_layers(stage_times *s, const layer_times *l, double count) {
    s->forward += count * l->forward;
    s->backward += count * l->backward;
    s->again += count * l->again;
    s->tensor += count * (l->tensor_forward + l->tensor_backward + l->tensor_again);
    s->context += count * (l->context + l->context_again);
    s->expert += count * (l->expert + l->expert_again);
}

static void add_ends(const work *w, stage_times *s, bool first, bool last) {
    const pub_model *m = &w->run->model;
    const double t = w->run->tensor, full = w->rows * m->hidden;
    const double reduce =
        group_seconds(w, WEFTI_TRANSFER_ALL_REDUCE, full * w->run->element_bytes, t, 1);
    if (first) {
        s->forward += vector(w, 4 * full);
        s->backward += vector(w, 4 * full);
        s->tensor += reduce * w->p->tensor_exposed;
    }
    if (last) {
        pair sum = {0, 0};
        wefti_arithmetic plain = w->run->arithmetic;
        if (plain == WEFTI_ARITHMETIC_F8) plain = WEFTI_ARITHMETIC_BF16;
        product_of(w, plain, 1, w->rows, ceil(m->vocab / t), m->hidden, &sum);
        const double logits = w->rows * m->vocab / t;
        s->forward +=
            sum.forward + wefti_vector_seconds(&w->m->device, 0, 0.6 * w->p->loss_bytes * logits);
        s->backward +=
            sum.backward + wefti_vector_seconds(&w->m->device, 0, 0.4 * w->p->loss_bytes * logits);
        s->tensor += reduce * w->p->tensor_exposed;
    }
}

static double layers_with_experts(const pub_run *run, int stage, double count) {
    if (run->model.experts <= 0) return 0;
    double plain = stage == 0 ? smaller(run->model.dense_layers, count) : 0;
    return ceil((count - plain) / run->model.every);
}

/* ---- the step ---- */

/* Sharded parameters: gathered layer by layer, while other layers compute. Returns exposed
 * seconds of a microbatch; `slow` gets what kernels lose to transfers beside them. */
static double sharded_microbatch(const work *w, const stage_times *s, double *slow) {
    const pub_run *run = w->run;
    const double n = run->model.layers / run->stages;
    const double parameters = pub_layer_parameters(run, run->model.experts > 0);
    const double stride = run->tensor, d = run->shards;
    const double calls = w->p->gather_calls, each = parameters / calls;
    const double gather =
        calls * group_seconds(w, WEFTI_TRANSFER_ALL_GATHER, each * run->element_bytes, d, stride);
    const double scatter = calls * group_seconds(w, WEFTI_TRANSFER_REDUCE_SCATTER,
                                                 each * w->p->gradient_bytes, d, stride);
    const double forward = s->forward / n;
    const double backward = (s->backward + s->again) / n;
    const double moves = gather * (run->level >= 3 ? 1 : 0) + scatter;
    const double first = run->level >= 3 ? gather : 0;
    double exposed = first + larger(0, first - forward) * (n - 1);
    exposed += larger(0, moves - backward) * (n - 1) + scatter;
    *slow = w->p->overlap_slowdown * (smaller(first, forward) + smaller(moves, backward)) * n;
    /* The tables are a unit of their own. */
    const double table = pub_table_parameters(run);
    exposed += group_seconds(w, WEFTI_TRANSFER_ALL_GATHER, table * run->element_bytes, d, stride) *
               (run->level >= 3 ? 1 : 0);
    return exposed;
}

static double device_parameters(const pub_run *run) {
    const double n = run->model.layers / run->stages;
    const double mixed = run->model.experts > 0 ? (run->model.layers - run->model.dense_layers) /
                                                      run->model.every / run->stages
                                                : 0;
    return (n - mixed) * pub_layer_parameters(run, false) +
           mixed * pub_layer_parameters(run, true) + pub_table_parameters(run) / run->stages;
}

static double data_seconds(const work *w, double parameters, const stage_times *s) {
    const pub_run *run = w->run;
    const double d = run->data * run->context, stride = run->tensor;
    const double gradients = parameters * w->p->gradient_bytes;
    double comm = 0;
    if (d <= 1) return 0;
    if (run->level == 0)
        comm = group_seconds(w, WEFTI_TRANSFER_ALL_REDUCE, gradients, d, stride);
    else
        comm = group_seconds(w, WEFTI_TRANSFER_REDUCE_SCATTER, gradients, d, stride) +
               group_seconds(w, WEFTI_TRANSFER_ALL_GATHER, parameters * 2, d, stride);
    const double window = s->forward + s->backward + s->again;
    const double hidden = smaller(comm * w->p->data_overlap, window);
    return comm - hidden + w->p->overlap_slowdown * hidden;
}

static weft_status predict_plan(const pub_run *run, const pub_profile *p,
                                const wefti_machine_model *machine, pub_prediction *out) {
    work w = {.run = run, .p = p, .m = machine};
    w.rows = run->model.sequence * run->micro / run->context;
    w.part_rows = run->sequence_parallel ? w.rows / run->tensor : w.rows;
    const layer_times plain = layer_seconds(&w, false);
    const layer_times mixed = run->model.experts > 0 ? layer_seconds(&w, true) : plain;
    const int stages = (int)run->stages;
    double most = 0, sum = 0;
    stage_times worst = {0};
    *out = (pub_prediction){0};
    if (run->layer_only) {
        stage_times one = {0};
        add_layers(&one, &plain, 1);
        out->seconds = total(&one);
        out->part.forward = one.forward, out->part.backward = one.backward;
        out->part.again = one.again, out->part.tensor = one.tensor;
        pub_predict_memory(run, p, machine, out);
        return WEFT_OK;
    }
    for (int i = 0; i < stages; i++) {
        stage_times s = {0};
        const double count = pub_layers_of_stage(run, i);
        const double with = layers_with_experts(run, i, count);
        add_layers(&s, &plain, count - with);
        add_layers(&s, &mixed, with);
        add_ends(&w, &s, i == 0, i == stages - 1);
        sum += total(&s);
        if (total(&s) > most) {
            most = total(&s);
            worst = s;
        }
    }
    const double microbatches = larger(1, ceil(run->batch / (run->data * run->micro) - 1e-6));
    const double hop =
        stages > 1 ? hop_seconds(&w, w.rows * run->model.hidden * run->element_bytes / run->tensor,
                                 run->devices / run->stages) +
                         (run->sequence_parallel
                              ? 0
                              : group_seconds(&w, WEFTI_TRANSFER_ALL_GATHER,
                                              w.rows * run->model.hidden * run->element_bytes,
                                              run->tensor, 1))
                   : 0;
    pub_times *t = &out->part;
    t->forward = microbatches * worst.forward;
    t->backward = microbatches * worst.backward;
    t->again = microbatches * worst.again;
    t->tensor = microbatches * worst.tensor;
    t->context = microbatches * worst.context;
    t->expert = microbatches * worst.expert;
    t->stage = stages > 1 ? 2 * run->chunks * hop * p->stage_exposed * microbatches : 0;
    t->bubble = (sum - most) / run->chunks + 2 * (stages - 1) * hop;
    const double parameters = device_parameters(run);
    if (run->level >= 2 && run->shards > 1) {
        double slow = 0;
        t->data = microbatches * sharded_microbatch(&w, &worst, &slow);
        t->data += microbatches * slow;
        const double copies = run->data * run->context / run->shards;
        if (copies > 1)
            t->data +=
                (1 - p->data_overlap) * group_seconds(&w, WEFTI_TRANSFER_ALL_REDUCE,
                                                      parameters / run->shards * p->gradient_bytes,
                                                      copies, run->tensor * run->shards);
        if (run->level == 2)
            t->data += group_seconds(&w, WEFTI_TRANSFER_ALL_GATHER, parameters * run->element_bytes,
                                     run->shards, run->tensor);
    } else {
        t->data = data_seconds(&w, parameters, &worst);
    }
    if (stages > 1 && run->model.tied)
        t->data +=
            group_seconds(&w, WEFTI_TRANSFER_ALL_REDUCE,
                          run->model.vocab * run->model.hidden / run->tensor * p->gradient_bytes, 2,
                          run->devices / run->stages);
    const double updated = parameters / (run->level >= 1 ? larger(1, run->shards) : 1);
    t->update = wefti_vector_seconds(&machine->device, 0, updated * p->optimizer_bytes);
    t->fixed = p->step_seconds + microbatches * p->microbatch_seconds;
    out->seconds = t->forward + t->backward + t->again + t->tensor + t->context + t->expert +
                   t->stage + t->bubble + t->data + t->update + t->fixed;
    if (run->devices > run->per_node)
        out->seconds *= 1 + p->straggling * log2(run->devices / run->per_node);
    pub_predict_memory(run, p, machine, out);
    return WEFT_OK;
}

/* The degrees that the row leaves open: tensor parallelism within a host first, then stages. */
static void fill_degrees(pub_run *run, const pub_profile *p, const wefti_machine_model *machine) {
    pub_prediction trial;
    /* Names of Alpa's restricted searches. */
    const bool inner = !strstr(run->framework, "inter_only");
    const bool outer = !strstr(run->framework, "intra_only");
    if (run->model.experts > 0 && inner) run->expert = smaller(run->model.experts, run->data);
    for (;;) {
        const double model = run->tensor * run->stages * run->context;
        pub_predict_memory(run, p, machine, &trial);
        if (trial.fits || model * 2 > run->devices) return;
        if (inner && run->tensor * 2 <= run->per_node && run->tensor * 2 <= run->model.heads)
            run->tensor *= 2;
        else if (outer && run->stages * 2 <= run->model.layers)
            run->stages *= 2;
        else
            return;
        run->data = larger(1, run->devices / (2 * model));
        run->micro = smaller(run->micro, run->batch / run->data);
        run->shards = run->level >= 1 ? run->data * run->context : 1;
        run->expert = smaller(run->expert, run->data);
    }
}

weft_status pub_predict(const pub_run *given, const pub_profile *p,
                        const wefti_machine_model *machine, pub_prediction *out) {
    static const pub_recompute more[] = {PUB_RECOMPUTE_CORE, PUB_RECOMPUTE_CHAINS,
                                         PUB_RECOMPUTE_PRODUCTS, PUB_RECOMPUTE_FULL};
    pub_run run = *given;
    if (run.degrees_open && run.level < 3) fill_degrees(&run, p, machine);
    WEFT_TRY(predict_plan(&run, p, machine, out));
    for (size_t i = 0; run.recompute_open && !out->fits && i < sizeof more / sizeof *more; i++) {
        if (more[i] <= given->recompute) continue;
        run.recompute = more[i];
        WEFT_TRY(predict_plan(&run, p, machine, out));
    }
    WEFT_REQUIRE(isfinite(out->seconds) && out->seconds > 0 && isfinite(out->largest_bytes) &&
                     out->largest_bytes > 0,
                 WEFT_E_ARG, "its sizes give %g seconds and %g bytes", out->seconds,
                 out->largest_bytes);
    return WEFT_OK;
}
