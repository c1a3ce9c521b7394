/* Tables that lie as records in a disk stream: see disk_records.h. */
#include "device/disk_records.h"

#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "device/disk_parts.h"

enum { RECORDS_BUFFER = 4 << 20 };

bool wefti_disk_records_of(int64_t begin, int64_t rows, int count, const int64_t *row_bytes,
                           wefti_disk_records *out) {
    *out = (wefti_disk_records){.begin = begin, .end = begin, .rows = rows, .count = count};
    if (count < 2 || count > WEFTI_RECORD_PARTS || !rows || begin % WEFTI_DISK_ALIGNMENT)
        return false;
    for (int i = 0; i < count; i++) {
        out->part[i].row_bytes = row_bytes[i];
        out->part[i].begin = out->end;
        out->part[i].at = out->bytes;
        out->bytes += row_bytes[i];
        out->end += wefti_round_up(rows * row_bytes[i], WEFTI_DISK_ALIGNMENT);
    }
    int64_t rest = begin + rows * out->bytes;
    for (int i = 0; i < count; i++) {
        out->part[i].rest = rest;
        rest += wefti_round_up(rows * row_bytes[i], WEFTI_DISK_ALIGNMENT) - rows * row_bytes[i];
    }
    return out->bytes <= WEFTI_RECORD_MOST;
}

weft_status wefti_disk_stream_interleave(wefti_disk_stream *d, const wefti_disk_records *records) {
    weft_status status = WEFT_OK;
    (void)pthread_mutex_lock(&d->lock);
    if (!d->bounce) d->bounce = wefti_alloc(RECORDS_BUFFER + WEFTI_DISK_ALIGNMENT);
    if (!d->bounce)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for records of a file in %s", d->directory);
    if (status >= 0) status = WEFT_GROW(d->records, d->record_count, d->record_cap);
    if (status >= 0) d->records[d->record_count++] = *records;
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

bool wefti_disk_stream_records(wefti_disk_stream *d, int64_t begin, int64_t end,
                               wefti_disk_records *out) {
    const wefti_disk_records *first = NULL;
    (void)pthread_mutex_lock(&d->lock);
    for (int64_t i = 0; i < d->record_count; i++) {
        const wefti_disk_records *r = &d->records[i];
        if (r->begin < end && begin < r->end && (!first || r->begin < first->begin)) first = r;
    }
    if (first && out) *out = *first;
    (void)pthread_mutex_unlock(&d->lock);
    return first != NULL;
}

/* ---- reads and writes of tables ---- */

typedef struct records_io {
    wefti_disk_stream *d;
    bool writes;
    unsigned char *memory; /* of the next byte */
} records_io;

static weft_status transfer(wefti_disk_stream *d, bool writes, int64_t from, int64_t to,
                            unsigned char *memory) {
    wefti_disk_ticket *ticket;
    WEFT_TRY(wefti_disk_stream_begin(d, writes, from, to - from, memory, &ticket));
    return wefti_disk_stream_wait(d, ticket);
}

/* Moves bytes [at, end) of a table, counted from its begin, which the buffer has room for. */
static weft_status move_stretch(records_io *x, const wefti_disk_records *r, int part, int64_t at,
                                int64_t end) {
    const int64_t row_bytes = r->part[part].row_bytes, first = at / row_bytes,
                  last = (end - 1) / row_bytes, rows = r->begin + r->part[part].at;
    const int64_t from = wefti_round_down(rows + first * r->bytes, WEFTI_DISK_ALIGNMENT),
                  to = wefti_round_up(rows + last * r->bytes + row_bytes, WEFTI_DISK_ALIGNMENT);
    unsigned char *buffer = wefti_disk_align(x->d->bounce);
    WEFT_TRY(transfer(x->d, false, from, to, buffer));
    for (int64_t row = first; row <= last; row++) {
        const int64_t begin = wefti_most(at, row * row_bytes),
                      stop = wefti_least(end, (row + 1) * row_bytes);
        unsigned char *there = buffer + (rows + row * r->bytes + (begin - row * row_bytes) - from);
        memcpy(x->writes ? there : x->memory, x->writes ? x->memory : there,
               (size_t)(stop - begin));
        x->memory += stop - begin;
    }
    return x->writes ? transfer(x->d, true, from, to, buffer) : WEFT_OK;
}

static weft_status move_table(records_io *x, const wefti_disk_records *r, int part, int64_t at,
                              int64_t end) {
    const int64_t row_bytes = r->part[part].row_bytes,
                  rows = (RECORDS_BUFFER - 2 * WEFTI_DISK_ALIGNMENT) / r->bytes;
    for (int64_t stop; at < end; at = stop) {
        stop = wefti_least(end, (at / row_bytes + rows) * row_bytes);
        WEFT_TRY(move_stretch(x, r, part, at, stop));
    }
    return WEFT_OK;
}

/* Moves bytes from `at` on, up to `end` or to a place where they go on elsewhere. */
static weft_status move_some(records_io *x, int64_t at, int64_t end, int64_t *out_end) {
    wefti_disk_records r;
    int part = 0;
    int64_t shift = 0;
    *out_end = end;
    if (wefti_disk_stream_records(x->d, at, end, &r))
        *out_end = wefti_least(end, wefti_most(at, r.begin));
    if (*out_end == at) { /* in the records */
        while (part + 1 < r.count && r.part[part + 1].begin <= at) part++;
        const int64_t begin = r.part[part].begin, stop = begin + r.rows * r.part[part].row_bytes;
        *out_end = wefti_least(end, at < stop ? stop : wefti_round_up(stop, WEFTI_DISK_ALIGNMENT));
        if (at < stop) return move_table(x, &r, part, at - begin, *out_end - begin);
        shift = r.part[part].rest - stop;
    }
    WEFT_TRY(transfer(x->d, x->writes, at + shift, *out_end + shift, x->memory));
    x->memory += *out_end - at;
    return WEFT_OK;
}

static weft_status move_all(records_io *x, int64_t at, int64_t end) {
    weft_status status = WEFT_OK;
    (void)pthread_mutex_lock(&x->d->bouncing);
    while (at < end && status >= 0) status = move_some(x, at, end, &at);
    (void)pthread_mutex_unlock(&x->d->bouncing);
    return status;
}

weft_status wefti_disk_stream_begin_at(wefti_disk_stream *d, bool writes, int64_t offset,
                                       int64_t bytes, void *memory, wefti_disk_ticket **out) {
    wefti_failure failure;
    records_io x = {d, writes, memory};
    if (!wefti_disk_stream_records(d, offset, offset + bytes, NULL))
        return wefti_disk_stream_begin(d, writes, offset, bytes, memory, out);
    WEFT_TRY(wefti_disk_stream_begin(d, writes, offset, 0, memory, out));
    wefti_failure_keep(move_all(&x, offset, offset + bytes), &failure);
    if (failure.status >= 0) return WEFT_OK;
    WEFT_TRY(wefti_disk_stream_wait(d, *out)); /* frees the ticket */
    return wefti_failure_tell(&failure);
}
