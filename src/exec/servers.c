/* Parameters on servers: pushes and pulls, and reads and writes of what servers keep. */
#include "base/clock.h"
#include "base/memory.h"
#include "exec/rank_device.h"
#include "program/print.h"

/* ---- places ---- */

static bool is_at(wefti_location place, wefti_location at) {
    return wefti_location_exists(place) && place.bits == at.bits;
}

/* What a copy to or from servers is, by its place there. */
typedef enum served_copy { COPY_PUSH, COPY_PULL, COPY_SQUARE, COPIES } served_copy;

static wefti_served_shard *find_shard(wefti_rank_device *d, wefti_location at, served_copy *out) {
    for (int64_t i = 0; i < d->shard_count; i++) {
        const wefti_program_served *x = d->shards[i].of;
        *out = is_at(x->sum, at)       ? COPY_PUSH
               : is_at(x->part[0], at) ? COPY_PULL
               : is_at(x->square, at)  ? COPY_SQUARE
                                       : COPIES;
        if (*out < COPIES) return &d->shards[i];
    }
    return NULL;
}

/* The shard and the part that has a byte of the arena, and the byte's place there. */
static const wefti_served_shard *find_part(const wefti_rank_device *d, int64_t offset,
                                           int *out_part, int64_t *out_at) {
    for (int64_t i = 0; i < d->shard_count; i++) {
        const wefti_program_served *x = d->shards[i].of;
        for (int k = 0; k <= x->piece.rule.states; k++) {
            *out_part = k;
            *out_at = offset - wefti_location_offset(x->part[k]);
            if (*out_at >= 0 && *out_at < x->piece.part_bytes[k]) return &d->shards[i];
        }
    }
    return NULL;
}

static weft_status read_bytes(void *context, int64_t offset, int64_t bytes, void *to) {
    int part;
    int64_t at;
    if (!bytes) return WEFT_OK;
    const wefti_served_shard *x = find_part(context, offset, &part, &at);
    WEFT_REQUIRE(x, WEFT_E_BUG, "no server has byte %lld", (long long)offset);
    return x->shard->engine->read(x->shard, part, at, bytes, to);
}

static weft_status write_bytes(void *context, int64_t offset, int64_t bytes, const void *from) {
    int part;
    int64_t at;
    if (!bytes) return WEFT_OK;
    const wefti_served_shard *x = find_part(context, offset, &part, &at);
    WEFT_REQUIRE(x, WEFT_E_BUG, "no server has byte %lld", (long long)offset);
    return x->shard->engine->write(x->shard, part, at, bytes, from);
}

/* ---- life ---- */

void wefti_rank_device_serve(wefti_rank_device *d, wefti_service *service) {
    d->service = service;
    d->remote = (wefti_remote){read_bytes, write_bytes, d};
}

weft_status wefti_bind_served(wefti_rank_device *d, const wefti_program *program) {
    WEFT_REQUIRE(!program->served_count || d->service, WEFT_E_BUG,
                 "servers keep parameters of the program, but the device reaches none");
    for (int32_t i = 0; i < program->served_count; i++) {
        wefti_served_shard x = {.program = program, .of = &program->served[i]};
        WEFT_TRY(WEFT_GROW(d->shards, d->shard_count, d->shard_cap));
        WEFT_TRY(d->service->engine->bind(d->service, &x.of->piece, &x.shard));
        d->shards[d->shard_count++] = x;
    }
    return WEFT_OK;
}

void wefti_unbind_served(wefti_rank_device *d, const wefti_program *program) {
    int64_t kept = 0;
    for (int64_t i = 0; i < d->shard_count; i++)
        if (program && d->shards[i].program != program)
            d->shards[kept++] = d->shards[i];
        else
            d->shards[i].shard->engine->unbind(d->shards[i].shard);
    d->shard_count = kept;
}

/* ---- copies ---- */

/* The servers' threads touch the memory from now on, until the wait. The work before must be done.
 */
static weft_status lend(wefti_rank_device *d, wefti_byte_range *memory) {
    WEFT_TRY(wefti_stream_follow(d->copies, d->stream, d->copies_begin));
    WEFT_TRY(wefti_stream_finish(d->copies));
    return wefti_stream_exposes(d->copies)
               ? wefti_stream_expose(d->copies, WEFTI_SPACE_DEVICE, memory, 1)
               : WEFT_OK;
}

static void take_back(wefti_rank_device *d, wefti_served_move *move) {
    if (move->memory.memory && wefti_stream_exposes(d->copies))
        wefti_stream_conceal(d->copies, &move->memory, 1);
    move->memory.memory = NULL;
}

static weft_status begin_move(wefti_rank_device *d, const wefti_served_shard *x, served_copy copy,
                              unsigned char *memory) {
    const int64_t number = d->options->number;
    wefti_step_block scalars;
    if (copy == COPY_PUSH) return x->shard->engine->push(x->shard, number, memory);
    WEFT_TRY(wefti_stream_copy(d->stream, &scalars, WEFTI_SPACE_HOST,
                               wefti_rank_device_at(d, x->program->scalars),
                               wefti_location_space(x->program->scalars), sizeof scalars));
    WEFT_TRY(wefti_stream_finish(d->stream));
    return x->shard->engine->pull(x->shard, number, &scalars, memory);
}

/* The square is small, and is waited for at once. */
static weft_status get_square(wefti_rank_device *d, const wefti_served_shard *x,
                              const wefti_program_move *move, wefti_location to) {
    unsigned char square[sizeof(double)];
    WEFT_TRY(x->shard->engine->square(x->shard, d->options->number, square));
    WEFT_TRY(wefti_stream_copy(d->stream, wefti_rank_device_at(d, to), wefti_location_space(to),
                               square, WEFTI_SPACE_HOST, move->bytes));
    return wefti_stream_finish(d->stream);
}

weft_status wefti_post_served(wefti_rank_device *d, const wefti_program_move *move,
                              const wefti_step *step) {
    const bool pulls = wefti_step_fetches(step);
    const wefti_location from = wefti_argument_location(d, step, 0),
                         to = wefti_argument_location(d, step, 1), memory = pulls ? to : from;
    served_copy copy;
    wefti_served_shard *x = find_shard(d, pulls ? from : to, &copy);
    WEFT_REQUIRE(x, WEFT_E_BUG, "'%s' is on no server", step->name);
    wefti_rank_device_observe(d, to, move->bytes);
    if (copy == COPY_SQUARE) return get_square(d, x, move, to);
    if (copy == COPY_PULL && d->options->before_update)
        d->options->before_update(d->options->before_update_context, d->rank, x->of->tensor);
    wefti_served_move *m = &x->moves[pulls];
    WEFT_REQUIRE(!m->memory.memory, WEFT_E_BUG, "'%s' is copied twice at once", step->name);
    unsigned char *bytes = wefti_rank_device_at(d, memory);
    wefti_byte_range range = {bytes, move->bytes};
    WEFT_TRY(lend(d, &range));
    *m = (wefti_served_move){range, d->trace ? wefti_now_ns() : 0};
    const weft_status status = begin_move(d, x, copy, bytes);
    if (status < 0) take_back(d, m);
    return status;
}

weft_status wefti_wait_served(wefti_rank_device *d, const wefti_step *step) {
    const bool pulls = wefti_step_fetches(step);
    served_copy copy;
    wefti_served_shard *x = find_shard(d, wefti_argument_location(d, step, pulls ? 0 : 1), &copy);
    WEFT_REQUIRE(x, WEFT_E_BUG, "'%s' is on no server", step->name);
    if (copy == COPY_SQUARE) return WEFT_OK;
    wefti_served_move *m = &x->moves[pulls];
    const int64_t bytes = m->memory.bytes;
    WEFT_REQUIRE(m->memory.memory, WEFT_E_BUG, "step '%s' waits for a copy that was not posted",
                 step->name);
    const weft_status status =
        pulls ? x->shard->engine->wait_pull(x->shard) : x->shard->engine->wait_push(x->shard);
    take_back(d, m);
    WEFT_TRY(status);
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_COMMUNICATION, wefti_copy_text(step),
                          step->name, m->posted_ns, wefti_now_ns(), 0, (double)bytes);
    return WEFT_OK;
}

void wefti_end_served(wefti_rank_device *d) {
    for (int64_t i = 0; i < d->shard_count; i++) {
        wefti_served_move *moves = d->shards[i].moves;
        if (moves[0].memory.memory || moves[1].memory.memory)
            d->shards[i].shard->engine->give_up(d->shards[i].shard);
        take_back(d, &moves[0]);
        take_back(d, &moves[1]);
    }
}
