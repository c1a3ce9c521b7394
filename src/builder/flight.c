/* The table of moves in flight: see builder/flight.h. */
#include <string.h>

#include "builder/build.h"

static weft_status add(wefti_emitter *b, const wefti_flight *f) {
    WEFT_TRY(WEFT_GROW(b->flights, b->flight_count, b->flight_cap));
    b->flights[b->flight_count++] = *f;
    return WEFT_OK;
}

/* Adds the POST or WAIT of a move, and advances the time. */
static weft_status move_step(wefti_emitter *b, wefti_section s, wefti_step_kind kind,
                             const wefti_flight *f) {
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, kind, WEFTI_OTHER, wefti_build_name(b, "", f->name),
                               f->rows ? 3 : 2, &d));
    if (f->rows) wefti_build_arg(b, d, 2, f->named.buffer, f->named.delta);
    if (f->source.buffer >= 0) wefti_build_arg(b, d, 0, f->source.buffer, f->source.delta);
    if (f->destination.buffer >= 0)
        wefti_build_arg(b, d, 1, f->destination.buffer, f->destination.delta);
    d->step.move = f->move;
    b->now++;
    return WEFT_OK;
}

static weft_status add_move(wefti_emitter *b, wefti_program_move move, int32_t *out) {
    int64_t count = b->p->move_count;
    WEFT_TRY(WEFT_GROW(b->p->moves, count, b->move_cap));
    b->p->moves[count] = move;
    *out = b->p->move_count++;
    return WEFT_OK;
}

/* The number of a transfer among the program's moves. */
static weft_status find_move(wefti_emitter *b, int32_t transfer, int32_t *out) {
    while (b->transfer_moves <= transfer) {
        WEFT_TRY(WEFT_GROW(b->transfer_move, b->transfer_moves, b->transfer_move_cap));
        b->transfer_move[b->transfer_moves++] = -1;
    }
    if (b->transfer_move[transfer] < 0)
        WEFT_TRY(add_move(b, (wefti_program_move){.way = WEFTI_WAY_RANKS, .transfer = transfer},
                          &b->transfer_move[transfer]));
    *out = b->transfer_move[transfer];
    return WEFT_OK;
}

weft_status wefti_flight_post(wefti_emitter *b, wefti_section s, wefti_flight f, int32_t transfer) {
    if (!f.name) f.name = wefti_partition_transfer(b->part, transfer)->name;
    WEFT_TRY(find_move(b, transfer, &f.move));
    WEFT_TRY(move_step(b, s, WEFTI_STEP_POST, &f));
    return add(b, &f);
}

weft_status wefti_flight_rows(wefti_emitter *b, wefti_section s, wefti_flight f, int64_t vocab,
                              int32_t *move) {
    return wefti_flight_copy(b, s, f, (f.rows < vocab ? f.rows : vocab) * f.row_bytes, move);
}

weft_status wefti_flight_copy(wefti_emitter *b, wefti_section s, wefti_flight f, int64_t bytes,
                              int32_t *move) {
    const wefti_program_move copy = {.way = WEFTI_WAY_SPACES,
                                     .transfer = -1,
                                     .bytes = bytes,
                                     .rows = f.rows,
                                     .row_bytes = f.row_bytes,
                                     .looks_up = f.looks_up};
    if (*move < 0) WEFT_TRY(add_move(b, copy, move));
    f.move = *move;
    WEFT_TRY(move_step(b, s, WEFTI_STEP_POST, &f));
    return add(b, &f);
}

weft_status wefti_flight_leave(wefti_emitter *b, wefti_section s, wefti_flight f, int32_t to,
                               int32_t leaves) {
    wefti_draft_step *d = &b->steps[s][b->step_count[s] - 1], *kept;
    if (leaves) {
        d->step.to = to;
        d->step.leaves = leaves;
        d->step.parts = 2;
    }
    WEFT_TRY(wefti_new_array(b->scratch, 1, sizeof *kept, &kept));
    *kept = *d;
    f.move = f.source.buffer = f.destination.buffer = -1;
    f.name = kept->step.name;
    f.call = kept;
    return add(b, &f);
}

/* The second part of a call. */
static weft_status second_part(wefti_emitter *b, wefti_section s, const wefti_draft_step *first) {
    const wefti_step *x = &first->step;
    wefti_draft_step *d;
    if (x->leaves == 0) return WEFT_OK;
    WEFT_TRY(wefti_build_begin(b, s, WEFTI_STEP_CALL, x->phase, x->name, first->arg_count, &d));
    for (int32_t a = 0; a < first->arg_count; a++)
        wefti_build_arg(b, d, a, first->args[a].buffer, first->args[a].delta);
    wefti_buffer_use(b, first->frame);
    d->frame = first->frame;
    d->step.routine = x->routine;
    d->step.stream = x->stream;
    d->step.micro = x->micro;
    d->step.from = x->to;
    d->step.to = x->routine->code_count;
    d->step.waits = x->leaves;
    d->step.part = 1;
    d->step.parts = 2;
    b->now++;
    return WEFT_OK;
}

weft_status wefti_flight_wait(wefti_emitter *b, wefti_section s, int32_t i) {
    const wefti_flight f = b->flights[i];
    b->flight_count--;
    memmove(b->flights + i, b->flights + i + 1, (size_t)(b->flight_count - i) * sizeof *b->flights);
    return f.call ? second_part(b, s, f.call) : move_step(b, s, WEFTI_STEP_WAIT, &f);
}

weft_status wefti_flight_now(wefti_emitter *b, wefti_section s, int32_t transfer, int32_t source,
                             int32_t destination) {
    const wefti_flight f = {.use = WEFTI_FLIGHT_NOW,
                            .owner = -1,
                            .source = {source, 0},
                            .destination = {destination, 0}};
    WEFT_TRY(wefti_flight_post(b, s, f, transfer));
    return wefti_flight_wait(b, s, (int32_t)b->flight_count - 1);
}

weft_status wefti_flight_arrive(wefti_emitter *b, wefti_section s) {
    for (int32_t i; (i = wefti_flight_find(b, WEFTI_FLIGHT_NOW, -1)) >= 0;)
        WEFT_TRY(wefti_flight_wait(b, s, i));
    return WEFT_OK;
}

int32_t wefti_flight_over(const wefti_emitter *b, wefti_flight_use use, int32_t owner,
                          int32_t left) {
    int32_t oldest = -1, count = 0;
    for (int32_t i = 0; i < b->flight_count && count <= left; i++) {
        if (b->flights[i].use != use || b->flights[i].owner != owner) continue;
        if (count++ == 0) oldest = i;
    }
    return count > left ? oldest : -1;
}

bool wefti_flight_has(const wefti_emitter *b, int32_t transfer) {
    for (int32_t i = 0; i < b->flight_count; i++)
        if (b->flights[i].move >= 0 && b->p->moves[b->flights[i].move].transfer == transfer)
            return true;
    return false;
}

weft_status wefti_flight_check(const wefti_emitter *b, wefti_section s) {
    WEFT_REQUIRE(b->flight_count == 0, WEFT_E_BUG,
                 "section %d ends, but no step waits for '%s', which is in flight", (int)s,
                 b->flights[0].name);
    return WEFT_OK;
}
