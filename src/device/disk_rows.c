/* Reads and writes of rows of a file: see disk_rows.h. */
#include "device/disk_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"
#include "device/disk_parts.h"

enum {
    ROWS_GAP = WEFTI_DISK_ALIGNMENT,
    ROWS_BATCHES = 2,
    ROWS_BATCH = (WEFTI_ROWS_STAGING - WEFTI_DISK_ALIGNMENT) / ROWS_BATCHES, /* bytes */
    ROWS_RUNS = 128
};

/* A request: bytes [from, to) of the file, which are whole blocks, and the places that have bytes
 * there. A row that two runs share has bytes in both. */
typedef struct row_run {
    int64_t first, count; /* of the places */
    int64_t from, to;
    int64_t covered; /* bytes of rows */
    unsigned char *memory;
} row_run;

/* Runs that are read, used and written together, while those of the other batch are under way. */
typedef struct row_batch {
    row_run runs[ROWS_RUNS];
    int64_t count, used; /* used: runs whose rows are copied */
    wefti_disk_piece pieces[ROWS_RUNS];
    wefti_disk_ticket *ticket; /* NULL: nothing is under way */
} row_batch;

typedef struct rows_io {
    const wefti_disk_table *table;
    bool reads;
    int64_t gap; /* bytes between rows of one request, at most */
    const wefti_row_place *places;
    int64_t count;
    int64_t next,
        done; /* the first place with bytes that no run has yet; the end of the last run */
    unsigned char *staging;
    row_batch batches[ROWS_BATCHES];
} rows_io;

static int64_t begin_of(const rows_io *x, int64_t place) {
    return x->table->begin + x->places[place].row * x->table->row_bytes;
}

/* Takes the next rows. A run ends in mid-row rather than in mid-block: two runs never share a
 * block, of which one could write back what the other has changed. */
static row_run next_run(rows_io *x) {
    const int64_t from = wefti_round_down(wefti_most(begin_of(x, x->next), x->done),
                                          WEFTI_DISK_ALIGNMENT),
                  limit = from + WEFTI_ROWS_JOINED;
    row_run r = {.first = x->next, .from = from, .to = from};
    bool whole = true;
    while (whole && x->next < x->count) {
        const int64_t begin = wefti_most(begin_of(x, x->next), x->done),
                      end = begin_of(x, x->next) + x->table->row_bytes;
        if (wefti_round_down(begin, WEFTI_DISK_ALIGNMENT) > r.to + x->gap ||
            wefti_round_down(begin, WEFTI_DISK_ALIGNMENT) >= limit)
            break;
        r.covered += wefti_least(end, limit) - begin;
        r.to = wefti_most(r.to, wefti_round_up(wefti_least(end, limit), WEFTI_DISK_ALIGNMENT));
        r.count++;
        whole = end <= limit;
        x->next += whole;
    }
    x->done = r.to;
    return r;
}

/* Between the rows and the memory of a run. */
static void copy_rows(const rows_io *x, const row_run *r) {
    for (int64_t i = r->first; i < r->first + r->count; i++) {
        const int64_t row = begin_of(x, i), begin = wefti_most(row, r->from),
                      end = wefti_least(row + x->table->row_bytes, r->to);
        unsigned char *here = x->places[i].memory + (begin - row),
                      *there = r->memory + (begin - r->from);
        memcpy(x->reads ? here : there, x->reads ? there : here, (size_t)(end - begin));
    }
}

static weft_status end_batch(const rows_io *x, row_batch *b) {
    wefti_disk_ticket *ticket = b->ticket;
    b->ticket = NULL;
    return ticket ? wefti_disk_stream_wait(x->table->file, ticket) : WEFT_OK;
}

/* Begins to read or write the runs of a batch; `parts`: those that rows do not cover. */
static weft_status begin_runs(const rows_io *x, row_batch *b, bool writes, bool parts) {
    int64_t count = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const row_run *r = &b->runs[i];
        if (!parts || r->covered < r->to - r->from)
            b->pieces[count++] = (wefti_disk_piece){r->from, r->to - r->from, r->memory};
    }
    if (!count) return WEFT_OK;
    return wefti_disk_stream_begin_all(x->table->file, writes, b->pieces, count, &b->ticket);
}

/* Begins to read what the next runs need. */
static weft_status begin_batch(rows_io *x, row_batch *b) {
    unsigned char *memory = x->staging + (b - x->batches) * ROWS_BATCH;
    int64_t bytes = 0;
    b->count = b->used = 0;
    while (x->next < x->count && b->count < ROWS_RUNS && bytes + WEFTI_ROWS_JOINED <= ROWS_BATCH) {
        row_run *r = &b->runs[b->count++];
        *r = next_run(x);
        r->memory = memory + bytes;
        bytes += r->to - r->from;
    }
    return begin_runs(x, b, false, !x->reads);
}

/* The bytes of a batch are there. */
static weft_status use_batch(const rows_io *x, row_batch *b) {
    if (b->used == b->count) return WEFT_OK;
    WEFT_TRY(end_batch(x, b));
    for (; b->used < b->count; b->used++) copy_rows(x, &b->runs[b->used]);
    return x->reads ? WEFT_OK : begin_runs(x, b, true, false);
}

/* The batches take turns. Each is begun, and used when the next one has begun. */
static weft_status move_all(rows_io *x) {
    for (int k = 0; x->next < x->count; k = !k) {
        WEFT_TRY(end_batch(x, &x->batches[k]));
        WEFT_TRY(begin_batch(x, &x->batches[k]));
        WEFT_TRY(use_batch(x, &x->batches[!k]));
    }
    for (int k = 0; k < ROWS_BATCHES; k++) WEFT_TRY(use_batch(x, &x->batches[k]));
    for (int k = 0; k < ROWS_BATCHES; k++) WEFT_TRY(end_batch(x, &x->batches[k]));
    return WEFT_OK;
}

static int by_row(const void *a, const void *b) {
    const int32_t x = ((const wefti_row_place *)a)->row, y = ((const wefti_row_place *)b)->row;
    return (x > y) - (x < y);
}

/* Writes of whole blocks need no bytes between them. */
weft_status wefti_disk_rows_exchange(const wefti_disk_table *table, bool reads,
                                     wefti_row_place *places, int64_t count, void *staging) {
    const bool whole = (table->begin | table->row_bytes) % WEFTI_DISK_ALIGNMENT == 0;
    rows_io x;
    wefti_failure first;
    if (!count || !table->row_bytes) return WEFT_OK;
    x.table = table;
    x.reads = reads;
    x.gap = !reads && whole ? 0 : ROWS_GAP;
    x.places = places;
    x.count = count;
    x.next = x.done = 0;
    x.staging = wefti_disk_align(staging);
    for (int k = 0; k < ROWS_BATCHES; k++) {
        x.batches[k].ticket = NULL;
        x.batches[k].count = x.batches[k].used = 0;
    }
    qsort(places, (size_t)count, sizeof *places, by_row);
    const weft_status status = move_all(&x);
    if (status >= 0) return WEFT_OK;
    wefti_failure_keep(status, &first);
    for (int k = 0; k < ROWS_BATCHES; k++) (void)(end_batch(&x, &x.batches[k]) < 0);
    return wefti_failure_tell(&first);
}

weft_status wefti_disk_rows_move(const wefti_disk_table *table, bool reads, wefti_row_place *places,
                                 int64_t count, void *staging) {
    int32_t first = INT32_MAX, last = 0;
    for (int64_t i = 0; i < count; i++) {
        if (places[i].row < first) first = places[i].row;
        if (places[i].row > last) last = places[i].row;
    }
    if (!count) return WEFT_OK;
    const int64_t begin = table->begin + first * table->row_bytes,
                  end = table->begin + (last + 1) * table->row_bytes;
    WEFT_REQUIRE(!wefti_disk_stream_records(table->file, begin, end, NULL), WEFT_E_BUG,
                 "rows at offset %lld of the file in %s are parts of records, and have no cache",
                 (long long)begin, table->file->directory);
    WEFT_TRY(wefti_disk_stream_ask(table->file, !reads, begin, end));
    return wefti_disk_rows_exchange(table, reads, places, count, staging);
}
