/* Lower bounds of a candidate's step and memory.
 *
 * Time. A rank computes one kernel after another, and waits for each transfer within a call that
 * does not stay in flight. The sum of both, over all microbatches, bounds its step. Further bounds:
 *
 * - Transfers of one level follow each other on a rank. Their sum, without latencies, is a bound.
 *   Those of the backward pass begin behind the first forward pass.
 * - A stage begins when the stages before it have passed the first microbatch on, and when it is
 *   done with the last one, they still have its backward pass to do. In schedules with weights
 *   apart, only the first part is certain.
 * - What is posted behind the last backward call is exposed, but for the kernels behind it.
 * - A stage posts the receive of a value or gradient when it needs it, and waits for it at once. So
 *   each of them takes at least the time of the transfer, and no kernel hides it. Copies of
 *   microbatches are interleaved, so theirs do not count.
 *
 * Memory. Parameters, optimizer and gradients of a stage, and what its microbatches in flight have
 * saved. */
#include <math.h>
#include <string.h>

#include "schedule/schedule.h"
#include "search/joint/parts.h"

/* ---- stages ---- */

typedef struct divide {
    const wefti_joint_shape *shape;
    const wefti_joint_work *work;
    int32_t calls, parts;
} divide;

static double call_cost(const divide *d, int32_t call) {
    const wefti_joint_call *c = &d->work->calls[wefti_joint_short_call(d->shape, call)];
    return c->forward + c->backward;
}

/* Fills parts in order, up to the limit; each part has a call. Whether all calls have a part. */
static bool fill(const divide *d, double limit, int32_t *part_of) {
    double sum = 0;
    int32_t part = 0;
    for (int32_t k = 0, of_part = 0; k < d->calls; k++, of_part++) {
        const double cost = call_cost(d, k);
        const bool must = d->calls - k == d->parts - 1 - part && of_part;
        if (of_part && (must || sum + cost > limit)) {
            part++;
            sum = 0;
            of_part = 0;
        }
        if (part >= d->parts || (sum + cost > limit && !of_part)) return false;
        sum += cost;
        part_of[k] = part;
    }
    return part == d->parts - 1;
}

/* The user's rules, if they name the part of each call. */
static bool divide_by_rules(const wefti_joint *j, int32_t parts, int32_t *part_of) {
    const int32_t calls = wefti_joint_calls(&j->shape);
    bool whole = j->problem->settings->pipeline.rule_count > 0;
    for (int32_t k = 0; k < calls && whole; k++) {
        char name[256];
        part_of[k] =
            wefti_plan_stage(j->problem->settings, wefti_joint_call_name(&j->shape, k, name));
        whole = part_of[k] >= 0 && part_of[k] < parts;
    }
    return whole;
}

bool wefti_joint_divide(const wefti_joint *j, const wefti_joint_work *work, int32_t parts,
                        int32_t *part_of) {
    const divide d = {&j->shape, work, wefti_joint_calls(&j->shape), parts};
    double low = 0, high = 0;
    if (divide_by_rules(j, parts, part_of)) return true;
    if (d.calls < parts) return false;
    for (int32_t k = 0; k < d.calls; k++) high += call_cost(&d, k);
    high *= 1 + 1e-9;
    for (int round = 0; round < 50; round++) {
        const double middle = (low + high) / 2;
        *(fill(&d, middle, part_of) ? &high : &low) = middle;
    }
    return fill(&d, high, part_of);
}

/* ---- sums of a stage ---- */

typedef struct stage_sums {
    double forward, backward; /* of one microbatch, over all chunks */
    double fill, drain;       /* forward and backward of its first chunk */
    double receives;          /* waits for the results and gradients of other stages */
    double first_send;        /* from the stage before to its first chunk */
    double first_receive;     /* the same, if it counts as one of the receives */
    double blocks;            /* how many calls are middle blocks */
    double fixed, gradients, saved, frame;
} stage_sums;

static void add_call(const wefti_joint *j, const wefti_joint_work *work,
                     const wefti_joint_state *state, int32_t call, bool first_chunk,
                     stage_sums *s) {
    const int32_t k = wefti_joint_short_call(&j->shape, call);
    const wefti_joint_call *c = &work->calls[k];
    s->forward += c->forward;
    s->backward += c->backward;
    if (first_chunk) {
        s->fill += c->forward;
        s->drain += c->backward;
    }
    s->blocks += k == j->shape.middle ||
                 (j->shape.middle >= 0 && (k == j->shape.middle - 1 || k == j->shape.middle + 1));
    s->saved += wefti_joint_keeps(j, c);
    s->frame = (double)c->frame;
    if (!state) return;
    s->fixed += (double)(state->parameters[k] + state->optimizer[k]);
    s->gradients += (double)state->gradients[k];
}

/* Microbatches whose saved blocks lie in the memory of a stage at once, at least. */
static double in_flight(const wefti_degrees *d, int32_t stage) {
    if (d->stages == 1) return 1;
    if (d->schedule == WEFT_PIPELINE_GPIPE) return d->microbatches;
    const double ahead = d->stages - stage;
    return ahead < d->microbatches ? ahead : d->microbatches;
}

/* Gradients exist once the first backward pass has ended. If microbatches follow, as many as ever
 * are in flight beside them; else one less. Chunks of a single group of microbatches end one after
 * the other, so the last gradients come when the blocks of other chunks are gone. */
static double stage_bytes(const wefti_degrees *d, const stage_sums *s, int32_t stage) {
    /* With gradients of weights apart, a stage's second chunks may be done before the next
     * microbatch comes: only those of one microbatch certainly lie there together. */
    const double n = wefti_schedule_splits(d->schedule) ? 1 : in_flight(d, stage);
    const bool steady = d->microbatches > n && d->schedule != WEFT_PIPELINE_ZERO_BUBBLE;
    if (d->schedule == WEFT_PIPELINE_INTERLEAVED && d->microbatches <= d->stages)
        return s->fixed + wefti_larger(s->gradients, n * s->saved + s->frame);
    if (steady) return s->fixed + s->gradients + n * s->saved + s->frame;
    return s->fixed + wefti_larger(s->gradients + (n - 1) * s->saved, n * s->saved + s->frame);
}

static double send_at(const wefti_joint *j, const wefti_degrees *d, double boundary,
                      int32_t level) {
    const wefti_machine_model *m = j->problem->machine;
    const int32_t size = j->devices / d->stages;
    const int32_t block = level ? wefti_model_block(m, level - 1) : 1;
    const double sharing = block < size ? block : size;
    return m->level[level].latency_seconds.value +
           boundary * wefti_model_byte_seconds(m, level, level ? sharing : 1);
}

static int32_t level_between(const wefti_joint *j, const wefti_degrees *d, int32_t from,
                             int32_t to) {
    const int32_t size = j->devices / d->stages;
    return wefti_model_level_of(j->problem->machine, from * size, to * size);
}

double wefti_joint_send(const wefti_joint *j, const wefti_degrees *d, double bytes, int32_t from,
                        int32_t to) {
    return send_at(j, d, bytes, level_between(j, d, from, to));
}

/* The first devices of two stages; others with equal coordinates lie no nearer to each other than
 * those of the first two stages. */
double wefti_joint_least_send(const wefti_joint *j, const wefti_degrees *d, double boundary) {
    const int32_t from = level_between(j, d, 0, 1);
    double least = send_at(j, d, boundary, from);
    for (int32_t l = from + 1; l < j->problem->machine->level_count; l++)
        least = wefti_smaller(least, send_at(j, d, boundary, l));
    return least;
}

/* Part `part` begins behind the last call of the part before, whose result it receives. */
static void add_receives(const wefti_joint *j, const wefti_degrees *d, const wefti_joint_work *work,
                         const int32_t *part_of, stage_sums *stages) {
    const int32_t calls = wefti_joint_calls(&j->shape), middle = j->shape.middle;
    for (int32_t k = 0; k + 1 < calls; k++) {
        const int32_t of = wefti_joint_short_call(&j->shape, k);
        int32_t from, to, chunk;
        if (part_of[k] == part_of[k + 1]) continue;
        wefti_schedule_place(d->schedule, d->stages, part_of[k], &from, &chunk);
        wefti_schedule_place(d->schedule, d->stages, part_of[k + 1], &to, &chunk);
        if (from == to) continue;
        const double send = wefti_joint_send(j, d, (double)work->boundary, from, to);
        if (part_of[k + 1] < d->stages) stages[to].first_send = send;
        if (middle < 1 || of < middle - 1 || of > middle + 1) continue; /* no block */
        stages[to].receives += send;
        stages[from].receives += send;
        if (part_of[k + 1] < d->stages) stages[to].first_receive = send;
    }
}

static double of_rank(const wefti_joint_share *share, double blocks, bool alone) {
    return (alone ? share->all : 0) + blocks * share->of_block;
}

/* Update, transfers between replicas, and the busiest level: of all its transfers, of those that
 * are posted after the first backward call has begun, and of those in the last microbatch. */
typedef struct state_seconds {
    double update, waits, stream, late, last, tail;
} state_seconds;

static state_seconds state_of(const wefti_degrees *d, const wefti_joint_state *state,
                              double blocks) {
    state_seconds out = {0};
    const bool alone = d->stages == 1;
    if (!state) return out;
    const double times[3] = {1, d->microbatches > 2 ? d->microbatches - 2 : 0,
                             d->microbatches > 1 ? 1 : 0};
    const bool several = state->key.several;
    out.update = of_rank(&state->update, blocks, alone);
    for (int part = 0; part < 3; part++) {
        const double n = part == 2 && !several ? 1 : times[part];
        out.waits += n * of_rank(&state->waits[part], blocks, alone);
    }
    for (int l = 0; l < WEFTI_LEVELS_MAX; l++) {
        double busy = 0;
        for (int part = 0; part < 3; part++) {
            const double n = part == 2 ? 1 : times[part];
            busy += n * of_rank(&state->stream[part][l], blocks, alone);
        }
        out.stream = wefti_larger(out.stream, busy);
        out.late = wefti_larger(out.late, busy - of_rank(&state->early[l], blocks, true));
        if (several && d->microbatches > 1 && d->level < 2)
            out.last = wefti_larger(out.last, of_rank(&state->stream[2][l], blocks, alone));
    }
    if (alone) out.tail = wefti_larger(0, state->tail - blocks * state->update.of_block);
    return out;
}

static void add_stage(const wefti_joint *j, const wefti_degrees *d, const wefti_joint_state *state,
                      const stage_sums *stages, int32_t stage, wefti_joint_bound *out) {
    const stage_sums *s = &stages[stage];
    const double m = d->microbatches;
    const state_seconds x = state_of(d, state, s->blocks);
    double before = 0, behind = 0;
    for (int32_t i = 0; i < stage; i++) {
        before += stages[i].fill + stages[i + 1].first_send;
        behind += stages[i].drain + stages[i + 1].first_send;
    }
    if (wefti_schedule_splits(d->schedule)) behind = 0;
    const double receives = wefti_joint_alternates(j) ? 0 : s->receives;
    if (receives > 0) before -= s->first_receive; /* one of those that count for all microbatches */
    const double busy = m * (s->forward + s->backward + receives) + x.waits;
    double seconds = before + busy + wefti_larger(x.update + x.tail, stage ? behind : 0);
    seconds = wefti_larger(seconds, x.stream);
    /* The first backward call begins behind the first forward pass. */
    seconds = wefti_larger(seconds, before + s->fill + x.late);
    /* Gradients of all microbatches are complete behind the last ones of a chunk: replicas.c. */
    const double left = (d->chunks > 1 ? d->stages : 1) * s->backward;
    seconds = wefti_larger(seconds, before + m * (s->forward + s->backward) - left + x.last);
    out->seconds = wefti_larger(out->seconds, seconds);
    const double bytes = state && !wefti_joint_rules(j, d) ? stage_bytes(d, s, stage) : 0;
    if (bytes > out->bytes) {
        out->bytes = bytes;
        out->stage = stage;
    }
}

static weft_status sum_stages(const wefti_joint *j, const wefti_degrees *d,
                              const wefti_joint_work *work, const wefti_joint_state *state,
                              stage_sums *stages, int32_t *part_of, bool *out_divided) {
    const int32_t calls = wefti_joint_calls(&j->shape), parts = d->stages * d->chunks;
    *out_divided = true;
    if (parts == 1)
        memset(part_of, 0, (size_t)calls * sizeof *part_of);
    else
        *out_divided = wefti_joint_divide(j, work, parts, part_of);
    for (int32_t k = 0; *out_divided && k < calls; k++) {
        int32_t stage = 0, chunk = 0;
        if (parts > 1) wefti_schedule_place(d->schedule, d->stages, part_of[k], &stage, &chunk);
        add_call(j, work, state, k, chunk == 0, &stages[stage]);
    }
    if (*out_divided && d->stages > 1) add_receives(j, d, work, part_of, stages);
    return WEFT_OK;
}

weft_status wefti_joint_bound_of(const wefti_joint *j, const wefti_degrees *d,
                                 const wefti_joint_work *work, const wefti_joint_state *state,
                                 wefti_joint_bound *out) {
    stage_sums *stages;
    int32_t *part_of;
    bool divided;
    *out = (wefti_joint_bound){.seconds = INFINITY};
    WEFT_NEW_ARRAY(stages, stage_sums, d->stages);
    part_of = wefti_calloc((size_t)wefti_joint_calls(&j->shape) + 1, sizeof *part_of);
    if (!part_of) {
        wefti_free(stages);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a search");
    }
    weft_status status = sum_stages(j, d, work, state, stages, part_of, &divided);
    if (status >= 0 && divided) {
        out->seconds = 0;
        for (int32_t s = 0; s < d->stages; s++) add_stage(j, d, state, stages, s, out);
        out->seconds *= WEFTI_JOINT_ROUNDING;
    }
    wefti_free(part_of);
    wefti_free(stages);
    return status;
}
