/* Reads and writes of rows of a file: see disk_rows.h. */
#include "device/disk_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/disk_parts.h"

enum { ROWS_LAG = WEFTI_ROWS_UNDER_WAY / 2, ROWS_GAP = WEFTI_DISK_ALIGNMENT };

/* A request: bytes [from, to) of the file, which are whole blocks, and the places that have bytes
 * there. A row that two runs share has bytes in both. */
typedef struct row_run {
    int64_t first, count; /* of the places */
    int64_t from, to;
    int64_t covered; /* bytes of rows */
    wefti_disk_ticket *ticket;
} row_run;

/* Begins a read or write at an offset of the stream, or at a place of the file. */
typedef weft_status begin_at(wefti_disk_stream *d, bool writes, int64_t at, int64_t bytes,
                             void *memory, wefti_disk_ticket **out);

typedef struct rows_io {
    const wefti_disk_table *table;
    begin_at *begin;
    bool reads;
    int64_t gap; /* bytes between rows of one request, at most */
    const wefti_row_place *places;
    int64_t count;
    int64_t next,
        done; /* the first place with bytes that no run has yet; the end of the last run */
    unsigned char *staging;
    row_run runs[WEFTI_ROWS_UNDER_WAY]; /* run k has number k % WEFTI_ROWS_UNDER_WAY */
} rows_io;

static int64_t below(int64_t at) {
    return at - at % WEFTI_DISK_ALIGNMENT;
}
static int64_t above(int64_t at) {
    return below(at + WEFTI_DISK_ALIGNMENT - 1);
}
static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t begin_of(const rows_io *x, int64_t place) {
    return x->table->begin + x->places[place].row * x->table->row_bytes;
}

/* Takes the next rows. A run ends in mid-row rather than in mid-block: two runs never share a
 * block, of which one could write back what the other has changed. */
static row_run next_run(rows_io *x) {
    const int64_t from = below(most(begin_of(x, x->next), x->done)),
                  limit = from + WEFTI_ROWS_JOINED;
    row_run r = {.first = x->next, .from = from, .to = from};
    bool whole = true;
    while (whole && x->next < x->count) {
        const int64_t begin = most(begin_of(x, x->next), x->done),
                      end = begin_of(x, x->next) + x->table->row_bytes;
        if (below(begin) > r.to + x->gap || below(begin) >= limit) break;
        r.covered += least(end, limit) - begin;
        r.to = most(r.to, above(least(end, limit)));
        r.count++;
        whole = end <= limit;
        x->next += whole;
    }
    x->done = r.to;
    return r;
}

static unsigned char *memory_of(const rows_io *x, int64_t k) {
    return x->staging + (k % WEFTI_ROWS_UNDER_WAY) * WEFTI_ROWS_JOINED;
}

/* Between the rows and the memory of run k. */
static void copy_rows(const rows_io *x, int64_t k) {
    const row_run *r = &x->runs[k % WEFTI_ROWS_UNDER_WAY];
    for (int64_t i = r->first; i < r->first + r->count; i++) {
        const int64_t row = begin_of(x, i), begin = most(row, r->from),
                      end = least(row + x->table->row_bytes, r->to);
        unsigned char *here = x->places[i].memory + (begin - row),
                      *there = memory_of(x, k) + (begin - r->from);
        memcpy(x->reads ? here : there, x->reads ? there : here, (size_t)(end - begin));
    }
}

static weft_status end_request(const rows_io *x, row_run *r) {
    wefti_disk_ticket *ticket = r->ticket;
    r->ticket = NULL;
    return ticket ? wefti_disk_stream_wait(x->table->file, ticket) : WEFT_OK;
}

/* Reads what run k needs. */
static weft_status begin_run(rows_io *x, int64_t k) {
    row_run *r = &x->runs[k % WEFTI_ROWS_UNDER_WAY];
    *r = next_run(x);
    if (!x->reads && r->covered == r->to - r->from) return WEFT_OK;
    return x->begin(x->table->file, false, r->from, r->to - r->from, memory_of(x, k), &r->ticket);
}

/* The bytes of run k are there. */
static weft_status use_run(rows_io *x, int64_t k) {
    row_run *r = &x->runs[k % WEFTI_ROWS_UNDER_WAY];
    WEFT_TRY(end_request(x, r));
    copy_rows(x, k);
    if (x->reads) return WEFT_OK;
    return x->begin(x->table->file, true, r->from, r->to - r->from, memory_of(x, k), &r->ticket);
}

/* Each run is read, used ROWS_LAG runs later, and ended as many later. */
static weft_status move_all(rows_io *x) {
    int64_t runs = INT64_MAX - 2 * ROWS_LAG;
    for (int64_t k = 0; k < runs + 2 * ROWS_LAG; k++) {
        if (k >= 2 * ROWS_LAG) WEFT_TRY(end_request(x, &x->runs[k % WEFTI_ROWS_UNDER_WAY]));
        if (x->next == x->count) runs = least(runs, k);
        if (k < runs) WEFT_TRY(begin_run(x, k));
        if (k >= ROWS_LAG && k - ROWS_LAG < runs) WEFT_TRY(use_run(x, k - ROWS_LAG));
    }
    return WEFT_OK;
}

static int by_row(const void *a, const void *b) {
    const int32_t x = ((const wefti_row_place *)a)->row, y = ((const wefti_row_place *)b)->row;
    return (x > y) - (x < y);
}

/* Writes of whole blocks need no bytes between them. */
static weft_status move(const wefti_disk_table *table, begin_at *begin, bool reads,
                        wefti_row_place *places, int64_t count, void *staging) {
    const bool whole = (table->begin | table->row_bytes) % WEFTI_DISK_ALIGNMENT == 0;
    rows_io x = {.table = table,
                 .begin = begin,
                 .reads = reads,
                 .gap = !reads && whole ? 0 : ROWS_GAP,
                 .places = places,
                 .count = count,
                 .staging = wefti_disk_align(staging)};
    wefti_failure first;
    if (!count || !table->row_bytes) return WEFT_OK;
    qsort(places, (size_t)count, sizeof *places, by_row);
    const weft_status status = move_all(&x);
    if (status >= 0) return WEFT_OK;
    wefti_failure_keep(status, &first);
    for (int i = 0; i < WEFTI_ROWS_UNDER_WAY; i++) (void)end_request(&x, &x.runs[i]);
    return wefti_failure_tell(&first);
}

weft_status wefti_disk_rows_exchange(const wefti_disk_table *table, bool reads,
                                     wefti_row_place *places, int64_t count, void *staging) {
    return move(table, wefti_disk_stream_begin, reads, places, count, staging);
}

weft_status wefti_disk_rows_move(const wefti_disk_table *table, bool reads, wefti_row_place *places,
                                 int64_t count, void *staging) {
    int32_t first = INT32_MAX, last = 0;
    for (int64_t i = 0; i < count; i++) {
        if (places[i].row < first) first = places[i].row;
        if (places[i].row > last) last = places[i].row;
    }
    if (count)
        WEFT_TRY(wefti_disk_stream_ask(table->file, !reads, table->begin + first * table->row_bytes,
                                       table->begin + (last + 1) * table->row_bytes));
    return move(table, wefti_disk_stream_begin_at, reads, places, count, staging);
}
