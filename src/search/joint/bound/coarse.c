/* Bounds and guesses of candidates without programs of their own. */
#include <math.h>
#include <string.h>

#include "schedule/schedule.h"
#include "search/joint/branch.h"

/* Samples of a step on the replica that has most of them: an uneven batch gives some replicas more
 * than others, in each microbatch the same ones. */
static double busiest_samples(const wefti_joint_branch *s, const wefti_degrees *d) {
    const wefti_joint_problem *p = s->j.problem;
    const double parts = (double)d->microbatches * p->settings->copies;
    return s->j.scalable ? parts * ceil((double)p->source.batch / parts / d->data / d->expert) : 1;
}

/* Whether some schedule of the set has several chunks a stage. A stage begins behind the first
 * chunks of the stages before it then, and these may have any part of the stage's work. */
static bool may_have_chunks(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int32_t *fixed = s->j.problem->fix.value;
    const int32_t schedule = fixed[WEFTI_JOINT_SCHEDULE];
    if (wefti_joint_calls(&s->j.shape) < 2 * (int64_t)d->stages || fixed[WEFTI_JOINT_CHUNKS] == 1)
        return false;
    return schedule < 0 || schedule == (int32_t)WEFT_PIPELINE_ZERO_BUBBLE ||
           schedule == (int32_t)WEFT_PIPELINE_INTERLEAVED;
}

/* How much longer a step takes than all microbatches on stages of equal work, at least.
 *
 * Without chunks, stage s begins when the first microbatch has passed the stages before it. So with
 * f_i seconds in the forward pass of stage i, w_i in both passes, and m microbatches,
 *
 *     T >= f_0 + ... + f_(s-1) + m w_s   for each s.
 *
 * The last call of the model is on the last stage, which no other stage waits for. Of all other
 * calls, forward passes are at least the part p of both passes. So f_i >= p w_i for all stages but
 * the last one, and T >= p (w_0 + ... + w_(s-1)) + m w_s. For a given sum W of all w_i, the
 * greatest of these is least if all are equal: then w_(s+1) = (1 - p / m) w_s, and
 *
 *     T = p W / (1 - (1 - p / m)^stages).
 *
 * Seconds of calls are least values. T grows with each of them, so this holds for the true ones. */
static double filled(const wefti_joint_branch *s, const wefti_degrees *d,
                     const wefti_joint_call *calls) {
    double part = 1;
    if (d->stages == 1 || may_have_chunks(s, d)) return 1;
    for (int32_t k = 0; k + 1 < s->j.shape.calls; k++) {
        const double both = calls[k].forward + calls[k].backward;
        if (both > 0) part = wefti_smaller(part, calls[k].forward / both);
    }
    const double delay = part / d->microbatches;
    const double longer = delay > 0 ? delay * d->stages / (1 - pow(1 - delay, d->stages)) : 1;
    return longer > 1 ? longer : 1;
}

/* All devices compute the products of both passes at the best rate, and no device does more than
 * the busiest one. What is recomputed does not count: a split may keep results that one device
 * computes again. */
static double products_bound(const wefti_joint_branch *s, const wefti_degrees *d) {
    const double replicas = s->j.scalable ? (double)d->data * d->expert : 1;
    const double work = s->ideal_forward + s->ideal_backward;
    return busiest_samples(s, d) * replicas * work / s->j.devices;
}

weft_status wefti_joint_find_ideal(wefti_joint_branch *s) {
    if (!s->j.scalable) return WEFT_OK; /* 0 is a bound too */
    return wefti_joint_ideal(&s->j, &s->ideal_forward, &s->ideal_backward);
}

/* ---- bounds from lines ---- */

/* Whether a model with experts is split into equal parts. If not, its cells may be split otherwise,
 * or not at all, and not the same way for other numbers of samples or devices. */
static bool is_even(const wefti_joint_branch *s, const wefti_degrees *d) {
    const weft_model_config *c = s->j.problem->source.config;
    if (!c || !c->experts) return true;
    return c->heads % d->tensor == 0 && c->experts % ((int64_t)d->expert * d->tensor) == 0 &&
           c->context % (d->context * (d->sequence ? d->tensor : 1)) == 0;
}

/* Whether lines say something about a candidate: equal parts, and replicas with whole samples, on
 * the outermost axis of the mesh. */
static bool has_line(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int64_t replicas = (int64_t)d->data * d->expert;
    return s->j.scalable && s->j.problem->source.batch % replicas == 0 &&
           !wefti_joint_alternates(&s->j) && wefti_joint_outermost(d) && is_even(s, d);
}

/* Samples of a microbatch on each device. */
static double samples_of(const wefti_joint_branch *s, const wefti_degrees *d) {
    const wefti_joint_problem *p = s->j.problem;
    return (double)p->source.batch / d->data / d->expert / d->microbatches / p->settings->copies;
}

/* Each level is at least as slow as the one before it. */
bool wefti_joint_is_slower_outwards(const wefti_machine_model *m) {
    for (int32_t l = 1; l < m->level_count; l++)
        if (m->level[l].latency_seconds.value < m->level[l - 1].latency_seconds.value ||
            wefti_model_byte_seconds(m, l, 1) < wefti_model_byte_seconds(m, l - 1, 1) ||
            m->level[l].reduces || m->level[l].all_reduce.count)
            return false;
    return true;
}

/* The least bytes of a stage. If each stage has `limit` bytes, with n microbatches in flight, all
 * stages together keep at most the sum of (limit - state) / n of one microbatch. */
static double least_bytes(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                          double kept, const wefti_joint_line *line) {
    const double mesh = (double)s->j.devices / d->stages;
    const double most = d->stages < d->microbatches ? d->stages : d->microbatches;
    /* At level 3 those of one call are gathered. */
    const double gathered = line->parameters / wefti_joint_calls(&s->j.shape);
    const double parameters = wefti_joint_offloads(&s->j, WEFT_OFFLOAD_PARAMETERS) ? 0
                              : level >= 3 ? line->whole_parameters / mesh + gathered
                                           : line->parameters;
    const double state = parameters + (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    double shares = 0;
    for (int32_t stage = 0; stage < d->stages; stage++)
        shares += 1.0 / (d->stages - stage < most ? d->stages - stage : most);
    /* Gradients of several microbatches add up in memory; levels 2 and 3 share them. */
    const bool several = d->stages > 1 || d->microbatches > 1;
    const bool adds_up = several && !wefti_joint_offloads(&s->j, WEFT_OFFLOAD_GRADIENTS);
    const double gradients = adds_up && level < 2 ? line->trained : 0;
    return WEFTI_JOINT_ROUNDING *
           wefti_larger((kept + state / most) / shares, (state + gradients) / d->stages);
}

/* ---- coarse bounds: from lines of one device and of two ---- */

/* How much longer transfers of an axis take than those of the first two devices, about: a ring of g
 * devices moves (g - 1) / g of the bytes twice. These two may be on two hosts. */
static double longer_of(const wefti_machine_model *m, const wefti_joint_axis *a) {
    const int32_t level = wefti_model_level_of(m, 0, a->stride * a->size - 1);
    const int32_t block = level ? wefti_model_block(m, level - 1) : 1;
    const int32_t of_two = wefti_model_level_of(m, 0, 1);
    const double slower =
        wefti_model_byte_seconds(m, level, block) / wefti_model_byte_seconds(m, of_two, 1);
    const double longer = 2.0 * (a->size - 1) / a->size * slower;
    return longer > 1 ? longer : 1;
}

bool wefti_joint_levels_of(const wefti_machine_model *m, const wefti_joint_axis *a,
                           int32_t per_level[WEFTI_LEVELS_MAX]) {
    int32_t below = a->size;
    memset(per_level, 0, WEFTI_LEVELS_MAX * sizeof *per_level);
    for (int32_t l = 0; l < m->level_count; l++) {
        const int32_t blocks = wefti_joint_blocks(a->stride, a->size, wefti_model_block(m, l));
        if (below % blocks) return false;
        per_level[l] = below / blocks;
        below = blocks;
    }
    return true;
}

/* Seconds of an all-gather on an axis. False: not known. */
static bool gather_seconds(const wefti_machine_model *m, const wefti_joint_axis *a, int32_t mesh,
                           double bytes, double *out) {
    int32_t per_level[WEFTI_LEVELS_MAX];
    if (!wefti_joint_levels_of(m, a, per_level)) return false;
    *out = wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, bytes, per_level,
                                    (wefti_active){0, mesh});
    return true;
}

/* How many times as long as on two neighbours a collective takes whose value is the same on any
 * number of devices, at least: *latency its latencies, *bytes the rest. Twice an all-gather is an
 * all-reduce, and its mirror a reduce-scatter. Groups of other stages and hosts lie no better than
 * that of the first device. */
static void factors_of(const wefti_joint_branch *s, const wefti_joint_axis *a, int32_t mesh,
                       double *latency, double *bytes) {
    const wefti_machine_model *m = s->j.problem->machine, *instant = &s->j.instant;
    const wefti_joint_axis two = {1, 2, 1};
    double whole, part;
    *latency = *bytes = 1;
    if (gather_seconds(m, a, mesh, 0, &whole) && gather_seconds(m, &two, 2, 0, &part) &&
        whole > part && part > 0)
        *latency = whole / part;
    if (gather_seconds(instant, a, mesh, 1, &whole) && gather_seconds(instant, &two, 2, 1, &part) &&
        whole > part && part > 0)
        *bytes = whole / part;
}

/* Seconds that x samples add to transfers, at least, if each of the first two adds `each`.
 *
 * The builder chooses among ways to move values for least seconds. Way i takes a_i + b_i x. So the
 * seconds are a concave function of x: up to 2 samples, at least the chord of 1 and 2. Beyond 2 a
 * way with fewer bytes and more latencies may take over. It was not chosen at 2, so
 *
 *     a_i + 2 b_i >= a + 2 b,   and   b_i >= b - (a_i - a) / 2.
 *
 * No way of the layout search has more than OTHER_WAYS times as many latencies besides: this is
 * checked, not derived (search.joint_chain). */
static double growth_of_waits(double x, double each, double latency) {
    enum { OTHER_WAYS = 7 };
    if (x <= 2) return x * each;
    return 2 * each + (x - 2) * wefti_larger(0, each - OTHER_WAYS / 2.0 * latency);
}

/* Transfers of an axis take at least as long as those of two devices on the innermost links, since
 * more devices have no fewer bytes and latencies. Collectives on more devices take longer. If
 * experts are on split sequences or on ranks of tp, other numbers of devices may have other
 * collectives. One sums inputs of experts, another gathers them. So these do not count. */
static weft_status add_axis(wefti_joint_branch *s, const wefti_degrees *d, const wefti_degrees *two,
                            const wefti_joint_axis *a, double samples, wefti_joint_call *calls,
                            wefti_joint_about *about) {
    const wefti_joint_shape *shape = &s->j.shape;
    const wefti_joint_line *line;
    double latency, bytes;
    WEFT_TRY(wefti_joint_line_find(&s->j, two, &line));
    if (!line->legal) return WEFT_OK;
    const bool even = is_even(s, d) && is_even(s, two);
    factors_of(s, a, s->j.devices / d->stages, &latency, &bytes);
    const double longer = longer_of(s->j.problem->machine, a);
    const weft_model_config *c = s->j.problem->source.config;
    const bool rings = (two->context == 1 && two->tensor == 1) || !c || !c->experts;
    for (int32_t k = 0; k < shape->calls; k++)
        for (int pass = 0; pass < 2; pass++) {
            const wefti_joint_growth *g = &line->call[k][pass];
            const double fixed = rings ? wefti_larger(g->wait_fixed, latency * g->ring_fixed)
                                       : wefti_larger(0, g->wait_fixed - g->ring_fixed);
            const double each = rings ? wefti_larger(g->wait_each, bytes * g->ring_each)
                                      : wefti_larger(0, g->wait_each - g->ring_each);
            const double times = k == shape->middle ? shape->copies : 1;
            const double waits =
                rings ? wefti_larger(g->wait_latency, latency * g->ring_latency) : g->wait_latency;
            const double least = fixed + growth_of_waits(samples * a->share, each, waits);
            *(pass ? &calls[k].backward : &calls[k].forward) += even ? least : 0;
            about->work += times * (g->wait_fixed + samples * a->share * g->wait_each);
            about->further += times * samples * a->share * g->wait_each * (longer - 1);
        }
    return WEFT_OK;
}

int32_t wefti_joint_stride_of(const wefti_degrees *d, int which) {
    const int32_t sizes[] = {d->data, d->expert, d->context, d->tensor};
    int32_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        const int a = d->order[0] == d->order[1] ? i : d->order[i];
        if (a == which) break;
        stride *= sizes[a];
    }
    return stride;
}

static weft_status add_axes(wefti_joint_branch *s, const wefti_degrees *d, double samples,
                            wefti_joint_call *calls, wefti_joint_about *about) {
    wefti_degrees two = wefti_degrees_none();
    two.recompute = d->recompute;
    if (!s->outwards) return WEFT_OK;
    if (d->tensor > 1) {
        const wefti_joint_axis a = {wefti_joint_stride_of(d, 3), d->tensor, 1.0 / d->context};
        two.tensor = 2;
        two.sequence = d->sequence;
        WEFT_TRY(add_axis(s, d, &two, &a, samples, calls, about));
        two.tensor = 1;
        two.sequence = false;
    }
    if (d->context > 1) {
        const wefti_joint_axis a = {wefti_joint_stride_of(d, 2), d->context, 1.0 / d->tensor};
        two.context = 2;
        WEFT_TRY(add_axis(s, d, &two, &a, samples, calls, about));
        two.context = 1;
    }
    if (d->expert == 1) return WEFT_OK;
    const wefti_joint_axis a = {wefti_joint_stride_of(d, 1), d->expert,
                                1.0 / d->tensor / d->context};
    two.expert = 2;
    return add_axis(s, d, &two, &a, samples, calls, about);
}

/* ---- kernels of calls ---- */

/* Products on the devices of a candidate, of its own line. */
static void add_products(const wefti_joint_branch *s, const wefti_joint_line *line, double samples,
                         wefti_joint_call *calls) {
    const wefti_device_model *device = &s->j.problem->machine->device;
    for (int64_t i = 0; i < line->product_count; i++) {
        const wefti_joint_product *p = &line->products[i];
        *(p->backward ? &calls[p->call].backward : &calls[p->call].forward) +=
            wefti_joint_product_of_line(device, p, samples, line->key.tensor, line->key.context);
    }
}

/* What the lines of two devices tell of each axis of a split. `line` NULL: the axis has one device.
 * A device has `parts` times less of a sample's values than one device alone. */
typedef struct axis_line {
    const wefti_joint_line *line;
    double parts;
} axis_line;
enum { LINE_TENSOR, LINE_CONTEXT, LINE_EXPERT, LINE_AXES };

/* *out_legal false: for some axis nothing is known. Pointers to lines last until the next line is
 * made, so they are found twice: the second time all of them exist. */
static weft_status lines_of_axes(wefti_joint_branch *s, const wefti_degrees *d,
                                 const wefti_joint_line **one, axis_line axes[LINE_AXES],
                                 bool *out_legal) {
    for (int pass = 0; pass < 2; pass++) {
        wefti_degrees whole = wefti_degrees_none();
        whole.recompute = d->recompute;
        WEFT_TRY(wefti_joint_line_find(&s->j, &whole, one));
        *out_legal = (*one)->legal && is_even(s, d);
        for (int a = 0; a < LINE_AXES; a++) {
            wefti_degrees two = whole;
            const int32_t size = a == LINE_TENSOR    ? d->tensor
                                 : a == LINE_CONTEXT ? d->context
                                                     : d->expert;
            axes[a] = (axis_line){NULL, a == LINE_EXPERT ? 1 : 2};
            if (size == 1) continue;
            *(a == LINE_TENSOR ? &two.tensor : a == LINE_CONTEXT ? &two.context : &two.expert) = 2;
            two.sequence = a == LINE_TENSOR && d->sequence;
            WEFT_TRY(wefti_joint_line_find(&s->j, &two, &axes[a].line));
            if (!axes[a].line->legal || !is_even(s, &two)) axes[a].line = NULL;
            *out_legal = *out_legal && axes[a].line;
        }
    }
    return WEFT_OK;
}

/* The least seconds of the kernels of one pass of a call.
 *
 * A split keeps results that needed transfers, where one device computes them again. So its
 * backward pass may have fewer kernels than one device's. Whether a result needs a transfer depends
 * on the axes, not on their sizes: so two devices of each axis tell how much is kept. An axis of n
 * devices keeps as many FLOPs of products, m, as two devices have less than one. No kept product
 * takes more seconds than m times those of the dearest FLOP. The kept results of several axes are
 * at most all of them together.
 *
 * Of kernels that are no products, tensor parallelism divides a part, and the rest is on all
 * devices: o_1 = rest + part, o_2 = rest + part / 2. */
static double least_of_pass(const wefti_degrees *d, const wefti_joint_growth *one,
                            const wefti_joint_product_sum *products,
                            const wefti_joint_growth *two[LINE_AXES],
                            const axis_line axes[LINE_AXES], double samples) {
    const double parts = (double)d->tensor * d->context;
    double launches = one->fixed, others = one->others, rest = 0, kept = 0;
    for (int a = 0; a < LINE_AXES; a++) {
        if (!two[a]) continue;
        launches = wefti_smaller(launches, two[a]->fixed - two[a]->wait_fixed);
        others = wefti_smaller(others, axes[a].parts * two[a]->others);
        kept += wefti_larger(0, one->flops - axes[a].parts * two[a]->flops);
    }
    if (two[LINE_TENSOR])
        rest = wefti_smaller(others, wefti_larger(0, 2 * two[LINE_TENSOR]->others - one->others));
    const double of_products = products->seconds + samples * one->unknown / parts;
    const double dearest = wefti_larger(products->dearest, one->dearest / parts);
    return wefti_larger(0, launches) + samples / d->context * (rest + (others - rest) / d->tensor) +
           wefti_larger(0, of_products - samples * kept * dearest);
}

static weft_status add_kernels(wefti_joint_branch *s, const wefti_degrees *d,
                               const wefti_joint_line *one, const axis_line axes[LINE_AXES],
                               double samples, wefti_joint_call *calls) {
    const wefti_joint_product_sum(*products)[2];
    WEFT_TRY(wefti_joint_products_find(&s->j, d, one, samples, &products));
    for (int32_t k = 0; k < s->j.shape.calls; k++)
        for (int pass = 0; pass < 2; pass++) {
            const wefti_joint_growth *two[LINE_AXES];
            for (int a = 0; a < LINE_AXES; a++)
                two[a] = axes[a].line ? &axes[a].line->call[k][pass] : NULL;
            *(pass ? &calls[k].backward : &calls[k].forward) +=
                least_of_pass(d, &one->call[k][pass], &products[k][pass], two, axes, samples);
        }
    return WEFT_OK;
}

/* The least seconds of each call of the short model, for a microbatch of `samples` on each device;
 * wefti_free it. NULL: nothing is known. */
static weft_status least_calls(wefti_joint_branch *s, const wefti_degrees *d, double samples,
                               wefti_joint_about *about, wefti_joint_call **out) {
    const wefti_joint_line *one;
    axis_line axes[LINE_AXES];
    wefti_degrees plain = *d;
    bool legal;
    *out = NULL;
    WEFT_TRY(lines_of_axes(s, d, &one, axes, &legal));
    if (!one->legal) return WEFT_OK;
    about->work = one->fixed + samples * one->each / d->tensor / d->context;
    if (!legal) { /* what is recomputed is not known: nothing */
        plain.recompute = WEFT_RECOMPUTE_NONE;
        WEFT_TRY(lines_of_axes(s, &plain, &one, axes, &legal));
        if (!one->legal) return WEFT_OK;
        for (int a = 0; a < LINE_AXES && !is_even(s, d); a++) axes[a].line = NULL;
    }
    WEFT_NEW_ARRAY(*out, wefti_joint_call, s->j.shape.calls);
    weft_status status = add_kernels(s, d, one, axes, samples, *out);
    if (status >= 0) status = add_axes(s, d, samples, *out, about);
    if (status >= 0) return status;
    wefti_free(*out);
    *out = NULL;
    return status;
}

/* The same from the candidate's own line. */
static weft_status calls_of_line(const wefti_joint_branch *s, const wefti_joint_line *line,
                                 double samples, wefti_joint_call **out) {
    WEFT_NEW_ARRAY(*out, wefti_joint_call, s->j.shape.calls);
    for (int32_t k = 0; k < s->j.shape.calls; k++)
        for (int pass = 0; pass < 2; pass++) {
            const wefti_joint_growth *g = &line->call[k][pass];
            *(pass ? &(*out)[k].backward : &(*out)[k].forward) +=
                g->fixed + samples * (g->others + g->unknown) +
                growth_of_waits(samples, g->wait_each, g->wait_latency);
        }
    add_products(s, line, samples, *out);
    return WEFT_OK;
}

static double least_step(const wefti_joint_branch *s, const wefti_degrees *d,
                         const wefti_joint_call *calls, double boundary) {
    const wefti_joint_shape *shape = &s->j.shape;
    double sum = 0;
    for (int32_t k = 0; k < shape->calls; k++)
        sum += (calls[k].forward + calls[k].backward) * (k == shape->middle ? shape->copies : 1);
    const double even = filled(s, d, calls) * sum * d->microbatches / d->stages;
    const double stages = wefti_joint_least_step(&s->j, d, calls, boundary);
    return WEFTI_JOINT_ROUNDING * wefti_larger(even, stages);
}

/* About how many bytes the first stage needs, if stages are alike. `frame`: of one block. */
static double guess_bytes(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                          double kept, double frame, const wefti_joint_line *line) {
    const double mesh = (double)s->j.devices / d->stages;
    const double most = d->stages < d->microbatches ? d->stages : d->microbatches;
    const bool apart = wefti_schedule_splits(d->schedule);
    /* More microbatches are in flight than in 1f1b, or are kept for gradients of weights; what was
     * recomputed then as well. */
    const double waiting = 1 - 1.0 / d->stages;
    const double chunks = apart && d->chunks > 1 ? 1 + WEFTI_GUESS_CHUNKS_KEPT * waiting
                          : apart                ? 2
                          : d->schedule != WEFT_PIPELINE_INTERLEAVED ? 1
                          : d->microbatches > d->stages              ? 1 + 1.0 / d->chunks
                                                                     : 1;
    const bool all = apart && d->stages > 1 && d->recompute == WEFT_RECOMPUTE_FULL;
    const double recomputed = all ? frame * wefti_joint_calls(&s->j.shape) : 0;
    const bool several = d->stages > 1 || d->microbatches > 1;
    const double shared = line->whole_parameters / mesh;
    const double parameters = wefti_joint_offloads(&s->j, WEFT_OFFLOAD_PARAMETERS) ? 0
                              : level >= 3                                         ? shared
                                           : line->parameters;
    const double gradients = wefti_joint_offloads(&s->j, WEFT_OFFLOAD_GRADIENTS) ? 0
                             : level >= 2 ? line->whole_trained / mesh
                                          : line->trained;
    const double state = parameters + (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    /* Those of a single microbatch come as its blocks go. */
    const double flying = chunks * kept * most;
    const double held = several ? gradients + flying : wefti_larger(gradients, flying);
    const double gathered = level >= 2 ? 3 * line->parameters / wefti_joint_calls(&s->j.shape) : 0;
    return (state + held + recomputed) / d->stages + gathered + frame;
}

static double frame_of(const wefti_joint_line *line, double samples) {
    const double frame = line->frame[0] + (line->frame[1] - line->frame[0]) * (samples - 1);
    return frame > 0 ? frame : 0;
}

/* About how many bytes the level takes that needs least. */
double wefti_joint_least_of_levels(const wefti_joint_branch *s, const wefti_joint_line_bound *b) {
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    double least = INFINITY;
    for (int level = 0; level <= 3; level++)
        if ((fixed < 0 || fixed == level) && b->guess_bytes[level] < least)
            least = b->guess_bytes[level];
    return least;
}

/* In plans of published dense models, guesses of bytes are at most 8 % too small. They are at most
 * 23 % too large, if gradients of weights are apart and stages are few. With experts on ranks of tp
 * they leave out working memory of a call: 36 % of a small mixture with many samples. */
wefti_joint_fitting wefti_joint_fitting_of(const wefti_joint_branch *s, double about) {
    const double limit = (double)s->j.limit;
    return about <= WEFTI_GUESS_MARGIN * limit    ? WEFTI_JOINT_FITS
           : about <= WEFTI_GUESS_LARGEST * limit ? WEFTI_JOINT_TIGHT
                                                  : WEFTI_JOINT_TOO_LARGE;
}

/* Bytes that a sample keeps with tensor parallelism: a part is divided, the rest is on all devices.
 * Two devices tell which. */
static weft_status kept_of_tensor(wefti_joint_branch *s, const wefti_degrees *d, double *each) {
    wefti_degrees two = wefti_degrees_none();
    const wefti_joint_line *line;
    if (d->tensor == 1) return WEFT_OK;
    two.recompute = d->recompute;
    two.tensor = 2;
    two.sequence = d->sequence;
    WEFT_TRY(wefti_joint_line_find(&s->j, &two, &line));
    double whole = 2 * line->kept_each - *each;
    if (!line->legal || whole < 0) whole = 0;
    *each = whole + (*each - whole) / d->tensor;
    return WEFT_OK;
}

/* The bytes of a device, of `whole` ones. Experts lie whole on the ranks of ep, and of tp if their
 * number admits it; tp divides all others. `shared`: on one of `ranks` that divide experts. */
static double of_device(const wefti_joint_branch *s, const wefti_degrees *d, double whole,
                        double shared, int32_t ranks) {
    const weft_model_config *c = s->j.problem->source.config;
    const double experts = ranks > 1 ? (whole - shared) * ranks / (ranks - 1) : 0;
    const bool spread = ranks > 1 && wefti_degrees_spread_experts(c, d);
    return (whole - experts) / d->tensor + experts / d->expert / (spread ? d->tensor : 1);
}

/* Parameters and states on a device at level 0, at least. As few devices of ep as divide experts
 * equally tell how many bytes these have. */
static weft_status divide_state(wefti_joint_branch *s, const wefti_degrees *d,
                                wefti_joint_line *out) {
    const weft_model_config *c = s->j.problem->source.config;
    const wefti_joint_line none = {0}, *line = &none;
    wefti_degrees some = wefti_degrees_none();
    if (c && c->experts > 1 && d->tensor * d->expert > 1) {
        some.recompute = d->recompute;
        do some.expert++;
        while (c->experts % some.expert);
        WEFT_TRY(wefti_joint_line_find(&s->j, &some, &line));
    }
    /* Nothing is known of experts: as if all ranks divided everything. */
    const bool known = line->legal && line->parameters < out->whole_parameters;
    const int32_t ranks = known ? some.expert : 1, more = known ? 1 : d->expert;
    out->parameters = of_device(s, d, out->whole_parameters, line->parameters, ranks) / more;
    out->optimizer = of_device(s, d, out->whole_optimizer, line->optimizer, ranks) / more;
    out->trained = of_device(s, d, out->whole_trained, line->trained, ranks) / more;
    return WEFT_OK;
}

/* Two devices with a sample each tell how much working memory their samples take together. */
static weft_status frame_of_experts(wefti_joint_branch *s, const wefti_degrees *d, double samples,
                                    double *frame) {
    wefti_degrees two = wefti_degrees_none();
    const wefti_joint_line *line;
    two.recompute = d->recompute;
    two.expert = 2;
    WEFT_TRY(wefti_joint_line_find(&s->j, &two, &line));
    if (line->legal) *frame = frame_of(line, samples > 1 ? samples : 1) / d->tensor / d->context;
    return WEFT_OK;
}

/* ---- transfers between replicas ---- */

/* The devices of which each may hold another part of the states, if only some replicas share them;
 * 0: the space has no such plans. See space.c. */
static int32_t sharing_of_some(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int32_t per_host = wefti_model_per_host(s->j.problem->machine);
    const int32_t within = per_host / (d->expert * d->context * d->tensor);
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_SHARD];
    if (fixed >= 0) return fixed * d->tensor * d->expert;
    return within > 1 && within < d->data ? per_host : 0;
}

/* The least of all levels of the optimizer that may fit. */
static void bound_of_levels(const wefti_joint_branch *s, const wefti_degrees *d, double kept,
                            const wefti_joint_line *line, const wefti_joint_call *calls,
                            wefti_joint_line_bound *out) {
    const int32_t *fixed = s->j.problem->fix.value;
    const int32_t sharing = sharing_of_some(s, d);
    const bool moves = wefti_joint_offloads(&s->j, WEFT_OFFLOAD_PARAMETERS);
    const double state = (moves ? 0 : line->whole_parameters) + line->whole_optimizer;
    const bool chunks = d->stages > 1;
    double least = INFINITY;
    out->bytes = INFINITY;
    for (int level = 0; level <= 3; level++) {
        if (fixed[WEFTI_JOINT_LEVEL] >= 0 && fixed[WEFTI_JOINT_LEVEL] != level) continue;
        const double bytes = least_bytes(s, d, level, kept, line);
        const double shared = level == 3 ? state / sharing / d->stages : 0;
        if (bytes < out->bytes) out->bytes = bytes;
        if (bytes > (double)s->j.limit) continue;
        if (level == 0 || fixed[WEFTI_JOINT_SHARD] <= 0)
            least = wefti_smaller(
                least, wefti_joint_least_of_level(s, d, level, false, chunks, line, calls));
        if (level > 0 && sharing && shared <= (double)s->j.limit)
            least = wefti_smaller(
                least, wefti_joint_least_of_level(s, d, level, true, chunks, line, calls));
    }
    if (isfinite(least)) out->seconds = wefti_larger(out->seconds, least);
}

/* Without programs of its own. Kernels divide at best evenly. */
weft_status wefti_joint_coarse_bound(wefti_joint_branch *s, const wefti_degrees *d,
                                     wefti_joint_line_bound *out) {
    wefti_degrees whole = wefti_degrees_none();
    const wefti_joint_line *line;
    *out = (wefti_joint_line_bound){.legal = true, .seconds = products_bound(s, d)};
    const double products = wefti_joint_guess_products(s, d, out->seconds);
    out->about.work = products;
    whole.recompute = d->recompute;
    if (!s->j.scalable) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, &whole, &line));
    if (!line->legal) return WEFT_OK;
    const wefti_joint_line base = *line;
    const int32_t copies = s->j.problem->settings->copies;
    const double parts = (double)d->tensor * d->context, samples = busiest_samples(s, d);
    wefti_joint_call *calls;
    WEFT_TRY(least_calls(s, d, samples / d->microbatches / copies, &out->about, &calls));
    const double passes = (double)d->microbatches * copies / d->stages;
    out->about.work = wefti_larger(products, passes * out->about.work);
    out->about.further *= passes;
    const double boundary = base.boundary * samples / d->microbatches / copies / d->context /
                            (d->sequence ? d->tensor : 1);
    if (d->stages > 1) out->about.send = wefti_joint_least_send(&s->j, d, boundary);
    if (wefti_joint_alternates(&s->j)) {
        wefti_free(calls);
        calls = NULL;
    }
    if (calls) out->seconds = wefti_larger(out->seconds, least_step(s, d, calls, boundary));
    const double micro = samples / d->microbatches / copies;
    wefti_joint_line divided = {.whole_parameters = base.whole_parameters,
                                .whole_optimizer = base.whole_optimizer,
                                .whole_trained = base.whole_trained,
                                .shared_blocks = base.shared_blocks};
    double of_sample = base.kept_each, frame = frame_of(&base, micro >= 1 ? micro : 1) / parts;
    weft_status status = divide_state(s, d, &divided);
    if (status >= 0) status = kept_of_tensor(s, d, &of_sample);
    if (status >= 0 && d->expert > 1) status = frame_of_experts(s, d, micro, &frame);
    const double kept = micro >= 1 ? of_sample * micro / d->context : 0;
    if (status >= 0 && micro >= 1) bound_of_levels(s, d, kept, &divided, calls, out);
    wefti_free(calls);
    WEFT_TRY(status);
    for (int l = 0; l < 4; l++)
        out->guess_bytes[l] = guess_bytes(s, d, l, WEFTI_GUESS_KEPT * kept, frame, &divided);
    s->parameters = base.whole_parameters;
    s->tensors = base.tensors;
    s->tied = base.tied;
    return WEFT_OK;
}

/* Saves the programs of splits that are slow, and of microbatches that are far too large. */
weft_status wefti_joint_bound_of_line(wefti_joint_branch *s, const wefti_degrees *d,
                                      wefti_joint_line_bound *out) {
    const int32_t level = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    const wefti_joint_line *line;
    *out = (wefti_joint_line_bound){.legal = true};
    if (!has_line(s, d)) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, d, &line));
    out->legal = line->legal;
    if (!line->legal) return WEFT_OK;
    const double micro = samples_of(s, d);
    const double kept = line->kept_fixed + line->kept_each * micro;
    out->bytes = least_bytes(s, d, level < 0 ? 3 : level, kept, line);
    wefti_joint_call *calls;
    WEFT_TRY(calls_of_line(s, line, micro, &calls));
    out->seconds = least_step(s, d, calls, micro * line->boundary);
    wefti_free(calls);
    for (int l = 0; l < 4; l++)
        out->guess_bytes[l] =
            guess_bytes(s, d, l, WEFTI_GUESS_KEPT * kept, frame_of(line, micro), line);
    return WEFT_OK;
}

wefti_degrees wefti_joint_in_usual_order(const wefti_degrees *degrees) {
    wefti_degrees d = *degrees;
    for (int a = 0; a < 4; a++) d.order[a] = (int8_t)a;
    return d;
}

/* The least step of a candidate with the transfers between its replicas, before its state is known.
 */
weft_status wefti_joint_step_of_draft(wefti_joint_branch *s, const wefti_degrees *d,
                                      const wefti_joint_work *work, double *out) {
    wefti_degrees whole = wefti_degrees_none();
    const wefti_joint_line *line;
    *out = 0;
    whole.recompute = d->recompute;
    if (!s->j.scalable) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, &whole, &line));
    if (line->legal)
        *out = wefti_joint_least_of_level(s, d, d->level, d->shard > 0, d->chunks > 1, line,
                                          wefti_joint_alternates(&s->j) ? NULL : work->calls);
    return WEFT_OK;
}

/* The least bytes of a stage, and about how many, before its state is known. */
weft_status wefti_joint_bytes_of_draft(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_work *work, double *out,
                                       double *out_about) {
    const wefti_joint_shape *shape = &s->j.shape;
    const wefti_degrees usual = wefti_joint_in_usual_order(d);
    const wefti_joint_line *line;
    double kept = 0, frame = 0;
    *out = *out_about = 0;
    if (!has_line(s, &usual)) {
        wefti_joint_line_bound b;
        WEFT_TRY(wefti_joint_coarse_bound(s, d, &b));
        *out_about = b.guess_bytes[d->level];
        return WEFT_OK;
    }
    for (int32_t k = 0; k < shape->calls; k++) {
        if ((double)work->calls[k].frame > frame) frame = (double)work->calls[k].frame;
        kept +=
            wefti_joint_keeps(&s->j, &work->calls[k]) * (k == shape->middle ? shape->copies : 1);
    }
    WEFT_TRY(wefti_joint_line_find(&s->j, &usual, &line));
    if (!line->legal) return WEFT_OK;
    if (wefti_joint_outermost(d)) *out = least_bytes(s, d, d->level, kept, line);
    *out_about = guess_bytes(s, d, d->level, kept, frame, line);
    return WEFT_OK;
}
