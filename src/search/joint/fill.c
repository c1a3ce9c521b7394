/* The least step of stages, whatever the schedule, the chunks, and the division into stages.
 *
 * The calls of a model are some at the front, B equal blocks, and some behind them. A stage has
 * whole blocks. wefti_joint_divide fills P = stages x chunks parts in the order of the calls. Each
 * part but the first ones, which may hold the calls at the front, begins with a block, and
 *
 *     the first s parts hold at least (s - front) x max(1, floor(B / P)) blocks,
 *
 * or all of them. For: while parts end because the next block does not fit the limit, the work of a
 * part is more than limit - block >= (B / P - 1) blocks. From the part on at which as many calls as
 * parts are left, each part has one call, so all but P - s calls are in the first s parts. Both are
 * at least that many.
 *
 * The first chunk of stage s is part s in every schedule. So stage s begins when the first
 * microbatch has passed the first s parts, and, unless gradients of weights are apart, its last
 * microbatch has its backward pass through them behind it. With this delay of stage s, a step of T
 * seconds has room for
 *
 *     floor((T - delay) / (microbatches x block))
 *
 * blocks on stage s, less with the calls behind the blocks. The least T with room for all B blocks
 * is a bound. So is the T at which the sum of all delays and of all work fills all stages. */
#include <math.h>

#include "schedule/schedule.h"
#include "search/joint/parts.h"

enum { MOST_CHUNKS = 16, ROUNDS = 12 }; /* chunks: as in space.c */

typedef struct stages {
    int32_t stages, front, last; /* last: the stage of the calls behind the blocks */
    double blocks;
    double block, behind; /* seconds of all microbatches: in a block; in the calls behind them */
    double delay;         /* of each stage behind the calls at the front */
} stages;

static double larger(double a, double b) {
    return a > b ? a : b;
}
static double smaller(double a, double b) {
    return a < b ? a : b;
}

static double delay_of(const stages *x, int32_t stage) {
    return x->delay * larger(0, stage - x->front);
}

/* Whether the stages have room for all blocks. */
static bool has_room(const stages *x, double seconds) {
    double room = 0;
    for (int32_t s = 0; s < x->stages; s++) {
        const double left = seconds - delay_of(x, s) - (s == x->last ? x->behind : 0);
        if (left > 0) room += floor(left / x->block * (1 + 1e-9));
    }
    return room >= x->blocks;
}

/* `even`: the work of all microbatches on a stage, if it is divided in equal parts. */
static double least_of(const stages *x, double even) {
    double delays = 0;
    for (int32_t s = 0; s < x->stages; s++) delays += delay_of(x, s);
    double low = even + delays / x->stages, high = low + x->block + x->behind;
    if (!(x->block > 0) || has_room(x, low)) return low;
    for (int round = 0; round < ROUNDS; round++) {
        const double middle = (low + high) / 2;
        *(has_room(x, middle) ? &high : &low) = middle;
    }
    return low;
}

/* The blocks of the short model: one before the middle one, and one behind it. */
static bool has_blocks(const wefti_joint_shape *s) {
    return s->middle > 0 && s->middle + 1 < s->calls;
}

static bool admits(const wefti_joint *j, weft_schedule schedule) {
    const int32_t fixed = j->problem->fix.value[WEFTI_JOINT_SCHEDULE];
    return fixed < 0 || fixed == (int32_t)schedule;
}

/* With so many chunks; infinite if there is no such schedule. */
static double least_with(const wefti_joint *j, const wefti_degrees *d, weft_schedule schedule,
                         int32_t chunks, const wefti_joint_call *block, stages *x, double even) {
    const int32_t fixed = j->problem->fix.value[WEFTI_JOINT_CHUNKS];
    const int64_t parts = (int64_t)d->stages * chunks;
    if ((fixed >= 0 && fixed != chunks) || !admits(j, schedule) ||
        wefti_joint_calls(&j->shape) < parts)
        return INFINITY;
    if (schedule == WEFT_PIPELINE_INTERLEAVED &&
        (chunks < 2 || d->microbatches % d->stages != 0))
        return INFINITY;
    const double first = larger(1, floor(x->blocks / (double)parts));
    const bool apart = wefti_schedule_splits(schedule);
    int32_t chunk;
    wefti_schedule_place(schedule, d->stages, (int32_t)parts - 1, &x->last, &chunk);
    x->delay = first * (block->forward + (apart ? 0 : block->backward));
    return least_of(x, even);
}

/* The least seconds of a pass through a block. */
static wefti_joint_call block_of(const wefti_joint_shape *s, const wefti_joint_call *calls) {
    wefti_joint_call block = calls[s->middle];
    for (int32_t k = s->middle - 1; k <= s->middle + 1; k++) {
        block.forward = smaller(block.forward, calls[k].forward);
        block.backward = smaller(block.backward, calls[k].backward);
    }
    return block;
}

double wefti_joint_least_step(const wefti_joint *j, const wefti_degrees *d,
                              const wefti_joint_call *calls) {
    const wefti_joint_shape *shape = &j->shape;
    double sum = 0, behind = 0;
    for (int32_t k = 0; k < shape->calls; k++) {
        const double both = calls[k].forward + calls[k].backward;
        sum += both * (k == shape->middle ? shape->copies : 1);
        if (k > shape->middle + 1) behind += both;
    }
    const double even = sum * d->microbatches / d->stages;
    if (d->stages == 1 || !has_blocks(shape)) return even;
    const wefti_joint_call block = block_of(shape, calls);
    stages x = {.stages = d->stages,
                .front = shape->middle - 1,
                .blocks = shape->copies + 2,
                .block = d->microbatches * (block.forward + block.backward),
                .behind = d->microbatches * behind};
    /* Of interleaved schedules, the one with the most chunks has the least delay. */
    int32_t most = wefti_joint_calls(shape) / d->stages;
    if (most > MOST_CHUNKS) most = MOST_CHUNKS;
    if (j->problem->fix.value[WEFTI_JOINT_CHUNKS] > 0)
        most = j->problem->fix.value[WEFTI_JOINT_CHUNKS];
    double least = INFINITY;
    for (int32_t chunks = 1; chunks <= 2; chunks++)
        least = smaller(least,
                        least_with(j, d, WEFT_PIPELINE_ZERO_BUBBLE, chunks, &block, &x, even));
    least = smaller(least, least_with(j, d, WEFT_PIPELINE_INTERLEAVED, most, &block, &x, even));
    least = smaller(least, least_with(j, d, WEFT_PIPELINE_1F1B, 1, &block, &x, even));
    least = smaller(least, least_with(j, d, WEFT_PIPELINE_GPIPE, 1, &block, &x, even));
    return isfinite(least) ? least : even;
}
