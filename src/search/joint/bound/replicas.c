/* Transfers between replicas without programs: the least step of a level of the optimizer.
 *
 * Each trained parameter, split over tp, is summed on all replicas. A stage has m microbatches. G
 * is an all-gather of the parameter's bytes, R an all-reduce. The links between replicas carry
 * this:
 *
 *     level 0    R                     the gradient, behind the last microbatch
 *     level 1    2 G                   reduce-scatter, update, gather: the same
 *     level 2    (m + 1) G             a reduce-scatter for each microbatch
 *     level 3    3 m G                 gathers for both passes, and a reduce-scatter, each time
 *
 * If the replicas of a host share the states, gradients are summed over hosts: R at level 1, m R at
 * levels 2 and 3; if other replicas do, R at least. There, only the outermost links count, which an
 * element passes no less often than in a collective over all replicas. Levels 2 and 3 count m times
 * for parameters of blocks only, and not for those below the threshold.
 *
 * Transfers of a level of links follow each other, so their sum is a bound. At levels 0 and 1 they
 * begin behind the first backward call of the last microbatch. A stage has done all other tasks by
 * then, but for the last backward tasks of its other chunks: at most as many as stages.
 *
 * All of it counts for the average stage: the device with the most bytes has no fewer. */
#include "search/joint/branch.h"

/* Seconds of a collective of one byte on all replicas. `outermost`: at the outermost level of links
 * only, where an element has gone through the levels within. False: not known. */
static bool seconds_of(const wefti_joint_branch *s, const wefti_degrees *d,
                       wefti_transfer_kind kind, bool outermost, double *out) {
    const wefti_machine_model *m = &s->j.instant;
    const bool equal = d->context == 1 || d->order[0] == d->order[1] || d->order[3] == 3;
    const int32_t inner = d->context == 1 ? wefti_joint_stride_of(d, 0) : d->tensor;
    const wefti_joint_axis all = {equal ? inner : 1, d->data * d->context, 1};
    int32_t per_level[WEFTI_LEVELS_MAX], within = 1, top = 0;
    if (!wefti_joint_levels_of(m, &all, per_level)) return false;
    for (int32_t l = 0; l < m->level_count; l++)
        if (per_level[l] > 1) top = l;
    for (int32_t l = 0; outermost && l < top; l++) {
        within *= per_level[l];
        per_level[l] = 1;
    }
    *out = wefti_collective_seconds(m, kind, 1.0 / within, per_level,
                                    (wefti_active){0, s->j.devices / d->stages});
    return true;
}

/* Whether nothing but degrees decides about the transfers. Experts on split sequences may compute
 * whole sums themselves. */
static bool is_plain(const wefti_joint_branch *s, const wefti_degrees *d) {
    const weft_plan *settings = s->j.problem->settings;
    const weft_model_config *c = s->j.problem->source.config;
    return s->outwards && c && d->data * d->context > 1 && d->expert == 1 &&
           (d->context == 1 || !c->experts) && settings->copies == 1 && !settings->strategy_count &&
           !settings->tensor_count;
}

/* Whether the replicas that share states, if not all do, are those of a host. */
static bool by_hosts(const wefti_joint_branch *s, const wefti_degrees *d) {
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_SHARD];
    const int32_t shard = d->shard > 0 ? d->shard : fixed;
    const int32_t inner = d->expert * d->context * d->tensor;
    return shard < 1 || (shard > 1 && shard * inner == wefti_model_per_host(s->j.problem->machine));
}

/* Seconds in which the links between replicas are busy on the average stage. */
static double busy_seconds(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                           bool some_share, const wefti_joint_line *line) {
    const bool outermost = some_share || d->context > 1;
    const double m = d->microbatches, parts = (double)d->tensor * d->stages;
    const double all = line->whole_trained / parts, each = line->shared_blocks / parts;
    double gather, reduce;
    if (!is_plain(s, d) || !seconds_of(s, d, WEFTI_TRANSFER_ALL_GATHER, outermost, &gather) ||
        !seconds_of(s, d, WEFTI_TRANSFER_ALL_REDUCE, outermost, &reduce))
        return 0;
    if (level == 0) return reduce * all;
    if (some_share) return reduce * (level == 1 || !by_hosts(s, d) ? all : all + (m - 1) * each);
    return gather * (level == 1   ? 2 * all
                     : level == 2 ? 2 * all + (m - 1) * each
                                  : 2 * all + (3 * m - 2) * each);
}

double wefti_joint_least_of_level(const wefti_joint_branch *s, const wefti_degrees *d, int level,
                                  bool some_share, bool chunks, const wefti_joint_line *line,
                                  const wefti_joint_call *calls) {
    const wefti_joint_shape *shape = &s->j.shape;
    const double busy = busy_seconds(s, d, level, some_share, line);
    double both = 0, backward = 0;
    if (level >= 2 || !calls) return WEFTI_JOINT_ROUNDING * busy;
    for (int32_t k = 0; k < shape->calls; k++) {
        const double times = k == shape->middle ? shape->copies : 1;
        both += times * (calls[k].forward + calls[k].backward);
        backward += times * calls[k].backward;
    }
    const double before = d->microbatches * both - (chunks ? d->stages : 1) * backward;
    return WEFTI_JOINT_ROUNDING * (wefti_larger(0, before / d->stages) + busy);
}
