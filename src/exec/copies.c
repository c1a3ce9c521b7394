/* Copies between the spaces of a device: by the device, and by reads and writes of files. Those to
 * and from servers: servers.c. */
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "exec/rank_device.h"
#include "program/print.h"
#include "rows/rows.h"

/* The file's threads and the kernel touch the memory as soon as a read or write is posted, so the
 * work before it must be done. */
static weft_status post_file(wefti_rank_device *d, const wefti_program_move *move,
                             const wefti_step *step, wefti_location from, wefti_location to) {
    const bool reads = wefti_location_space(from) == WEFTI_SPACE_DISK;
    const wefti_location file = reads ? from : to;
    const wefti_arena_block *block = wefti_arena_block_of(
        &d->arenas[WEFTI_SPACE_DISK][wefti_location_term(file)], wefti_location_offset(file));
    const int64_t at = wefti_location_offset(file) - block->begin;
    unsigned char *memory = wefti_rank_device_at(d, reads ? to : from);
    WEFT_TRY(WEFT_GROW(d->files, d->file_count, d->file_cap));
    wefti_file_move *f = &d->files[d->file_count];
    *f = (wefti_file_move){.move = step->move,
                           .file = block->file,
                           .memory = {memory, move->bytes},
                           .posted_ns = d->trace ? wefti_now_ns() : 0};
    WEFT_TRY(wefti_stream_follow(d->copies, d->stream, d->copies_begin));
    WEFT_TRY(wefti_stream_finish(d->copies));
    if (wefti_stream_exposes(d->copies))
        WEFT_TRY(wefti_stream_expose(d->copies, WEFTI_SPACE_DEVICE, &f->memory, 1));
    const weft_status status =
        reads ? wefti_disk_stream_read(f->file, at, move->bytes, memory, &f->ticket)
              : wefti_disk_stream_write(f->file, at, move->bytes, memory, &f->ticket);
    if (status >= 0)
        d->file_count++;
    else if (wefti_stream_exposes(d->copies))
        wefti_stream_conceal(d->copies, &f->memory, 1);
    return status;
}

/* Ends the file move number i. */
static weft_status end_file(wefti_rank_device *d, int64_t i) {
    const wefti_file_move f = d->files[i];
    d->file_count--;
    memmove(d->files + i, d->files + i + 1, (size_t)(d->file_count - i) * sizeof *d->files);
    const weft_status status = wefti_disk_stream_wait(f.file, f.ticket);
    if (wefti_stream_exposes(d->copies)) wefti_stream_conceal(d->copies, &f.memory, 1);
    return status;
}

/* ---- rows ---- */

/* The rows of a copy: their numbers in the table, for the host. The device computes them, so its
 * work must be done. */
static weft_status read_rows(wefti_rank_device *d, const wefti_step *step, int64_t count) {
    const wefti_location at = wefti_argument_location(d, step, 2);
    WEFT_TRY(wefti_stream_copy(d->stream, d->rows, WEFTI_SPACE_HOST, wefti_rank_device_at(d, at),
                               wefti_location_space(at), count * (int64_t)sizeof *d->rows));
    return wefti_stream_finish(d->stream);
}

wefti_disk_table wefti_table_at(const wefti_rank_device *d, wefti_location at, int64_t row_bytes) {
    const wefti_arena_block *block = wefti_arena_block_of(
        &d->arenas[WEFTI_SPACE_DISK][wefti_location_term(at)], wefti_location_offset(at));
    return (wefti_disk_table){.file = block->file,
                              .begin = wefti_location_offset(at) - block->begin,
                              .row_bytes = row_bytes};
}

/* The named rows stand before the others. Behind them, the list of a look-up has each further
 * look-up of a row (rows_find). */
static void place_rows(const wefti_rank_device *d, const wefti_program_move *move,
                       unsigned char *memory, wefti_row_move *m) {
    int64_t i = 0;
    for (; i < move->rows && d->rows[i] >= 0; i++)
        m->places[i] = (wefti_row_place){d->rows[i], move->looks_up, memory + i * move->row_bytes};
    m->count = i;
    for (; i < move->rows; i++)
        if (d->rows[i] < -1) m->places[wefti_rows_repeated(d->rows[i])].look_ups++;
}

/* Begins a copy of rows of a file. The queue's thread and the kernel touch the memory, so the work
 * before must be done. */
static weft_status post_file_rows(wefti_rank_device *d, const wefti_program_move *move,
                                  const wefti_step *step, wefti_location table,
                                  wefti_location memory) {
    wefti_row_move *m = &d->row_moves[step->move];
    unsigned char *rows = wefti_rank_device_at(d, memory);
    const wefti_byte_range range = {rows, move->rows * move->row_bytes};
    WEFT_REQUIRE(!m->memory.memory, WEFT_E_BUG, "'%s' is copied twice at once", step->name);
    m->reads = wefti_step_fetches(step);
    m->table = wefti_table_at(d, table, move->row_bytes);
    m->posted_ns = d->trace ? wefti_now_ns() : 0;
    place_rows(d, move, rows, m);
    WEFT_TRY(wefti_stream_follow(d->copies, d->stream, d->copies_begin));
    WEFT_TRY(wefti_stream_finish(d->copies));
    if (wefti_stream_exposes(d->copies))
        WEFT_TRY(wefti_stream_expose(d->copies, WEFTI_SPACE_DEVICE, &range, 1));
    m->memory = range;
    wefti_row_move_begin(d, m);
    return WEFT_OK;
}

static weft_status end_file_rows(wefti_rank_device *d, wefti_row_move *m) {
    const weft_status status = wefti_row_move_end(d, m);
    if (wefti_stream_exposes(d->copies)) wefti_stream_conceal(d->copies, &m->memory, 1);
    m->memory.memory = NULL;
    return status;
}

static weft_status copy_rows_of_host(wefti_rank_device *d, const wefti_program_move *move,
                                     wefti_location table, wefti_location memory, bool reads) {
    WEFT_TRY(wefti_stream_follow(d->copies, d->stream, d->copies_begin));
    for (int64_t i = 0; i < move->rows; i++) {
        const wefti_location of = wefti_location_plus(table, d->rows[i] * move->row_bytes),
                             row = wefti_location_plus(memory, i * move->row_bytes);
        const wefti_location to = reads ? row : of, from = reads ? of : row;
        if (d->rows[i] >= 0)
            WEFT_TRY(wefti_stream_copy(d->copies, wefti_rank_device_at(d, to),
                                       wefti_location_space(to), wefti_rank_device_at(d, from),
                                       wefti_location_space(from), move->row_bytes));
    }
    return WEFT_OK;
}

/* Zeros the rows that a fetch leaves, so that updates of them compute with numbers. */
static weft_status zero_rest(wefti_rank_device *d, const wefti_program_move *move,
                             wefti_location memory, int64_t count) {
    const wefti_location rest = wefti_location_plus(memory, count * move->row_bytes);
    return count == move->rows ? WEFT_OK
                               : wefti_stream_fill(d->stream, wefti_rank_device_at(d, rest),
                                                   wefti_location_space(rest), 0,
                                                   (move->rows - count) * move->row_bytes);
}

/* Begins a copy of rows. Only the named rows move, and they stand before the others. */
static weft_status post_rows(wefti_rank_device *d, const wefti_program_move *move,
                             const wefti_step *step) {
    const bool reads = wefti_step_fetches(step);
    const wefti_location from = wefti_argument_location(d, step, 0),
                         to = wefti_argument_location(d, step, 1), table = reads ? from : to,
                         memory = reads ? to : from;
    const int64_t begin = d->trace ? wefti_now_ns() : 0;
    int64_t count = 0;
    WEFT_TRY(read_rows(d, step, move->rows));
    while (count < move->rows && d->rows[count] >= 0) count++;
    if (reads) wefti_rank_device_observe(d, memory, move->rows * move->row_bytes);
    if (reads) WEFT_TRY(zero_rest(d, move, memory, count));
    if (wefti_step_tier(step) == WEFTI_SPACE_DISK)
        return post_file_rows(d, move, step, table, memory);
    WEFT_TRY(copy_rows_of_host(d, move, table, memory, reads));
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_KERNELS, wefti_copy_text(step), step->name,
                          begin, wefti_now_ns(), 0, (double)(count * move->row_bytes));
    return WEFT_OK;
}

static weft_status name_copy(weft_status status, const wefti_step *step) {
    return status < 0 ? wefti_prefix(status, "%s of '%s'", wefti_copy_text(step), step->name)
                      : WEFT_OK;
}

static weft_status wait_file(wefti_rank_device *d, const wefti_step *step) {
    int64_t i = 0;
    while (i < d->file_count && d->files[i].move != step->move) i++;
    WEFT_REQUIRE(i < d->file_count, WEFT_E_BUG, "step '%s' waits for a copy that was not posted",
                 step->name);
    const wefti_file_move f = d->files[i];
    WEFT_TRY(name_copy(end_file(d, i), step));
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_COMMUNICATION, wefti_copy_text(step),
                          step->name, f.posted_ns, wefti_now_ns(), 0, (double)f.memory.bytes);
    return WEFT_OK;
}

static weft_status wait_file_rows(wefti_rank_device *d, const wefti_step *step) {
    wefti_row_move *m = &d->row_moves[step->move];
    WEFT_TRY(name_copy(end_file_rows(d, m), step));
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_COMMUNICATION, wefti_copy_text(step),
                          step->name, m->posted_ns, wefti_now_ns(), 0,
                          (double)(m->count * m->table.row_bytes));
    return WEFT_OK;
}

weft_status wefti_end_copies(wefti_rank_device *d, weft_status failure) {
    wefti_failure first;
    wefti_failure_keep(failure, &first);
    bool others = wefti_stream_finish(d->copies) < 0;
    while (d->file_count)
        if (end_file(d, 0) < 0) others = true;
    for (int64_t m = 0; m < d->row_move_count; m++)
        if (d->row_moves[m].memory.memory && end_file_rows(d, &d->row_moves[m]) < 0) others = true;
    wefti_end_served(d);
    return others ? wefti_failure_tell(&first) : failure;
}

/* Copies by the device have a stream of their own, in which they are done in the order of their
 * posts. So a wait for all of them ends the oldest one of a move. */
weft_status wefti_post_copy(wefti_rank_device *d, const wefti_program_move *move,
                            const wefti_step *step) {
    const wefti_location from = wefti_argument_location(d, step, 0),
                         to = wefti_argument_location(d, step, 1);
    if (move->rows) return name_copy(post_rows(d, move, step), step);
    if (wefti_step_tier(step) == WEFTI_SPACE_SERVER)
        return name_copy(wefti_post_served(d, move, step), step);
    if (wefti_step_tier(step) == WEFTI_SPACE_DISK) {
        wefti_rank_device_observe(d, to, move->bytes);
        return name_copy(post_file(d, move, step, from, to), step);
    }
    const int64_t begin = d->trace ? wefti_now_ns() : 0;
    WEFT_TRY(wefti_stream_follow(d->copies, d->stream, d->copies_begin));
    wefti_rank_device_observe(d, to, move->bytes);
    WEFT_TRY(wefti_stream_copy(d->copies, wefti_rank_device_at(d, to), wefti_location_space(to),
                               wefti_rank_device_at(d, from), wefti_location_space(from),
                               move->bytes));
    if (d->trace)
        wefti_trace_event(d->trace, d->rank, WEFTI_TRACK_KERNELS, wefti_copy_text(step), "move",
                          begin, wefti_now_ns(), 0, (double)move->bytes);
    return WEFT_OK;
}

weft_status wefti_wait_copy(wefti_rank_device *d, const wefti_program_move *move,
                            const wefti_step *step) {
    if (wefti_step_tier(step) == WEFTI_SPACE_SERVER)
        return name_copy(wefti_wait_served(d, step), step);
    if (move->rows && wefti_step_tier(step) == WEFTI_SPACE_DISK) return wait_file_rows(d, step);
    if (wefti_step_tier(step) == WEFTI_SPACE_DISK) return wait_file(d, step);
    return wefti_stream_follow(d->stream, d->copies, d->copied);
}
