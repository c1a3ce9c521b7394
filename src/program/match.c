/* Matching: ranks run the communication of their programs in turn. See program/match.h. */
#include "program/match_parts.h"

#include <string.h>

/* ---- equal transfers have one number ---- */

typedef struct wefti_match_kind {
    struct wefti_match_kind *next;
    uint64_t hash;
    const wefti_transfer *transfer;
    int32_t number, rank; /* rank: the first rank that has it */
} kind;

static void *make(wefti_match *m, int64_t count, size_t bytes) {
    return wefti_arena_alloc(m->arena, (size_t)(count + 1) * bytes);
}

static weft_status find_kind(wefti_match *m, const wefti_transfer *t, int32_t rank, int32_t *out) {
    uint64_t hash = m->classes ? wefti_match_form_digest(t) : wefti_transfer_digest(t);
    kind **at = &m->kinds[hash & (m->buckets - 1)];
    for (; *at; at = &(*at)->next)
        if ((*at)->hash == hash && (m->classes ? wefti_match_form_equal((*at)->transfer, t)
                                               : wefti_transfer_equal((*at)->transfer, t)))
            break;
    if (!*at) {
        kind *k = make(m, 1, sizeof *k);
        WEFT_REQUIRE(k, WEFT_E_NOMEM, "no memory to match programs");
        *k = (kind){NULL, hash, t, m->kind_count++, rank};
        *at = k;
    }
    *out = (*at)->number;
    return WEFT_OK;
}

weft_status wefti_match_channel_of(wefti_match *m, uint64_t hash, uint64_t tag, int32_t members,
                                   const int32_t *players, const struct wefti_match_group *group,
                                   wefti_match_channel **out) {
    size_t players_bytes = (size_t)members * sizeof *players;
    wefti_match_channel **at = &m->channels[hash & (m->buckets - 1)];
    for (; *at; at = &(*at)->next)
        if ((*at)->tag == tag && (*at)->members == members && (*at)->group == group &&
            !memcmp((*at)->ranks, players, players_bytes))
            break;
    if (!*at) {
        wefti_match_channel *c = make(m, 1, sizeof *c);
        int64_t *posted = make(m, members, sizeof *posted);
        bool *waiting = make(m, members, sizeof *waiting);
        WEFT_REQUIRE(c && posted && waiting, WEFT_E_NOMEM, "no memory to match programs");
        *c = (wefti_match_channel){.tag = tag,
                                   .members = members,
                                   .ranks = players,
                                   .group = group,
                                   .posted = posted,
                                   .waiting = waiting};
        *at = c;
    }
    *out = *at;
    return WEFT_OK;
}

static weft_status find_channel(wefti_match *m, const wefti_transfer *t, int32_t player,
                                wefti_match_end *end) {
    if (m->classes) return wefti_match_class_channel(m, t, player, end);
    end->slot = t->me;
    return wefti_match_channel_of(m, wefti_transfer_channel(t), t->tag, t->members, t->ranks, NULL,
                                  &end->channel);
}

/* Checks what matching itself relies on; wefti_transfer_check checks the rest later. */
static weft_status check_group(const wefti_match *m, const wefti_transfer *t, int32_t rank) {
    const int32_t ranks = m->classes ? m->classes->ranks : m->count;
    bool legal = t->members >= 1 && t->me >= 0 && t->me < t->members && t->ranks[t->me] == rank &&
                 t->rank >= 0 && t->rank <= WEFT_MAX_RANK &&
                 (unsigned)t->kind < WEFTI_TRANSFER_KINDS && (unsigned)t->dtype < WEFT_DTYPES;
    for (int32_t i = 0; legal && i < t->members; i++)
        legal = t->ranks[i] > (i ? t->ranks[i - 1] : -1) && t->ranks[i] < ranks;
    WEFT_REQUIRE_OF(rank, legal, WEFT_E_MISMATCH,
                    "rank %d: the transfer of '%s' is none of this rank, among ranks 0 to %d that "
                    "ascend",
                    rank, t->name ? t->name : "a value without a name", ranks - 1);
    return WEFT_OK;
}

static weft_status add_player(wefti_match *m, int32_t player) {
    wefti_match_rank *r = &m->ranks[player];
    const wefti_partition *p = r->program->partition;
    const int32_t rank = r->program->rank;
    WEFT_REQUIRE(m->classes ? m->classes->class_of[rank] == player : rank == player, WEFT_E_ARG,
                 "the program of rank %d is given for %s %d", rank, m->classes ? "class" : "rank",
                 player);
    r->count = p ? wefti_partition_transfers(p) : 0;
    r->ends = make(m, r->count, sizeof *r->ends);
    WEFT_REQUIRE(r->ends, WEFT_E_NOMEM, "no memory to match programs");
    for (int32_t i = 0; i < r->count; i++) {
        const wefti_transfer *t = wefti_partition_transfer(p, i);
        WEFT_TRY(check_group(m, t, rank));
        WEFT_TRY(find_channel(m, t, player, &r->ends[i]));
        WEFT_TRY(find_kind(m, t, rank, &r->ends[i].kind));
    }
    return WEFT_OK;
}

/* ---- meetings ---- */

static bool same_text(const char *a, const char *b) {
    return a == b || !strcmp(a ? a : "", b ? b : "");
}

static bool same_post(const wefti_match_side *a, const wefti_match_side *b) {
    const char *x = a->code ? a->code->node->scope : "", *y = b->code ? b->code->node->scope : "";
    return a->kind == b->kind && a->step->phase == b->step->phase && a->micro == b->micro &&
           same_text(a->step->name, b->step->name) && same_text(x, y);
}

/* Removes meetings that are over. */
static void shrink(wefti_match_channel *c) {
    int64_t over = c->complete - c->begin;
    if (over < c->used && over < 64) return;
    memmove(c->open, c->open + over, (size_t)(c->used - over) * sizeof *c->open);
    c->used -= over;
    c->begin = c->complete;
}

static void wake(wefti_match *m, wefti_match_channel *c) {
    for (int32_t i = 0; i < c->members; i++) {
        if (!c->waiting[i]) continue;
        c->waiting[i] = false;
        m->queue[m->queued++] = c->ranks[i];
    }
}

static int64_t place_of(const wefti_match_rank *r, const wefti_step *step, wefti_ref ref,
                        int64_t *out_stride) {
    *out_stride = 0;
    if (ref.arg == WEFTI_REF_NONE) return -1;
    if (ref.arg == WEFTI_REF_FRAME) return wefti_location_plus(step->frame, ref.offset).bits;
    if (step->strides) *out_stride = step->strides[ref.arg];
    return wefti_location_plus(wefti_cursor_arg(step, &r->at, ref.arg), ref.offset).bits;
}

/* Where the transfer of a step, or of an instruction of its routine, has its operand and its
 * result. */
static void find_places(const wefti_match_rank *r, const wefti_match_side *side,
                        wefti_match_post *out) {
    const wefti_instruction *x = side->code;
    wefti_ref ref[2] = {{.arg = 0}, {.arg = 1}};
    if (x) {
        ref[0] = x->node->inputs ? x->in[0] : (wefti_ref){.arg = WEFTI_REF_NONE};
        ref[1] = x->node->outputs ? x->out[0] : (wefti_ref){.arg = WEFTI_REF_NONE};
    }
    for (int i = 0; i < 2; i++) out->place[i] = place_of(r, side->step, ref[i], &out->stride[i]);
}

static weft_status post(wefti_match *m, wefti_match_rank *r, int32_t index,
                        const wefti_match_side *side) {
    wefti_match_end *end = &r->ends[index];
    wefti_match_channel *c = end->channel;
    if (end->posted - end->waited == WEFTI_COMM_DEPTH)
        return wefti_match_wrong(m, side, "is posted once more than may be under way");
    int64_t number = c->posted[end->slot]++;
    wefti_match_post *in_flight = &end->in_flight[end->posted++ % WEFTI_COMM_DEPTH];
    in_flight->number = number;
    find_places(r, side, in_flight);
    end->last = *side;
    r->under_way++;
    if (number - c->begin == c->used) {
        WEFT_TRY(WEFT_GROW(c->open, c->used, c->capacity));
        c->open[c->used++] = (wefti_meeting){*side, 0};
    }
    wefti_meeting *meeting = &c->open[number - c->begin];
    if (!same_post(&meeting->first, side)) return wefti_match_differ(m, &meeting->first, side);
    if (++meeting->arrived < c->members) return WEFT_OK;
    c->complete++;
    shrink(c);
    wake(m, c);
    return WEFT_OK;
}

static weft_status wait(wefti_match *m, wefti_match_rank *r, int32_t index,
                        const wefti_match_side *side) {
    wefti_match_end *end = &r->ends[index];
    if (end->posted == end->waited)
        return wefti_match_wrong(m, side, "is waited for but was not posted");
    const wefti_match_post *oldest = wefti_match_oldest(end);
    wefti_match_post own;
    find_places(r, side, &own);
    if (memcmp(own.place, oldest->place, sizeof own.place) != 0)
        return wefti_match_wrong(m, side, "is waited for, but the wait ends an older post");
    r->blocked = end->channel->complete <= oldest->number;
    if (r->blocked) {
        end->channel->waiting[end->slot] = true;
        r->waits = *side;
        return WEFT_OK;
    }
    end->waited++;
    r->under_way--;
    return WEFT_OK;
}

/* ---- one rank, until it is blocked or at its end ---- */

static weft_status side_of(const wefti_match_rank *r, const wefti_step *step, int32_t micro,
                           const wefti_instruction *code, int64_t index, wefti_match_side *out) {
    WEFT_REQUIRE(index >= 0 && index < r->count, WEFT_E_MISMATCH,
                 "rank %d, step '%s': transfer number %lld does not exist; the program has %d",
                 r->program->rank, step->name, (long long)index, r->count);
    *out = (wefti_match_side){r->program,
                              step,
                              code,
                              wefti_partition_transfer(r->program->partition, (int32_t)index),
                              r->ends[index].kind,
                              micro};
    return WEFT_OK;
}

static bool all_transfers(const wefti_instruction *code, int32_t from, int32_t to) {
    for (int32_t k = from; k < to; k++)
        if (code[k].transfer < 0) return false;
    return true;
}

/* Checks that a part begins and ends where the call does, or behind transfers that are in flight
 * then. */
static bool is_part(const wefti_step *step) {
    const wefti_instruction *code = step->routine->code;
    int32_t from = step->from, to = step->to, count = step->routine->code_count;
    bool first = step->part == 0, last = step->part + 1 == step->parts;
    if (from < 0 || from > to || to > count || step->part < 0 || step->part >= step->parts)
        return false;
    if (first ? from != 0 || step->waits : step->waits < 1 || step->waits > from) return false;
    if (last ? to != count || step->leaves : step->leaves < 1 || step->leaves > to - from)
        return false;
    return all_transfers(code, from - step->waits, from) &&
           all_transfers(code, to - step->leaves, to);
}

static weft_status play_call(wefti_match *m, wefti_match_rank *r, const wefti_step *step,
                             int32_t micro) {
    const wefti_routine *routine = step->routine;
    wefti_match_side side;
    WEFT_REQUIRE(is_part(step), WEFT_E_MISMATCH,
                 "rank %d, step '%s': part %d of %d of the call does not exist", r->program->rank,
                 step->name, step->part + 1, step->parts);
    if (!r->entered) { /* first wait for the posts of the part before */
        r->code = step->from - step->waits;
        r->joined_end = step->from;
        r->entered = true;
    }
    for (; r->code < step->to; r->code++) {
        const wefti_instruction *x = &routine->code[r->code];
        if (x->transfer < 0) continue;
        for (int32_t k = r->code; r->code >= r->joined_end; k++) {
            const wefti_instruction *next = &routine->code[k];
            WEFT_REQUIRE(
                k < step->to && next->transfer >= 0, WEFT_E_MISMATCH,
                "rank %d, step '%s': a transfer is joined with an instruction that is no transfer",
                r->program->rank, step->name);
            WEFT_TRY(side_of(r, step, micro, next, next->transfer, &side));
            WEFT_TRY(post(m, r, next->transfer, &side));
            bool stays = k + 1 == step->to && step->part + 1 < step->parts;
            if (!next->joined || stays) r->joined_end = k + 1;
        }
        if (r->code >= step->to - step->leaves) break; /* stay in flight */
        WEFT_TRY(side_of(r, step, micro, x, x->transfer, &side));
        WEFT_TRY(wait(m, r, x->transfer, &side));
        if (r->blocked) return WEFT_OK;
    }
    r->entered = false;
    return WEFT_OK;
}

static weft_status play_step(wefti_match *m, wefti_match_rank *r, const wefti_step *step) {
    wefti_match_side side;
    int32_t micro = wefti_cursor_micro(r->program, m->section, &r->at);
    if (step->kind == WEFTI_STEP_CALL) return play_call(m, r, step, micro);
    if (step->kind != WEFTI_STEP_POST && step->kind != WEFTI_STEP_WAIT) return WEFT_OK;
    if (wefti_step_copy(r->program, step)) return WEFT_OK;
    const int32_t index = wefti_step_transfer_of(r->program, step);
    WEFT_TRY(side_of(r, step, micro, NULL, index, &side));
    return step->kind == WEFTI_STEP_POST ? post(m, r, index, &side) : wait(m, r, index, &side);
}

static weft_status play_rank(wefti_match *m, wefti_match_rank *r) {
    const wefti_step *step;
    while ((step = wefti_cursor_step(r->program, m->section, &r->at))) {
        WEFT_TRY(play_step(m, r, step));
        if (r->blocked) return WEFT_OK;
        int32_t iteration = r->at.iteration;
        wefti_cursor_next(r->program, m->section, &r->at);
        if (r->at.iteration > iteration) wefti_match_repeat_at(m, r);
    }
    for (int32_t i = 0; r->under_way && i < r->count; i++)
        if (r->ends[i].posted != r->ends[i].waited)
            return wefti_match_wrong(m, &r->ends[i].last, "is posted but never waited for");
    return WEFT_OK;
}

static weft_status play_section(wefti_match *m) {
    int32_t blocked = 0;
    wefti_match_repeat_begin(m);
    for (int32_t i = 0; i < m->count; i++) {
        m->ranks[i].at = (wefti_cursor){0};
        m->ranks[i].entered = false;
        m->queue[m->queued++] = m->count - 1 - i;
    }
    while (m->queued) {
        wefti_match_rank *r = &m->ranks[m->queue[--m->queued]];
        WEFT_TRY(play_rank(m, r));
    }
    for (int32_t i = 0; i < m->count; i++) blocked += m->ranks[i].blocked;
    return blocked ? wefti_match_stuck(m) : WEFT_OK;
}

/* ---- checks of single programs ---- */

static weft_status check_legal(const wefti_match *m) {
    for (uint64_t b = 0; b < m->buckets; b++)
        for (const kind *k = m->kinds[b]; k; k = k->next) {
            weft_status status = wefti_transfer_check(k->transfer);
            if (status == WEFT_E_NOMEM) return status;
            if (status < 0) return wefti_name_rank(WEFT_E_MISMATCH, k->rank);
        }
    return WEFT_OK;
}

static bool fits(const weft_desc *desc, const wefti_transfer *t, const wefti_region *box) {
    int64_t elems = wefti_region_elems(box, t->rank);
    return desc ? weft_desc_elems(desc) == elems && (elems == 0 || desc->dtype == t->dtype)
                : elems == 0;
}

/* Checks that a routine's operands and results of a transfer have the sizes that the transfer
 * moves. */
static weft_status check_operands(const wefti_match *m, const wefti_match_rank *r) {
    for (int32_t i = 0; i < r->program->routine_count; i++) {
        const wefti_routine *routine = r->program->routines[i];
        for (int32_t k = 0; k < routine->code_count; k++) {
            const wefti_instruction *x = &routine->code[k];
            if (x->transfer < 0) continue;
            wefti_step step = {.name = routine->body->name, .routine = routine};
            wefti_match_side side;
            WEFT_TRY(side_of(r, &step, 0, x, x->transfer, &side));
            const wefti_transfer *t = side.transfer;
            if (!fits(x->node->inputs ? wefti_in(x->node, 0) : NULL, t, &t->have[t->me]) ||
                !fits(x->node->outputs ? wefti_out(x->node, 0) : NULL, t, &t->want[t->me]))
                return wefti_match_wrong(m, &side, "does not fit its operands");
        }
    }
    return WEFT_OK;
}

static weft_status match(wefti_match *m, const wefti_program *const *programs) {
    static const wefti_section sections[] = {WEFTI_SECTION_FIRST, WEFTI_SECTION_NEXT,
                                             WEFTI_SECTION_LAST, WEFTI_SECTION_NORM,
                                             WEFTI_SECTION_UPDATE};
    int64_t transfers = 0;
    for (int32_t i = 0; i < m->count; i++) WEFT_TRY(wefti_match_moves(m, programs[i]));
    for (int32_t i = 0; i < m->count; i++)
        if (programs[i]->partition) transfers += wefti_partition_transfers(programs[i]->partition);
    if (transfers == 0) return WEFT_OK;
    for (m->buckets = 64; m->buckets < (uint64_t)transfers; m->buckets *= 2) continue;
    m->ranks = make(m, m->count, sizeof *m->ranks);
    m->queue = make(m, m->count, sizeof *m->queue);
    m->channels = make(m, (int64_t)m->buckets, sizeof(wefti_match_channel *));
    m->kinds = make(m, (int64_t)m->buckets, sizeof(kind *));
    WEFT_REQUIRE(m->ranks && m->queue && m->channels && m->kinds, WEFT_E_NOMEM,
                 "no memory to match programs");
    for (int32_t i = 0; i < m->count; i++) m->ranks[i].program = programs[i];
    for (int32_t i = 0; i < m->count; i++) WEFT_TRY(add_player(m, i));
    for (int s = 0; s < (int)(sizeof sections / sizeof *sections); s++) {
        m->section = sections[s];
        WEFT_TRY(play_section(m));
    }
    WEFT_TRY(check_legal(m));
    for (int32_t i = 0; i < m->count; i++) WEFT_TRY(check_operands(m, &m->ranks[i]));
    return WEFT_OK;
}

static weft_status run(wefti_match *m, const wefti_program *const *programs) {
    WEFT_TRY(wefti_arena_create(&m->arena));
    weft_status status = match(m, programs);
    for (uint64_t b = 0; m->channels && b < m->buckets; b++)
        for (wefti_match_channel *c = m->channels[b]; c; c = c->next) wefti_free(c->open);
    wefti_arena_destroy(m->arena);
    return status;
}

weft_status wefti_programs_match(const wefti_program *const *programs, int32_t count) {
    wefti_match m = {.count = count};
    return run(&m, programs);
}

weft_status wefti_classes_match(const wefti_match_classes *classes) {
    wefti_match m = {.count = classes->count, .classes = classes};
    return run(&m, classes->programs);
}
