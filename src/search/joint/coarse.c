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

/* A schedule of two chunks a stage begins stages behind the first chunks only. */
static bool begins_by_chunks(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int32_t *fixed = s->j.problem->fix.value;
    return wefti_joint_calls(&s->j.shape) >= 2 * (int64_t)d->stages &&
           fixed[WEFTI_JOINT_CHUNKS] != 1 &&
           (fixed[WEFTI_JOINT_SCHEDULE] < 0 ||
            fixed[WEFTI_JOINT_SCHEDULE] == (int32_t)WEFT_PIPELINE_ZERO_BUBBLE);
}

/* How much longer a step takes than all microbatches on stages of equal work, at least: a stage
 * begins behind the forward passes of those before it. A forward pass is at least a quarter of
 * both; a fifth leaves room. Of two alike chunks the first one is half of that. With stages that
 * begin after `part` of each earlier stage's microbatch, the step is least if stage s + 1 has (1 -
 * part / m) of the work of stage s. */
static double filled(const wefti_joint_branch *s, const wefti_degrees *d) {
    if (d->stages == 1 || d->microbatches % d->stages == 0) return 1;
    const double part = begins_by_chunks(s, d) ? 0.125 : 0.2, m = d->microbatches;
    const double longer = part / m * d->stages / (1 - pow(1 - part / m, d->stages));
    return longer > 1 ? longer : 1;
}

/* All devices compute products at the best rate. */
static double products_bound(const wefti_joint_branch *s, const wefti_degrees *d) {
    const double replicas = s->j.scalable ? (double)d->data * d->expert : 1;
    double work = s->ideal_forward + s->ideal_backward;
    if (d->recompute == WEFT_RECOMPUTE_FULL) work += s->ideal_forward * 0.9; /* the head is not */
    return filled(s, d) * busiest_samples(s, d) * replicas * work / s->j.devices;
}

weft_status wefti_joint_find_ideal(wefti_joint_branch *s) {
    if (!s->j.scalable) return WEFT_OK; /* 0 is a bound too */
    return wefti_joint_ideal(&s->j, &s->ideal_forward, &s->ideal_backward);
}

/* ---- bounds from lines ---- */

/* Whether lines say something about a candidate: replicas with whole samples, on the outermost axis
 * of the mesh. */
static bool has_line(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int64_t replicas = (int64_t)d->data * d->expert;
    return s->j.scalable && s->j.problem->source.batch % replicas == 0 && wefti_joint_outermost(d);
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
    const double state =
        (level >= 3 ? line->whole_parameters / mesh + gathered : line->parameters) +
        (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    double shares = 0;
    for (int32_t stage = 0; stage < d->stages; stage++)
        shares += 1.0 / (d->stages - stage < most ? d->stages - stage : most);
    const double bytes = (kept + state / most) / shares;
    return WEFTI_JOINT_ROUNDING * (bytes > state / d->stages ? bytes : state / d->stages);
}

/* ---- coarse bounds: from lines of one device and of two ---- */

typedef struct axes_sum {
    double fixed, each; /* seconds of a microbatch, of each sample in it */
    double further;     /* about how much longer each sample takes on the links of the axes */
} axes_sum;

/* How much longer transfers of `size` devices with a stride take than those of two neighbours,
 * about: a ring of g devices moves (g - 1) / g of the bytes twice. */
static double further_of(const wefti_machine_model *m, int32_t stride, int32_t size) {
    const int32_t level = wefti_model_level_of(m, 0, stride * size - 1);
    const int32_t block = level ? wefti_model_block(m, level - 1) : 1;
    const double slower =
        wefti_model_byte_seconds(m, level, block) / wefti_model_byte_seconds(m, 0, 1);
    const double longer = 2.0 * (size - 1) / size * slower - 1;
    return longer > 0 ? longer : 0;
}

/* Transfers of an axis take at least as long as those of two devices on the innermost links, since
 * more devices have no fewer bytes and latencies. `share`: the part of a sample's values that each
 * group of the axis has. */
static weft_status add_axis(wefti_joint_branch *s, const wefti_degrees *two, double share,
                            int32_t stride, int32_t size, axes_sum *sum) {
    const wefti_joint_line *line;
    WEFT_TRY(wefti_joint_line_find(&s->j, two, &line));
    if (!line->legal) return WEFT_OK;
    sum->fixed += line->wait_fixed;
    sum->each += line->wait_each * share;
    sum->further += line->wait_each * share * further_of(s->j.problem->machine, stride, size);
    return WEFT_OK;
}

static weft_status add_axes(wefti_joint_branch *s, const wefti_degrees *d, axes_sum *sum) {
    wefti_degrees two = wefti_degrees_none();
    two.recompute = d->recompute;
    if (!s->outwards) return WEFT_OK;
    if (d->tensor > 1) {
        two.tensor = 2;
        two.sequence = d->sequence;
        WEFT_TRY(add_axis(s, &two, 1.0 / d->context, 1, d->tensor, sum));
        two.tensor = 1;
        two.sequence = false;
    }
    if (d->context > 1) {
        two.context = 2;
        WEFT_TRY(add_axis(s, &two, 1.0 / d->tensor, d->tensor, d->context, sum));
        two.context = 1;
    }
    if (d->expert == 1) return WEFT_OK;
    two.expert = 2;
    const int32_t inner = d->tensor * d->context;
    return add_axis(s, &two, 1.0 / inner, inner, d->expert, sum);
}

/* About how many bytes the first stage needs, if stages are alike. `frame`: of one block. */
static double guess_bytes(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                          double kept, double frame, const wefti_joint_line *line) {
    const double mesh = (double)s->j.devices / d->stages;
    const double most = d->stages < d->microbatches ? d->stages : d->microbatches;
    const bool apart = wefti_schedule_splits(d->schedule);
    /* More microbatches are in flight than in 1f1b, or are kept for gradients of weights; what was
     * recomputed then as well. */
    const double chunks = apart                                      ? 2
                          : d->schedule == WEFT_PIPELINE_INTERLEAVED ? 1 + 1.0 / d->chunks
                                                                     : 1;
    const bool all = apart && d->stages > 1 && d->recompute == WEFT_RECOMPUTE_FULL;
    const double recomputed = all ? frame * wefti_joint_calls(&s->j.shape) : 0;
    const bool several = d->stages > 1 || d->microbatches > 1;
    const double shared = line->whole_parameters / mesh;
    const double parameters = level >= 3 ? shared : line->parameters;
    const double gradients = !several ? 0 : level >= 2 ? shared : line->parameters;
    const double state =
        parameters + gradients + (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    const double gathered = level >= 2 ? 3 * line->parameters / wefti_joint_calls(&s->j.shape) : 0;
    return (state + chunks * kept * most + recomputed) / d->stages + gathered + frame;
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

/* Whether about some level fits, with room for `WEFTI_JOINT_MARGIN`. */
bool wefti_joint_likely_fits(const wefti_joint_branch *s, const wefti_joint_line_bound *b) {
    return wefti_joint_least_of_levels(s, b) <= WEFTI_JOINT_MARGIN * (double)s->j.limit;
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

/* Without programs of its own. Kernels divide at best evenly. */
weft_status wefti_joint_coarse_bound(wefti_joint_branch *s, const wefti_degrees *d,
                                     wefti_joint_line_bound *out) {
    wefti_degrees whole = wefti_degrees_none();
    const wefti_joint_line *line;
    const int32_t level = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    *out = (wefti_joint_line_bound){.legal = true, .seconds = products_bound(s, d)};
    whole.recompute = d->recompute;
    if (!s->j.scalable) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, &whole, &line));
    if (!line->legal) return WEFT_OK;
    const double parts = (double)d->tensor * d->context;
    const double samples = busiest_samples(s, d);
    axes_sum sum = {.fixed = line->fixed, .each = line->each / parts};
    const wefti_joint_line base = *line;
    WEFT_TRY(add_axes(s, d, &sum));
    const double seconds = WEFTI_JOINT_ROUNDING * filled(s, d) *
                           (d->microbatches * sum.fixed + samples * sum.each) / d->stages;
    out->further = samples * sum.further / d->stages;
    if (seconds > out->seconds) out->seconds = seconds;
    const double micro = samples / d->microbatches / s->j.problem->settings->copies;
    const wefti_joint_line divided = {.parameters = base.whole_parameters / d->tensor / d->expert,
                                      .optimizer = base.whole_optimizer / d->tensor / d->expert,
                                      .whole_parameters = base.whole_parameters,
                                      .whole_optimizer = base.whole_optimizer};
    double of_sample = base.kept_each, frame = frame_of(&base, micro >= 1 ? micro : 1) / parts;
    WEFT_TRY(kept_of_tensor(s, d, &of_sample));
    if (d->expert > 1) WEFT_TRY(frame_of_experts(s, d, micro, &frame));
    const double kept = micro >= 1 ? 0.98 * of_sample * micro / d->context : 0;
    if (micro >= 1) out->bytes = least_bytes(s, d, level < 0 ? 3 : level, kept, &divided);
    for (int l = 0; l < 4; l++) out->guess_bytes[l] = guess_bytes(s, d, l, kept, frame, &divided);
    s->parameters = base.whole_parameters;
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
    const double micro = samples_of(s, d), samples = micro * d->microbatches;
    /* Little is the same for any size; its placement may differ. */
    const double kept = 0.98 * (line->kept_fixed + line->kept_each * micro);
    out->bytes = least_bytes(s, d, level < 0 ? 3 : level, kept, line);
    out->seconds = WEFTI_JOINT_ROUNDING * filled(s, d) *
                   (d->microbatches * line->fixed + samples * line->each) / d->stages;
    for (int l = 0; l < 4; l++)
        out->guess_bytes[l] = guess_bytes(s, d, l, kept, frame_of(line, micro), line);
    return WEFT_OK;
}

wefti_degrees wefti_joint_in_usual_order(const wefti_degrees *degrees) {
    wefti_degrees d = *degrees;
    for (int a = 0; a < 4; a++) d.order[a] = (int8_t)a;
    return d;
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
        kept += (double)(work->calls[k].saved + work->calls[k].kept) *
                (k == shape->middle ? shape->copies : 1);
    }
    WEFT_TRY(wefti_joint_line_find(&s->j, &usual, &line));
    if (!line->legal) return WEFT_OK;
    if (wefti_joint_outermost(d)) *out = least_bytes(s, d, d->level, kept, line);
    *out_about = guess_bytes(s, d, d->level, kept, frame, line);
    return WEFT_OK;
}
