/* The least step of stages, whatever the schedule, the chunks, and the division into stages.
 *
 * The calls of a model are some at the front, B equal blocks, and some behind them. A stage has
 * whole blocks. wefti_joint_divide fills P = stages x chunks parts in the order of the calls. The
 * first parts may hold the calls at the front. Each other part begins with a block. The first s
 * parts hold all blocks, or at least
 *
 *     (s - front) x max(1, floor(B / P)).
 *
 * The reason: while parts end because the next block does not fit the limit, the work of a
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
 * is a bound. So is the T at which the sum of all delays and of all work fills all stages.
 *
 * A stage waits for each value and gradient of another stage at least as long as the transfer takes
 * (stages.c). These waits need room too. How many bytes pass is known if a block has made the
 * value: if it is none of the first values, nor of those between calls behind the blocks. */
#include <math.h>

#include "schedule/schedule.h"
#include "search/joint/parts.h"

enum { MOST_CHUNKS = 16, ROUNDS = 12, REMEMBERED = 128 }; /* chunks: as in space.c */

typedef struct stages {
    weft_schedule schedule;
    int32_t stages, parts, front, last; /* last: the stage of the calls behind the blocks */
    int32_t after;                      /* number of calls behind the blocks */
    double microbatches, blocks;
    double block, behind; /* seconds of all microbatches: in a block; in the calls behind them */
    double delay;         /* of each stage behind the calls at the front */
    double send;          /* of a block's result to another stage */
    double waits[REMEMBERED]; /* of the first stages: see waits_of */
} stages;

static int32_t stage_of(const stages *x, int32_t part) {
    int32_t stage, chunk;
    wefti_schedule_place(x->schedule, x->stages, part, &stage, &chunk);
    return stage;
}

/* The end of an edge from this part to the next one, if it lies on the stage. */
static int32_t has_end(const stages *x, int32_t part, int32_t stage) {
    const int32_t from = stage_of(x, part), to = stage_of(x, part + 1);
    return from != to && (from == stage || to == stage);
}

/* How many transfers of known size a stage receives for each microbatch: a value at the beginning
 * of each part, and a gradient at its end. */
static int32_t receives_of(const stages *x, int32_t stage) {
    const int32_t chunks = x->parts / x->stages, behind = x->parts - x->after;
    const bool first = stage == 0, last = stage == x->stages - 1;
    const bool turns = wefti_schedule_splits(x->schedule) && chunks == 2;
    int32_t count = 2 * chunks - (turns ? 2 * (first || last) : first + last);
    for (int32_t k = 0; k < x->front && k + 1 < x->parts; k++) count -= has_end(x, k, stage);
    for (int32_t k = behind > x->front ? behind : x->front; k + 1 < x->parts; k++)
        count -= has_end(x, k, stage);
    return count > 0 ? count : 0;
}

/* What a stage waits for: the stages before it, and the receives of all microbatches. The first
 * receive is one of these. */
static double find_waits(const stages *x, int32_t stage) {
    const bool apart = wefti_schedule_splits(x->schedule);
    const int32_t known = stage < x->parts - x->after ? stage : x->parts - x->after;
    const double sends = known > x->front ? known - x->front : 0;
    const double of_sends = wefti_larger(0, sends - 1) + (apart ? 0 : sends);
    return x->delay * wefti_larger(0, stage - x->front) +
           x->send * (of_sends + x->microbatches * receives_of(x, stage));
}

static double waits_of(const stages *x, int32_t stage) {
    return stage < REMEMBERED ? x->waits[stage] : find_waits(x, stage);
}

/* Whether the stages have room for all blocks. */
static bool has_room(const stages *x, double seconds) {
    double room = 0;
    for (int32_t s = 0; s < x->stages; s++) {
        const double left = seconds - waits_of(x, s) - (s == x->last ? x->behind : 0);
        if (left > 0) room += floor(left / x->block * (1 + 1e-9));
    }
    return room >= x->blocks;
}

/* `even`: the work of all microbatches on a stage, if it is divided in equal parts. */
static double evenly(const stages *x, double even) {
    double waits = 0;
    for (int32_t s = 0; s < x->stages; s++) waits += waits_of(x, s);
    return even + waits / x->stages;
}

static double least_of(const stages *x, double even) {
    double low = evenly(x, even), high = low + x->block + x->behind;
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

/* With so many chunks; infinite if there is no such schedule, or if it takes `most` or more. */
static double least_with(const wefti_joint *j, const wefti_degrees *d, weft_schedule schedule,
                         int32_t chunks, const wefti_joint_call *block, stages *x, double even,
                         double most) {
    const int32_t fixed = j->problem->fix.value[WEFTI_JOINT_CHUNKS];
    const int64_t parts = (int64_t)d->stages * chunks;
    if ((fixed >= 0 && fixed != chunks) || !admits(j, schedule) ||
        wefti_joint_calls(&j->shape) < parts)
        return INFINITY;
    if (schedule == WEFT_PIPELINE_INTERLEAVED && (chunks < 2 || d->microbatches % d->stages != 0))
        return INFINITY;
    const double first = wefti_larger(1, floor(x->blocks / (double)parts));
    const bool apart = wefti_schedule_splits(schedule);
    x->schedule = schedule;
    x->parts = (int32_t)parts;
    x->last = stage_of(x, x->parts - 1);
    x->delay = first * (block->forward + (apart ? 0 : block->backward));
    for (int32_t s = 0; s < x->stages && s < REMEMBERED; s++) x->waits[s] = find_waits(x, s);
    return evenly(x, even) < most ? least_of(x, even) : INFINITY;
}

/* The least seconds of a pass through a block. */
static wefti_joint_call block_of(const wefti_joint_shape *s, const wefti_joint_call *calls) {
    wefti_joint_call block = calls[s->middle];
    for (int32_t k = s->middle - 1; k <= s->middle + 1; k++) {
        block.forward = wefti_smaller(block.forward, calls[k].forward);
        block.backward = wefti_smaller(block.backward, calls[k].backward);
    }
    return block;
}

double wefti_joint_least_step(const wefti_joint *j, const wefti_degrees *d,
                              const wefti_joint_call *calls, double boundary) {
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
                .after = shape->calls - shape->middle - 2,
                .microbatches = d->microbatches,
                .blocks = shape->copies + 2,
                .block = d->microbatches * (block.forward + block.backward),
                .behind = d->microbatches * behind,
                .send = wefti_joint_least_send(j, d, boundary)};
    static const struct {
        weft_schedule schedule;
        int32_t least, most;
    } all[] = {{WEFT_PIPELINE_ZERO_BUBBLE, 1, 2},
               {WEFT_PIPELINE_1F1B, 1, 1},
               {WEFT_PIPELINE_GPIPE, 1, 1},
               {WEFT_PIPELINE_INTERLEAVED, 2, MOST_CHUNKS}};
    double least = INFINITY;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int32_t chunks = all[i].least; chunks <= all[i].most; chunks++)
            least = wefti_smaller(
                least, least_with(j, d, all[i].schedule, chunks, &block, &x, even, least));
    return isfinite(least) ? least : even;
}
