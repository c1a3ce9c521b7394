/* Guesses: about how long a candidate takes, to find good plans early. They decide the order only:
 * no candidate is left out for its guess. */
#include "cost/cost.h"
#include "search/joint/branch.h"

/* Blocks of each level in a block of the next one, of all replicas. Those that do not divide
 * equally: as many of a host as there is room for. */
static void levels_of_replicas(const wefti_joint *j, const wefti_degrees *d, int32_t replicas,
                               int32_t per_level[WEFTI_LEVELS_MAX]) {
    const wefti_machine_model *m = j->problem->machine;
    const int32_t stride = d->order[3] == 3 ? d->tensor : 1;
    const int32_t host = wefti_model_per_host(m), room = host > stride ? host / stride : 1;
    const int32_t within = replicas < room ? replicas : room;
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

double wefti_joint_guess_bubble(const wefti_joint *j, const wefti_degrees *d, double work) {
    enum { CHUNKS = 4 }; /* with more of them, more messages make up for the shorter bubble */
    const int32_t room = wefti_joint_calls(&j->shape) / d->stages;
    const int32_t chunks = d->microbatches % d->stages ? 1 : room < CHUNKS ? room : CHUNKS;
    if (d->stages == 1) return 0;
    return work * (d->stages - 1) / d->microbatches / (chunks > 1 ? chunks : 1);
}

/* The head is not recomputed. */
double wefti_joint_guess_products(const wefti_joint_branch *s, const wefti_degrees *d,
                                  double products) {
    const double both = s->ideal_forward + s->ideal_backward;
    if (d->recompute != WEFT_RECOMPUTE_FULL || !(both > 0)) return products;
    return products * (1 + WEFTI_GUESS_RECOMPUTED * s->ideal_forward / both);
}

/* Stages begin behind a part of those before them. Of two alike chunks, that is half as much. */
double wefti_joint_guess_work(const wefti_joint_branch *s, const wefti_degrees *d, double work) {
    const int32_t *fixed = s->j.problem->fix.value;
    const bool chunks = wefti_joint_calls(&s->j.shape) >= 2 * (int64_t)d->stages &&
                        fixed[WEFTI_JOINT_CHUNKS] != 1 &&
                        (fixed[WEFTI_JOINT_SCHEDULE] < 0 ||
                         fixed[WEFTI_JOINT_SCHEDULE] == (int32_t)WEFT_PIPELINE_ZERO_BUBBLE);
    const double part =
        (chunks ? WEFTI_GUESS_CHUNK_DELAY : WEFTI_GUESS_STAGE_DELAY) / d->microbatches;
    if (d->stages == 1 || d->microbatches % d->stages == 0) return work;
    return work * wefti_larger(1, part * d->stages / (1 - pow(1 - part, d->stages)));
}
