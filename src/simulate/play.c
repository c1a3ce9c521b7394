/* The walk: ranks run in the order of their clocks. */
#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "simulate/parts.h"

/* ---- runnable players ---- */

static bool before(const wefti_sim *sim, const int32_t *a, const int32_t *b) {
    const int64_t x = sim->ranks[*a].now.at, y = sim->ranks[*b].now.at;
    return x != y ? x < y : *a < *b;
}
WEFTI_HEAP(runnable, int32_t, const wefti_sim *, before)

static void push_runnable(wefti_sim *sim, int32_t rank) {
    runnable_push(sim->heap, &sim->heaped, rank, sim);
}

/* ---- transfers that are ready ---- */

static wefti_sim_meeting *meeting_of(const wefti_sim_ready *x) {
    return &x->channel->open[x->number - x->channel->begin];
}

static int order(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* The order in which transfers start. Whatever it depends on is equal in all groups that walk
 * alike; transfers that it does not tell apart have no player in common. */
static bool starts_before(const void *none, const wefti_sim_ready *a, const wefti_sim_ready *b) {
    (void)none;
    const wefti_sim_meeting *x = meeting_of(a), *y = meeting_of(b);
    const wefti_sim_channel *c = a->channel, *d = b->channel;
    int by = order(x->when.at, y->when.at);
    if (!by) by = order(x->turn, y->turn);
    if (!by) by = (c->tag > d->tag) - (c->tag < d->tag);
    for (int32_t i = 0; !by && i < c->members && i < d->members; i++)
        by = order(c->players[i], d->players[i]);
    if (!by) by = order(a->number, b->number);
    return by < 0;
}

WEFTI_HEAP(ready, wefti_sim_ready, const void *, starts_before)

static weft_status push_ready(wefti_sim *sim, wefti_sim_channel *c, int64_t number) {
    WEFT_TRY(WEFT_GROW(sim->ready, sim->ready_count, sim->ready_capacity));
    ready_push(sim->ready, &sim->ready_count, (wefti_sim_ready){c, number}, NULL);
    return WEFT_OK;
}

/* ---- spans ---- */

typedef struct sim_place {
    wefti_span_track track;
    const wefti_step *step;
    const wefti_instruction *code;
    const wefti_transfer *transfer;
    int64_t begin, end;
} sim_place;

static weft_status emit(const wefti_sim *sim, const wefti_sim_rank *r, const sim_place *p) {
    if (!sim->options->span) return WEFT_OK;
    const wefti_sim_span span = {.rank = r->rank,
                                 .section = r->section,
                                 .number = r->at.step,
                                 .track = p->track,
                                 .begin = p->begin,
                                 .end = p->end,
                                 .step = p->step,
                                 .code = p->code,
                                 .transfer = p->transfer,
                                 .micro = wefti_cursor_micro(r->program, r->section, &r->at)};
    return sim->options->span(sim->options->context, &span);
}

/* ---- computing ---- */

static int cause_of_phase(wefti_phase phase) {
    return phase == WEFTI_FORWARD    ? WEFTI_CAUSE_FORWARD
           : phase == WEFTI_BACKWARD ? WEFTI_CAUSE_BACKWARD
           : phase == WEFTI_UPDATE   ? WEFTI_CAUSE_UPDATE
                                     : WEFTI_CAUSE_OTHER;
}

static weft_status compute(wefti_sim *sim, wefti_sim_rank *r, int cause, int64_t duration,
                           const sim_place *where) {
    if (r->slow != 1) duration = llround((double)duration * r->slow);
    const int64_t begin = wefti_sim_begin(sim, r, duration);
    const int64_t taken = begin + duration - r->now.at; /* with the wait for a processor */
    sim_place span = *where;
    span.track = WEFTI_SPAN_COMPUTE;
    span.begin = begin;
    r->now.at += taken;
    if (taken) r->turn = 0;
    r->now.cause[cause] += taken;
    r->time.cause[cause] += taken;
    span.end = r->now.at;
    sim->events++;
    return emit(sim, r, &span);
}

/* ---- transfers ---- */

static bool moved_in_waits(const wefti_sim *sim, const wefti_sim_channel *c) {
    return sim->options->machine->level[c->level].moved_in_waits;
}

static wefti_sim_lane lane_of(const wefti_sim_meeting *m) {
    return m->kind == WEFTI_TRANSFER_SEND ? WEFTI_SIM_MESSAGES : WEFTI_SIM_COLLECTIVES;
}

static void later(wefti_moment *moment, int kind, int64_t duration) {
    moment->at += duration;
    moment->cause[WEFTI_CAUSE_TRANSFER + kind] += duration;
}

/* When the members' streams are free. A message waits for other messages only. */
static wefti_moment free_at(const wefti_sim *sim, const wefti_sim_channel *c,
                            const wefti_sim_meeting *m) {
    const wefti_moment *latest = &m->when;
    for (int32_t i = 0; i < c->members; i++)
        for (int lane = (int)lane_of(m); lane < (int)WEFTI_SIM_LANES; lane++) {
            const wefti_moment *stream = &sim->ranks[c->players[i]].stream[c->level][lane];
            if (stream->at > latest->at) latest = stream;
        }
    return *latest;
}

/* How much longer a message takes because collectives are under way: both have half of the link
 * until one of them ends. The collectives' streams are free so much later. */
static int64_t share_link(const wefti_sim *sim, const wefti_sim_channel *c,
                          const wefti_sim_meeting *m) {
    int64_t most = 0;
    for (int32_t i = 0; i < c->members; i++) {
        wefti_moment *stream = &sim->ranks[c->players[i]].stream[c->level][WEFTI_SIM_COLLECTIVES];
        const int64_t left = stream->at - m->start,
                      shared = left < m->duration ? left : m->duration;
        if (shared <= 0) continue;
        later(stream, m->kind, shared);
        if (shared > most) most = shared;
    }
    return most;
}

/* If waits move the data, a transfer has no stream, and its moment stays that at which it was
 * ready. */
static void start(wefti_sim *sim, const wefti_sim_ready *ready) {
    wefti_sim_channel *c = ready->channel;
    wefti_sim_meeting *m = meeting_of(ready);
    const bool streams = !moved_in_waits(sim, c);
    if (streams) m->when = free_at(sim, c, m);
    m->start = m->when.at;
    if (streams && lane_of(m) == WEFTI_SIM_MESSAGES) m->duration += share_link(sim, c, m);
    if (streams) later(&m->when, m->kind, m->duration);
    for (int32_t i = 0; i < c->members; i++) {
        wefti_sim_rank *r = &sim->ranks[c->players[i]];
        if (streams) r->stream[c->level][lane_of(m)] = m->when;
        r->time.transfers[m->kind] += m->duration;
    }
    m->left = c->members;
    m->started = true;
    sim->events++;
    for (int32_t i = 0; i < c->members; i++) {
        if (!c->waiting[i]) continue;
        c->waiting[i] = false;
        sim->ranks[c->players[i]].blocked = false;
        push_runnable(sim, c->players[i]); /* its clock is still that of the wait */
    }
}

static void arrive(const wefti_sim_rank *r, const wefti_sim_end *end, wefti_sim_meeting *m) {
    const bool first = m->arrived == 0, same = r->now.at == m->when.at;
    if (first || r->now.at > m->when.at || (same && end->slot < m->by)) {
        m->by = end->slot;
        m->when = r->now;
        if (first || !same) m->turn = r->turn;
    }
    if (same && r->turn < m->turn) m->turn = r->turn;
    if (end->duration > m->duration) m->duration = end->duration;
    m->kind = end->kind;
    m->arrived++;
}

static weft_status post(wefti_sim *sim, wefti_sim_rank *r, int32_t index) {
    wefti_sim_end *end = &r->ends[index];
    wefti_sim_channel *c = end->channel;
    WEFT_REQUIRE(end->posted - end->waited < WEFTI_COMM_DEPTH, WEFT_E_MISMATCH,
                 "rank %d posts a transfer more often than may be under way", r->rank);
    int64_t number = c->posted[end->slot]++;
    end->at[end->posted % WEFTI_COMM_DEPTH] = r->now.at;
    end->number[end->posted++ % WEFTI_COMM_DEPTH] = number;
    if (number - c->begin == c->used) {
        WEFT_TRY(WEFT_GROW(c->open, c->used, c->capacity));
        c->open[c->used++] = (wefti_sim_meeting){0};
    }
    wefti_sim_meeting *m = &c->open[number - c->begin];
    arrive(r, end, m);
    r->turn++;
    return m->arrived == c->members ? push_ready(sim, c, number) : WEFT_OK;
}

/* Removes meetings that all members have waited for. */
static void shrink(wefti_sim_channel *c) {
    int64_t over = 0;
    while (over < c->used && c->open[over].started && c->open[over].left == 0) over++;
    if (over == 0) return;
    memmove(c->open, c->open + over, (size_t)(c->used - over) * sizeof *c->open);
    c->used -= over;
    c->begin += over;
}

/* The transfer has ended, or ends some time after the wait begins. */
static void end_wait(wefti_sim_rank *r, const wefti_sim_meeting *m) {
    if (m->when.at <= r->now.at) return;
    int64_t exposed = m->when.at - (m->start > r->now.at ? m->start : r->now.at);
    r->time.cause[WEFTI_CAUSE_TRANSFER + m->kind] += exposed;
    r->time.cause[WEFTI_CAUSE_IDLE] += m->when.at - r->now.at - exposed;
    r->now = m->when;
    r->turn = 0;
}

/* The rank moves its part itself, once all members have posted. False: it is ahead of others. */
static bool move_in_wait(wefti_sim *sim, wefti_sim_rank *r, const wefti_sim_meeting *m) {
    const int cause = WEFTI_CAUSE_TRANSFER + m->kind;
    if (m->when.at > r->now.at) {
        r->time.cause[WEFTI_CAUSE_IDLE] += m->when.at - r->now.at;
        r->now = m->when;
        r->turn = 0;
    }
    if (wefti_sim_is_ahead(sim, r)) return false;
    const int64_t taken = wefti_sim_begin(sim, r, m->duration) + m->duration - r->now.at;
    r->now.at += taken;
    r->now.cause[cause] += taken;
    r->time.cause[cause] += taken;
    if (taken) r->turn = 0;
    return true;
}

/* *out: false if the rank is blocked, or ahead of others. */
static weft_status wait(wefti_sim *sim, wefti_sim_rank *r, int32_t index, const sim_place *where,
                        bool *out) {
    wefti_sim_end *end = &r->ends[index];
    wefti_sim_channel *c = end->channel;
    WEFT_REQUIRE(end->posted != end->waited, WEFT_E_MISMATCH,
                 "rank %d waits for a transfer that it has not posted", r->rank);
    wefti_sim_meeting *m = &c->open[end->number[end->waited % WEFTI_COMM_DEPTH] - c->begin];
    if (!m->started) {
        c->waiting[end->slot] = true;
        r->blocked = true;
        *out = false;
        return WEFT_OK;
    }
    *out = true;
    if (moved_in_waits(sim, c))
        *out = move_in_wait(sim, r, m);
    else
        end_wait(r, m);
    if (!*out) return WEFT_OK;
    sim_place span = *where;
    span.track = WEFTI_SPAN_TRANSFER;
    span.begin = end->at[end->waited % WEFTI_COMM_DEPTH];
    span.end = r->now.at;
    end->waited++;
    m->left--;
    shrink(c);
    return emit(sim, r, &span);
}

/* ---- copies between spaces ---- */

static int cause_of_tier(wefti_space tier) {
    return tier == WEFTI_SPACE_DISK ? WEFTI_CAUSE_DISK : WEFTI_CAUSE_HOST;
}

static void wait_until(wefti_sim_rank *r, wefti_space tier, const wefti_moment *end) {
    if (end->at <= r->now.at) return;
    r->time.cause[cause_of_tier(tier)] += end->at - r->now.at;
    r->now = *end;
    r->turn = 0;
}

/* Copies of one tier run one after the other; those of two tiers at the same time. */
static weft_status post_copy(wefti_sim *sim, wefti_sim_rank *r, wefti_sim_copy *c) {
    wefti_moment *copied = &r->copied[c->tier];
    WEFT_REQUIRE(c->posted - c->waited < WEFTI_COMM_DEPTH, WEFT_E_MISMATCH,
                 "rank %d posts a copy more often than may be under way", r->rank);
    if (copied->at < r->now.at) *copied = r->now;
    copied->at += c->duration;
    copied->cause[cause_of_tier(c->tier)] += c->duration;
    c->end[c->posted++ % WEFTI_COMM_DEPTH] = *copied;
    sim->events++;
    if (wefti_tier_rates_of(sim->options->machine, c->tier)->spends_cores)
        wait_until(r, c->tier, copied);
    return WEFT_OK;
}

static weft_status wait_copy(wefti_sim_rank *r, wefti_sim_copy *c) {
    WEFT_REQUIRE(c->posted != c->waited, WEFT_E_MISMATCH,
                 "rank %d waits for a copy that it has not posted", r->rank);
    wait_until(r, c->tier, &c->end[c->waited++ % WEFTI_COMM_DEPTH]);
    return WEFT_OK;
}

/* ---- one rank ---- */

int32_t wefti_sim_runs(const wefti_sim *sim, const wefti_sim_rank *r, wefti_section section) {
    return wefti_program_runs(r->program, section, sim->options->microbatches);
}

/* Runs a call until it ends (*out true), or the rank is blocked or ahead of others. */
static weft_status play_call(wefti_sim *sim, wefti_sim_rank *r, const wefti_step *step, bool *out) {
    const wefti_routine *routine = step->routine;
    const wefti_partition *p = r->program->partition;
    const int64_t *duration = r->timing->of_step[r->section][r->at.step];
    *out = false;
    if (!r->entered) { /* first wait for the posts of the part before */
        r->code = step->from - step->waits;
        r->joined_end = step->from;
        r->entered = true;
    }
    for (; r->code < step->to; r->code++) {
        const wefti_instruction *x = &routine->code[r->code];
        sim_place where = {.step = step, .code = x};
        if (x->transfer < 0) {
            const int cause = x->node ? cause_of_phase(step->phase) : WEFTI_CAUSE_COPY;
            if (wefti_sim_is_ahead(sim, r)) return WEFT_OK;
            if (duration[r->code] || x->node)
                WEFT_TRY(compute(sim, r, cause, duration[r->code], &where));
            continue;
        }
        for (int32_t k = r->code; r->code >= r->joined_end; k++) {
            const wefti_instruction *next = &routine->code[k];
            WEFT_TRY(post(sim, r, next->transfer));
            bool stays = k + 1 == step->to && step->part + 1 < step->parts;
            if (!next->joined || stays) r->joined_end = k + 1;
        }
        if (r->code >= step->to - step->leaves) break; /* stay in flight */
        bool over;
        where.transfer = wefti_partition_transfer(p, x->transfer);
        WEFT_TRY(wait(sim, r, x->transfer, &where, &over));
        if (!over) return WEFT_OK;
    }
    r->entered = false;
    *out = true;
    return WEFT_OK;
}

static weft_status run_step(wefti_sim *sim, wefti_sim_rank *r, const wefti_step *step, bool *out) {
    sim_place where = {.step = step};
    *out = true;
    if (wefti_step_copy(r->program, step)) {
        wefti_sim_copy *c = &r->copies[step->move];
        return step->kind == WEFTI_STEP_POST ? post_copy(sim, r, c) : wait_copy(r, c);
    }
    switch (step->kind) {
    case WEFTI_STEP_CALL:
        return play_call(sim, r, step, out);
    case WEFTI_STEP_COPY:
        *out = !wefti_sim_is_ahead(sim, r);
        if (!*out) return WEFT_OK;
        return compute(
            sim, r, WEFTI_CAUSE_COPY,
            llround(wefti_copy_seconds(sim->options->machine, (double)wefti_copy_bytes(step)) /
                    WEFTI_PICOSECOND),
            &where);
    case WEFTI_STEP_LOSS:
        return WEFT_OK;
    case WEFTI_STEP_POST:
        return post(sim, r, wefti_step_transfer_of(r->program, step));
    case WEFTI_STEP_WAIT:
        break;
    }
    const int32_t index = wefti_step_transfer_of(r->program, step);
    where.transfer = wefti_partition_transfer(r->program->partition, index);
    return wait(sim, r, index, &where, out);
}

static weft_status play_step(wefti_sim *sim, wefti_sim_rank *r, const wefti_step *step, bool *out) {
    if (!r->in_step) r->began = r->now.at;
    r->in_step = true;
    WEFT_TRY(run_step(sim, r, step, out));
    if (!*out) return WEFT_OK;
    r->in_step = false;
    return emit(
        sim, r,
        &(sim_place){.track = WEFTI_SPAN_STEP, .step = step, .begin = r->began, .end = r->now.at});
}

/* Goes to the next section that runs; false: the step has ended. */
static bool next_section(wefti_sim *sim, wefti_sim_rank *r) {
    r->at = (wefti_cursor){0};
    if (++r->repeat < wefti_sim_runs(sim, r, r->section)) return true;
    r->repeat = 0;
    while (++r->section < WEFTI_SECTIONS)
        if (wefti_sim_runs(sim, r, r->section) > 0) return true;
    return false;
}

static weft_status play_rank(wefti_sim *sim, wefti_sim_rank *r) {
    const wefti_step *step;
    for (;;) {
        if (r->rank == sim->options->failing && r->now.at >= sim->fail_at) {
            r->failed = true;
            return WEFT_OK;
        }
        bool over, again = false;
        if (!(step = wefti_cursor_step(r->program, r->section, &r->at))) {
            again = r->section == WEFTI_SECTION_NEXT;
            r->done = !next_section(sim, r);
            if (r->done) return WEFT_OK;
        } else {
            WEFT_TRY(play_step(sim, r, step, &over));
            if (!over && !r->blocked)
                push_runnable(sim, (int32_t)(r - sim->ranks)); /* it is ahead */
            if (!over) return WEFT_OK;
            int32_t iteration = r->at.iteration;
            wefti_cursor_next(r->program, r->section, &r->at);
            again = r->at.iteration > iteration;
        }
        if (again) WEFT_TRY(wefti_sim_repeat_at(sim, r));
    }
}

enum { STEPS_UNASKED = 256 };

static weft_status go_on(const wefti_simulate_options *o, int64_t step) {
    WEFT_REQUIRE(!o->stop || step % STEPS_UNASKED || !o->stop(o->stop_context), WEFT_E_STOPPED,
                 "the walk of a plan was stopped");
    return WEFT_OK;
}

/* Ranks run until they are blocked. A transfer starts when no rank can post before it is ready. */
weft_status wefti_sim_play(wefti_sim *sim) {
    wefti_sim_repeat_begin(sim);
    for (int32_t i = 0; i < sim->count; i++) push_runnable(sim, i);
    for (int64_t step = 0; sim->heaped || sim->ready_count; step++) {
        WEFT_TRY(go_on(sim->options, step));
        const bool starts =
            sim->ready_count &&
            (!sim->heaped || meeting_of(&sim->ready[0])->when.at < sim->ranks[sim->heap[0]].now.at);
        if (starts) {
            const wefti_sim_ready ready = ready_pop(sim->ready, &sim->ready_count, NULL);
            start(sim, &ready);
        } else {
            WEFT_TRY(play_rank(sim, &sim->ranks[runnable_pop(sim->heap, &sim->heaped, sim)]));
        }
    }
    return WEFT_OK;
}
