/* Guesses: about how long a candidate takes, to find good plans early. They decide the order only:
 * no candidate is left out for its guess. */
#include "cost/cost.h"
#include "schedule/schedule.h"
#include "search/joint/branch.h"

/* Replicas whose axes have the tensors between them: each axis has links of its own. */
static bool levels_of_axes(const wefti_joint *j, const wefti_degrees *d,
                           int32_t per_level[WEFTI_LEVELS_MAX]) {
    const wefti_machine_model *m = j->problem->machine;
    const int32_t sizes[] = {d->data, d->expert, d->context};
    for (int32_t l = 0; l < m->level_count; l++) per_level[l] = 1;
    for (int a = 0; a < 3; a++) {
        int32_t of_axis[WEFTI_LEVELS_MAX];
        const wefti_joint_axis axis = {wefti_joint_stride_of(d, a), sizes[a], 1};
        if (!wefti_joint_levels_of(m, &axis, of_axis)) return false;
        for (int32_t l = 0; l < m->level_count; l++) per_level[l] *= of_axis[l];
    }
    return true;
}

/* Blocks of each level in a block of the next one, of all replicas. Those that do not divide
 * equally: as many of a host as there is room for. */
static void levels_of_replicas(const wefti_joint *j, const wefti_degrees *d, int32_t replicas,
                               int32_t per_level[WEFTI_LEVELS_MAX]) {
    const wefti_machine_model *m = j->problem->machine;
    const int32_t stride = d->order[3] == 3 ? d->tensor : 1;
    const int32_t host = wefti_model_per_host(m), room = host > stride ? host / stride : 1;
    const int32_t within = replicas < room ? replicas : room;
    if (d->order[3] != 3 && d->tensor > 1 && levels_of_axes(j, d, per_level)) return;
    if (wefti_joint_levels_of(m, &(wefti_joint_axis){stride, replicas, 1}, per_level)) return;
    for (int32_t l = 0; l < m->level_count; l++) per_level[l] = 1;
    per_level[m->host_level] = within;
    per_level[m->level_count - 1] *= replicas / within;
}

/* An all-reduce of this part of the gradients on each stage. `bytes`: of the whole model's. */
static double reduction(const wefti_joint *j, const wefti_degrees *d, double bytes) {
    const int32_t replicas = d->data * d->context * d->expert, mesh = j->devices / d->stages;
    int32_t per_level[WEFTI_LEVELS_MAX] = {0};
    if (replicas == 1) return 0;
    levels_of_replicas(j, d, replicas, per_level);
    return wefti_collective_seconds(j->problem->machine, WEFTI_TRANSFER_ALL_REDUCE,
                                    bytes / d->tensor / d->expert / d->stages, per_level,
                                    (wefti_active){0, mesh});
}

/* Kernels of the update: gradients, parameters and their states are read and written. */
static double update_of(const wefti_joint_branch *s, const wefti_degrees *d, int level) {
    enum { TIMES = 8 };
    const wefti_device_model *device = &s->j.problem->machine->device;
    const int32_t sharing = level ? d->data * d->context : 1;
    return TIMES * s->parameters / d->tensor / d->expert / d->stages / sharing /
               device->memory_bytes_per_second.value +
           WEFTI_GUESS_UPDATE_KERNELS * device->launch_seconds.value * s->tensors / d->stages;
}

/* From level 1 on, each parameter has transfers of its own, and each transfer has a latency.
 * Level 1 scatters and gathers once. Level 2 scatters in each microbatch and gathers once. Level 3
 * gathers twice and scatters once in each microbatch. */
static double latencies_of(const wefti_joint_branch *s, const wefti_degrees *d, int level) {
    const double m = d->microbatches;
    const double times[] = {0, 1, 0.5 * (m + 1), 1.5 * m}; /* in all-reduces */
    return times[level] * reduction(&s->j, d, 0) * s->tensors / d->stages;
}

double wefti_joint_guess_exposed(const wefti_joint_branch *s, const wefti_degrees *d, double work,
                                 int level) {
    const double all = reduction(&s->j, d, s->parameters), m = d->microbatches;
    const double state = update_of(s, d, level) + latencies_of(s, d, level);
    const double backward = WEFTI_GUESS_BACKWARD * work / m; /* of the last microbatch */
    /* Each microbatch gathers parameters twice and reduces gradients once: half as much each. About
     * half of it finds kernels to hide behind; less of what follows the last microbatch does. */
    if (level >= 3)
        return state + (d->context > 1 ? WEFTI_GUESS_SPLIT_CONTEXT : 1) *
                           (WEFTI_GUESS_OF_MICROBATCH * all * m +
                            wefti_larger(0, WEFTI_GUESS_MOVED * all * m - work));
    /* Nor does a microbatch's part of level 2, if it is summed over split sequences. */
    const double each = d->context > 1 ? WEFTI_GUESS_LEVEL_2_CONTEXT : WEFTI_GUESS_LEVEL_2;
    return state + WEFTI_GUESS_BEHIND * all + wefti_larger(0, WEFTI_GUESS_BESIDE * all - backward) +
           (level == 2 ? each * all * (m - 1) : 0);
}

/* The part of a stage's microbatch that the stages behind it wait for, and that it waits for in
 * turn. A pass has three kinds of products with the same FLOPs: forward, gradients of activations,
 * and gradients of weights. Full recomputation adds the forward ones to the second kind. So each
 * kind is a third of the work, or a quarter.
 *
 * gpipe and 1f1b: a stage begins behind the forward pass of those before it, and ends before their
 * backward pass. So it waits for the whole microbatch. Interleaved: the largest chunk of it, of
 * whole blocks.
 * Zero bubble: gradients of weights fill as much time, and F + B - W remains (Qi et al., 2024,
 * table 1). With two chunks it is F + B - 2 W, and the stages begin behind the forward pass
 * of one chunk. */
static double waited_for(const wefti_joint *j, const wefti_degrees *d) {
    const double kind = d->recompute == WEFT_RECOMPUTE_FULL ? 1.0 / 4 : 1.0 / 3;
    const double left = (1 - kind) - kind; /* F + B - W */
    const double blocks = j->shape.middle < 0 ? j->shape.calls : j->shape.copies + 2;
    const double largest = ceil(blocks / d->stages / d->chunks) * d->stages / blocks;
    if (d->schedule == WEFT_PIPELINE_ZERO_BUBBLE)
        return d->chunks == 1 ? left : left - kind + kind * largest;
    return d->chunks == 1 ? 1 : largest;
}

/* An embedding may be the head too: its first and its last reader each have a gradient. An
 * all-reduce of two stages moves as many bytes as a message. From level 1 on, replicas have shared
 * the gradient before. */
double wefti_joint_guess_tied(const wefti_joint_branch *s, const wefti_degrees *d) {
    const double sharing = d->level ? d->data * d->context * d->expert : 1;
    int32_t first, last, chunk;
    if (d->stages == 1 || !(s->tied > 0)) return 0;
    wefti_schedule_place(d->schedule, d->stages, 0, &first, &chunk);
    wefti_schedule_place(d->schedule, d->stages, d->stages * d->chunks - 1, &last, &chunk);
    return first == last ? 0
                         : wefti_joint_send(&s->j, d, s->tied / d->tensor / sharing, first, last);
}

/* A stage waits at once for each value and each gradient, of each chunk. */
double wefti_joint_guess_stages(const wefti_joint_branch *s, const wefti_degrees *d,
                                const wefti_joint_about *about) {
    const double work = about->work + about->further;
    if (d->stages == 1) return 0;
    return work / d->microbatches * (d->stages - 1) * waited_for(&s->j, d) +
           2.0 * d->chunks * d->microbatches * about->send + wefti_joint_guess_tied(s, d);
}

typedef struct least_stages {
    const wefti_joint_branch *s;
    const wefti_joint_about *about;
    double seconds;
} least_stages;

static weft_status take_order(void *context, const wefti_degrees *d) {
    least_stages *x = context;
    x->seconds = wefti_smaller(x->seconds, wefti_joint_guess_stages(x->s, d, x->about));
    return WEFT_OK;
}

weft_status wefti_joint_guess_least_stages(const wefti_joint_branch *s, const wefti_degrees *split,
                                           const wefti_joint_about *about, double *out) {
    least_stages x = {s, about, INFINITY};
    const weft_status status =
        wefti_joint_orders(&s->j, split, &(wefti_joint_visit){&x, take_order});
    *out = x.seconds;
    return status;
}

/* The head is not recomputed. */
double wefti_joint_guess_products(const wefti_joint_branch *s, const wefti_degrees *d,
                                  double products) {
    const double both = s->ideal_forward + s->ideal_backward;
    if (d->recompute != WEFT_RECOMPUTE_FULL || !(both > 0)) return products;
    return products * (1 + WEFTI_GUESS_RECOMPUTED * s->ideal_forward / both);
}
