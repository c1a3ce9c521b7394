/* Blocks of a file in host memory: see disk_blocks.h. */
#include "device/disk_blocks.h"

#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"
#include "device/disk_parts.h"

/* `held` of the index. A block that is not valid has a slot, but could not be read so far. */
enum { BLOCK_VALID = 1, BLOCK_PINNED = 2, BLOCK_AHEAD = 4 /* read, and not used so far */ };

static int64_t index_bytes(int64_t blocks) {
    return wefti_round_up((int64_t)wefti_row_cache_bytes(blocks), 8);
}

int64_t wefti_disk_blocks_bytes(int64_t blocks) {
    return index_bytes(blocks) + blocks * WEFTI_DISK_ALIGNMENT;
}

int64_t wefti_disk_blocks_of_row(const wefti_disk_table *table) {
    return (table->row_bytes + WEFTI_DISK_ALIGNMENT - 1) / WEFTI_DISK_ALIGNMENT + 1;
}

weft_status wefti_disk_blocks_open(wefti_disk_stream *file, int64_t blocks, void *memory,
                                   wefti_disk_blocks *out) {
    *out =
        (wefti_disk_blocks){.file = file, .memory = (unsigned char *)memory + index_bytes(blocks)};
    WEFT_REQUIRE(file->bytes / WEFTI_DISK_ALIGNMENT <= INT32_MAX, WEFT_E_ARG,
                 "a file of %lld bytes in %s is too large for a cache of its rows",
                 (long long)file->bytes, file->directory);
    wefti_row_cache_init(&out->index, blocks, memory);
    out->places = wefti_alloc((size_t)blocks * sizeof *out->places);
    out->pinned = wefti_alloc((size_t)blocks * sizeof *out->pinned);
    WEFT_REQUIRE(out->places && out->pinned, WEFT_E_NOMEM, "no memory for blocks of a file");
    return WEFT_OK;
}

void wefti_disk_blocks_close(wefti_disk_blocks *b) {
    wefti_free(b->places);
    wefti_free(b->pinned);
}

static unsigned char *memory_of(const wefti_disk_blocks *b, int64_t slot) {
    return b->memory + slot * WEFTI_DISK_ALIGNMENT;
}

static weft_status exchange(wefti_disk_blocks *b, bool reads, int64_t count, void *staging) {
    const wefti_disk_table all = {.file = b->file, .row_bytes = WEFTI_DISK_ALIGNMENT};
    return wefti_disk_rows_exchange(&all, reads, b->places, count, staging);
}

weft_status wefti_disk_blocks_flush(wefti_disk_blocks *b, void *staging) {
    const wefti_row_cache *x = &b->index;
    int64_t count = 0;
    for (int64_t slot = 0; b->changed && slot < x->slots; slot++)
        if (x->changed[slot])
            b->places[count++] = (wefti_row_place){x->row[slot], 0, memory_of(b, slot)};
    const weft_status status = exchange(b, false, count, staging);
    if (status < 0)
        return wefti_prefix(status, "writing back %lld blocks with rows of a cache",
                            (long long)count);
    if (b->changed) memset(x->changed, 0, (size_t)x->slots);
    b->changed = false;
    return WEFT_OK;
}

void wefti_disk_blocks_drop(wefti_disk_blocks *b) {
    memset(b->index.held, 0, (size_t)b->index.slots);
    memset(b->index.changed, 0, (size_t)b->index.slots);
    b->pinned_count = 0;
    b->changed = false;
}

/* A slot for a block: the oldest one that no row needs now. */
static weft_status give_slot(wefti_disk_blocks *b, int32_t block, void *staging, int64_t *out) {
    wefti_row_cache *x = &b->index;
    do {
        *out = x->hand;
        x->hand = x->hand + 1 < x->slots ? x->hand + 1 : 0;
    } while (x->held[*out] & BLOCK_PINNED);
    if (x->changed[*out]) WEFT_TRY(wefti_disk_blocks_flush(b, staging));
    wefti_row_cache_give(x, *out, block);
    b->given++;
    return WEFT_OK;
}

/* Pins the blocks of a row, and counts it. */
static weft_status pin_row(wefti_disk_blocks *b, int64_t begin, int64_t end, bool ahead,
                           void *staging, wefti_blocks_brought *count) {
    wefti_row_cache *x = &b->index;
    bool missing = false, came_ahead = false;
    for (int64_t block = begin / WEFTI_DISK_ALIGNMENT; block * WEFTI_DISK_ALIGNMENT < end;
         block++) {
        int64_t slot = wefti_row_cache_find(x, (int32_t)block);
        if (slot < 0) WEFT_TRY(give_slot(b, (int32_t)block, staging, &slot));
        missing |= !(x->held[slot] & BLOCK_VALID);
        came_ahead |= x->held[slot] & BLOCK_AHEAD;
        if (!ahead)
            x->held[slot] &= (uint8_t)~BLOCK_AHEAD;
        else if (!(x->held[slot] & BLOCK_VALID))
            x->held[slot] |= BLOCK_AHEAD;
        if (x->held[slot] & BLOCK_PINNED) continue;
        x->held[slot] |= BLOCK_PINNED;
        b->pinned[b->pinned_count++] = (int32_t)slot;
    }
    count->rows++;
    count->read += missing;
    count->ahead += came_ahead && !missing;
    return WEFT_OK;
}

static weft_status read_pinned(wefti_disk_blocks *b, void *staging) {
    wefti_row_cache *x = &b->index;
    int64_t count = 0;
    for (int64_t i = 0; i < b->pinned_count; i++) {
        const int32_t slot = b->pinned[i];
        if (!(x->held[slot] & BLOCK_VALID))
            b->places[count++] = (wefti_row_place){x->row[slot], 0, memory_of(b, slot)};
    }
    WEFT_TRY(exchange(b, true, count, staging));
    for (int64_t i = 0; i < b->pinned_count; i++) x->held[b->pinned[i]] |= BLOCK_VALID;
    return WEFT_OK;
}

weft_status wefti_disk_blocks_bring(wefti_disk_blocks *b, const wefti_disk_table *table,
                                    const wefti_row_place *places, int64_t count, bool ahead,
                                    void *staging, wefti_blocks_brought *out) {
    const int64_t each = wefti_disk_blocks_of_row(table), slots = b->index.slots;
    while (b->pinned_count) b->index.held[b->pinned[--b->pinned_count]] &= (uint8_t)~BLOCK_PINNED;
    *out = (wefti_blocks_brought){0};
    while (out->rows < count && b->pinned_count + each <= slots &&
           (!ahead || b->given - b->begun[1] + each <= slots)) {
        const int64_t begin = table->begin + places[out->rows].row * table->row_bytes;
        WEFT_TRY(pin_row(b, begin, begin + table->row_bytes, ahead, staging, out));
    }
    return read_pinned(b, staging);
}

/* The memory of a byte of the file, which is there, and how many bytes follow in its block. */
static unsigned char *find(const wefti_disk_blocks *b, int64_t at, int64_t bytes, size_t *out) {
    const int64_t slot = wefti_row_cache_find(&b->index, (int32_t)(at / WEFTI_DISK_ALIGNMENT)),
                  in = at % WEFTI_DISK_ALIGNMENT;
    *out = (size_t)(bytes < WEFTI_DISK_ALIGNMENT - in ? bytes : WEFTI_DISK_ALIGNMENT - in);
    return memory_of(b, slot) + in;
}

void wefti_disk_blocks_read(const wefti_disk_blocks *b, int64_t at, int64_t bytes,
                            unsigned char *to) {
    for (size_t part; bytes; at += (int64_t)part, to += part, bytes -= (int64_t)part) {
        const unsigned char *from = find(b, at, bytes, &part);
        memcpy(to, from, part);
    }
}

void wefti_disk_blocks_write(wefti_disk_blocks *b, int64_t at, int64_t bytes,
                             const unsigned char *from) {
    for (size_t part; bytes; at += (int64_t)part, from += part, bytes -= (int64_t)part) {
        unsigned char *to = find(b, at, bytes, &part);
        memcpy(to, from, part);
        b->index.changed[(to - b->memory) / WEFTI_DISK_ALIGNMENT] = 1;
        b->changed = true;
    }
}
