/* Caches of rows of files: see disk_cache.h. */
#include "device/disk_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"
#include "device/disk_blocks.h"
#include "device/disk_parts.h"

enum {
    CACHE_ROUND = 1 << 16, /* rows that are written back at once */
    CACHE_SHARE = 8,       /* the slots have so many times the bytes of the blocks */
    CACHE_BLOCKS = 16      /* at least */
};

/* Tables whose rows lie behind each other in a record, or one that lies alone. */
typedef struct cache_group {
    wefti_disk_guard guard; /* of its blocks */
    wefti_disk_cache *cache;
    wefti_disk_table records; /* a place of the file; a record is a row */
    unsigned char *memory;    /* [slots]: a record */
    int last;                 /* the highest number of a part */
    bool held, changed;       /* by any slot, perhaps */
} cache_group;

/* One of the tables. */
typedef struct cache_part {
    wefti_disk_table table; /* at an offset of the stream */
    int64_t begin, end;     /* of the rows that it has */
    int group;
    int64_t at; /* in the record */
} cache_part;

struct wefti_disk_cache {
    pthread_mutex_t lock; /* of all below */
    wefti_row_cache policy;
    wefti_disk_blocks blocks;
    void *few_blocks; /* their memory, if that of the cache is too small */
    cache_part parts[WEFTI_CACHE_PARTS];
    cache_group groups[WEFTI_CACHE_PARTS];
    int count, group_count;
    bool looked_up; /* part 0 */
    bool quiet;     /* others may still write here: nothing is read ahead before the next copy */
    wefti_row_counts counts;
    wefti_row_place *misses, *leaving; /* [room], both */
    wefti_row_admission *admissions;   /* [room] */
    int64_t room;
    void *staging; /* for rows that are written back before others read */
};

/* The blocks that a cache of so many bytes of rows has. */
static int64_t blocks_for(int64_t bytes) {
    return bytes / CACHE_SHARE / WEFTI_DISK_ALIGNMENT;
}

int64_t wefti_disk_cache_bytes(int64_t slots, int64_t slot_bytes) {
    return wefti_disk_blocks_bytes(blocks_for(slots * slot_bytes)) +
           (int64_t)wefti_row_cache_bytes(slots) + slots * slot_bytes;
}

int64_t wefti_disk_cache_slots(int64_t bytes, int64_t slot_bytes) {
    int64_t low = 0, high = bytes / slot_bytes;
    while (low < high) {
        const int64_t middle = high - (high - low) / 2;
        if (wefti_disk_cache_bytes(middle, slot_bytes) > bytes)
            high = middle - 1;
        else
            low = middle;
    }
    return low;
}

static uint8_t bit_of(const wefti_disk_cache *c, const cache_group *g) {
    return (uint8_t)(1u << (g - c->groups));
}

static unsigned char *record_in(const cache_group *g, int64_t slot) {
    return g->memory + slot * g->records.row_bytes;
}

/* The place of a record in the file. */
static int64_t place_of(const cache_group *g, int64_t row) {
    return g->records.begin + row * g->records.row_bytes;
}

/* ---- rows that are written back ---- */

/* Puts whole records into blocks. */
static weft_status put_back(wefti_disk_cache *c, const cache_group *g,
                            const wefti_row_place *records, int64_t count, void *staging) {
    wefti_blocks_brought brought;
    for (int64_t done = 0; done < count; done += brought.rows) {
        const weft_status status = wefti_disk_blocks_bring(&c->blocks, &g->records, records + done,
                                                           count - done, false, staging, &brought);
        if (status < 0)
            return wefti_prefix(status, "writing back %lld rows of a cache", (long long)count);
        for (int64_t i = done; i < done + brought.rows; i++)
            wefti_disk_blocks_write(&c->blocks, place_of(g, records[i].row), g->records.row_bytes,
                                    records[i].memory);
    }
    c->counts.written += count;
    return WEFT_OK;
}

static int by_row(const void *a, const void *b) {
    const int32_t x = ((const wefti_row_place *)a)->row, y = ((const wefti_row_place *)b)->row;
    return (x > y) - (x < y);
}

/* Rows in the order of their places, so that those of one block meet there. */
static void sort(wefti_row_place *places, int64_t count) {
    qsort(places, (size_t)count, sizeof *places, by_row);
}

/* Writes back all records of a group. */
static weft_status flush(wefti_disk_cache *c, cache_group *g) {
    wefti_row_cache *p = &c->policy;
    const uint8_t bit = bit_of(c, g);
    for (int64_t slot = 0, begin; g->changed && slot < p->used;) {
        int64_t count = 0;
        for (begin = slot; slot < p->used && count < c->room; slot++)
            if (p->changed[slot] & bit)
                c->leaving[count++] = (wefti_row_place){p->row[slot], 0, record_in(g, slot)};
        sort(c->leaving, count);
        WEFT_TRY(put_back(c, g, c->leaving, count, c->staging));
        while (begin < slot) p->changed[begin++] &= (uint8_t)~bit;
    }
    g->changed = false;
    return wefti_disk_blocks_flush(&c->blocks, c->staging);
}

/* The records of a group are about to change in the file. */
static void drop(wefti_disk_cache *c, cache_group *g) {
    for (int64_t slot = 0; g->held && slot < c->policy.used; slot++)
        c->policy.held[slot] &= (uint8_t)~bit_of(c, g);
    g->held = false;
    wefti_disk_blocks_drop(&c->blocks);
}

static weft_status before_others(wefti_disk_guard *guard, bool writes) {
    cache_group *g = (cache_group *)guard;
    wefti_disk_cache *c = g->cache;
    (void)pthread_mutex_lock(&c->lock);
    const weft_status status = flush(c, g);
    if (status >= 0 && writes) drop(c, g);
    c->quiet |= writes;
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- life ---- */

weft_status wefti_disk_cache_reserve(wefti_disk_cache *c, int64_t rows) {
    if (rows <= c->room) return WEFT_OK;
    wefti_row_place *misses = wefti_realloc(c->misses, (size_t)rows * sizeof *misses);
    if (misses) c->misses = misses;
    wefti_row_place *leaving = wefti_realloc(c->leaving, (size_t)rows * sizeof *leaving);
    if (leaving) c->leaving = leaving;
    wefti_row_admission *all = wefti_realloc(c->admissions, (size_t)rows * sizeof *all);
    if (all) c->admissions = all;
    WEFT_REQUIRE(misses && leaving && all, WEFT_E_NOMEM, "no memory for %lld rows of a cache",
                 (long long)rows);
    c->room = rows;
    return WEFT_OK;
}

/* The group of a part, which is a new one unless the part before it is of the same record. */
static cache_group *group_of(wefti_disk_cache *c, const wefti_cache_table *of, cache_part *x) {
    const wefti_disk_table *t = &of->table;
    wefti_disk_records r;
    wefti_disk_table records = *t;
    int64_t begin = x->begin, end = x->end;
    if (wefti_disk_stream_records(t->file, x->begin, x->end, &r)) {
        int part = 0;
        while (part + 1 < r.count && r.part[part].begin < x->begin) part++;
        x->at = r.part[part].at;
        records.row_bytes = r.bytes;
        records.begin = r.begin - of->first * r.bytes;
        begin = r.begin;
        end = r.end;
    }
    cache_group *g = &c->groups[c->group_count];
    if (c->group_count && x->at && g[-1].records.begin == records.begin) return g - 1;
    c->group_count++;
    *g = (cache_group){.guard = {.begin = begin - begin % WEFTI_DISK_ALIGNMENT,
                                 .end = wefti_round_up(end, WEFTI_DISK_ALIGNMENT),
                                 .before = before_others},
                       .cache = c,
                       .records = records};
    return g;
}

static void open_part(wefti_disk_cache *c, const wefti_cache_table *of) {
    const wefti_disk_table *t = &of->table;
    cache_part *x = &c->parts[c->count];
    *x = (cache_part){.table = *t,
                      .begin = t->begin + of->first * t->row_bytes,
                      .end = t->begin + (of->first + of->rows) * t->row_bytes};
    cache_group *g = group_of(c, of, x);
    x->group = (int)(g - c->groups);
    g->last = c->count++;
}

/* Gives the blocks the memory of the cache, or their own if that has no room for a few. */
static weft_status open_blocks(wefti_disk_cache *c, const wefti_disk_cache_options *o,
                               int64_t blocks) {
    int64_t few = CACHE_BLOCKS;
    for (int g = 0; g < c->group_count; g++)
        wefti_keep_most(&few, wefti_disk_blocks_of_row(&c->groups[g].records));
    if (blocks < few) {
        c->few_blocks = wefti_alloc((size_t)wefti_disk_blocks_bytes(few));
        WEFT_REQUIRE(c->few_blocks, WEFT_E_NOMEM, "no memory for blocks of a file");
        blocks = few;
    }
    return wefti_disk_blocks_open(o->parts[0].table.file, blocks,
                                  c->few_blocks ? c->few_blocks : o->memory, &c->blocks);
}

static weft_status open_all(wefti_disk_cache *c, const wefti_disk_cache_options *o) {
    int64_t slot_bytes = 0;
    WEFT_TRY(wefti_disk_cache_reserve(c, o->slots < CACHE_ROUND ? o->slots : CACHE_ROUND));
    c->staging = wefti_alloc(WEFTI_ROWS_STAGING);
    WEFT_REQUIRE(c->staging, WEFT_E_NOMEM, "no memory for a cache of rows");
    for (int part = 0; part < o->count; part++) {
        open_part(c, &o->parts[part]);
        slot_bytes += o->parts[part].table.row_bytes;
    }
    const int64_t blocks = blocks_for(o->slots * slot_bytes);
    unsigned char *memory = (unsigned char *)o->memory + wefti_disk_blocks_bytes(blocks);
    WEFT_TRY(open_blocks(c, o, blocks));
    c->looked_up = o->looked_up;
    wefti_row_cache_init(&c->policy, o->slots, memory);
    memory += wefti_row_cache_bytes(o->slots);
    for (int g = 0; g < c->group_count; g++) {
        c->groups[g].memory = memory;
        memory += o->slots * c->groups[g].records.row_bytes;
        wefti_disk_stream_guard(c->blocks.file, &c->groups[g].guard);
    }
    return WEFT_OK;
}

weft_status wefti_disk_cache_open(const wefti_disk_cache_options *o, wefti_disk_cache **out) {
    wefti_disk_cache *c;
    WEFT_NEW(c, wefti_disk_cache);
    (void)pthread_mutex_init(&c->lock, NULL);
    const weft_status status = open_all(c, o);
    if (status < 0) {
        wefti_disk_cache_close(c);
        return status;
    }
    *out = c;
    return WEFT_OK;
}

void wefti_disk_cache_close(wefti_disk_cache *c) {
    if (!c) return;
    for (int g = 0; g < c->group_count; g++)
        if (c->groups[g].memory) wefti_disk_stream_unguard(c->blocks.file, &c->groups[g].guard);
    wefti_disk_blocks_close(&c->blocks);
    wefti_free(c->few_blocks);
    wefti_free(c->misses);
    wefti_free(c->leaving);
    wefti_free(c->admissions);
    wefti_free(c->staging);
    (void)pthread_mutex_destroy(&c->lock);
    wefti_free(c);
}

void wefti_disk_cache_forget(wefti_disk_cache *c) {
    (void)pthread_mutex_lock(&c->lock);
    wefti_row_cache_init(&c->policy, c->policy.slots, c->policy.row);
    wefti_disk_blocks_drop(&c->blocks);
    for (int g = 0; g < c->group_count; g++) c->groups[g].held = c->groups[g].changed = false;
    (void)pthread_mutex_unlock(&c->lock);
}

int wefti_disk_cache_part(const wefti_disk_cache *c, const wefti_disk_table *t, int64_t *out_row) {
    for (int part = 0; part < c->count; part++) {
        const cache_part *x = &c->parts[part];
        const int64_t row_bytes = x->table.row_bytes, at = t->begin - x->table.begin;
        if (t->file != x->table.file || t->begin < x->begin || t->begin >= x->end ||
            t->row_bytes != row_bytes || at % row_bytes)
            continue;
        *out_row = at / row_bytes;
        return part;
    }
    return -1;
}

wefti_row_counts wefti_disk_cache_counts(wefti_disk_cache *c) {
    (void)pthread_mutex_lock(&c->lock);
    const wefti_row_counts counts = c->counts;
    (void)pthread_mutex_unlock(&c->lock);
    return counts;
}

/* ---- reads and writes of rows ---- */

/* The slot that has a row of a group; -1: none. */
static int64_t slot_with(const wefti_disk_cache *c, const cache_group *g, int32_t row) {
    const int64_t slot = wefti_row_cache_find(&c->policy, row);
    return slot >= 0 && c->policy.held[slot] & bit_of(c, g) ? slot : -1;
}

/* Whether a read uses its row: a look-up, or the first read of a table that has none. */
static bool uses(const wefti_disk_cache *c, int part, const wefti_row_place *place) {
    return place->look_ups || (part == 0 && !c->looked_up);
}

/* Lists the rows that no slot has. The others are copied. */
static int64_t take_hits(wefti_disk_cache *c, int part, bool reads, const wefti_row_place *places,
                         int64_t count) {
    const cache_part *x = &c->parts[part];
    cache_group *g = &c->groups[x->group];
    const size_t bytes = (size_t)x->table.row_bytes;
    int64_t misses = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = slot_with(c, g, places[i].row);
        if (reads && uses(c, part, &places[i])) wefti_row_cache_count(&c->policy, places[i].row);
        c->counts.look_ups += places[i].look_ups;
        c->counts.look_ups_hit += slot < 0 ? 0 : places[i].look_ups;
        if (slot < 0) {
            c->misses[misses++] = places[i];
            continue;
        }
        unsigned char *here = places[i].memory, *there = record_in(g, slot) + x->at;
        memcpy(reads ? here : there, reads ? there : here, bytes);
        if (reads) continue;
        c->policy.changed[slot] |= bit_of(c, g);
        g->changed = true;
    }
    sort(c->misses, misses);
    return misses;
}

/* Rows that are used and were missed get slots. The victims' records stay in the slots' memory for
 * now. Returns how many of the victims were changed, which are `admissions`. */
static int64_t admit(wefti_disk_cache *c, int part, int64_t misses) {
    int64_t changed = 0;
    for (int64_t i = 0; i < misses; i++) {
        wefti_row_admission *a = &c->admissions[changed];
        if (uses(c, part, &c->misses[i]) &&
            wefti_row_cache_find(&c->policy, c->misses[i].row) < 0 &&
            wefti_row_cache_admit(&c->policy, c->misses[i].row, a))
            changed += a->changed != 0;
    }
    return changed;
}

static weft_status put_victims(wefti_disk_cache *c, int64_t victims, void *staging) {
    for (int k = 0; k < c->group_count; k++) {
        const cache_group *g = &c->groups[k];
        int64_t count = 0;
        for (int64_t i = 0; i < victims; i++) {
            const wefti_row_admission *a = &c->admissions[i];
            if (a->changed & bit_of(c, g))
                c->leaving[count++] = (wefti_row_place){a->victim, 0, record_in(g, a->slot)};
        }
        sort(c->leaving, count);
        WEFT_TRY(put_back(c, g, c->leaving, count, staging));
    }
    return WEFT_OK;
}

/* Uses a row whose blocks are there. */
static void use_row(wefti_disk_cache *c, const cache_part *x, bool reads,
                    const wefti_row_place *place) {
    cache_group *g = &c->groups[x->group];
    const int64_t at = place_of(g, place->row), bytes = x->table.row_bytes;
    if (!reads) {
        wefti_disk_blocks_write(&c->blocks, at + x->at, bytes, place->memory);
        return;
    }
    wefti_disk_blocks_read(&c->blocks, at + x->at, bytes, place->memory);
    const int64_t slot = wefti_row_cache_find(&c->policy, place->row);
    if (slot < 0) return;
    wefti_disk_blocks_read(&c->blocks, at, g->records.row_bytes, record_in(g, slot));
    c->policy.held[slot] |= bit_of(c, g);
    g->held = true;
}

/* Reads or writes the rows that were missed. */
static weft_status move_misses(wefti_disk_cache *c, const cache_part *x, bool reads, int64_t count,
                               void *staging) {
    wefti_blocks_brought brought;
    for (int64_t done = 0; done < count; done += brought.rows) {
        WEFT_TRY(wefti_disk_blocks_bring(&c->blocks, &c->groups[x->group].records, c->misses + done,
                                         count - done, false, staging, &brought));
        for (int64_t i = done; i < done + brought.rows; i++) use_row(c, x, reads, &c->misses[i]);
        if (!reads) continue;
        c->counts.misses += brought.read;
        c->counts.hits += brought.rows - brought.read;
        c->counts.ahead += brought.ahead;
    }
    return WEFT_OK;
}

static weft_status read_rows(wefti_disk_cache *c, int part, const wefti_row_place *places,
                             int64_t count, void *staging) {
    const int64_t misses = take_hits(c, part, true, places, count),
                  victims = admit(c, part, misses);
    c->counts.hits += count - misses;
    const weft_status status = put_victims(c, victims, staging);
    for (int64_t i = 0; i < victims && status < 0; i++)
        wefti_row_cache_restore(&c->policy, &c->admissions[i]);
    WEFT_TRY(status);
    return move_misses(c, &c->parts[part], true, misses, staging);
}

static weft_status write_rows(wefti_disk_cache *c, int part, const wefti_row_place *places,
                              int64_t count, void *staging) {
    const cache_part *x = &c->parts[part];
    const int64_t misses = take_hits(c, part, false, places, count);
    WEFT_TRY(move_misses(c, x, false, misses, staging));
    if (part != c->groups[x->group].last) return WEFT_OK;
    c->counts.written += misses;
    return wefti_disk_blocks_flush(&c->blocks, staging);
}

weft_status wefti_disk_cache_move(wefti_disk_cache *c, int part, bool reads,
                                  wefti_row_place *places, int64_t count, void *staging) {
    WEFT_REQUIRE(count <= c->room, WEFT_E_BUG, "%lld rows of a cache with room for %lld",
                 (long long)count, (long long)c->room);
    (void)pthread_mutex_lock(&c->lock);
    c->quiet = false;
    const weft_status status = reads ? read_rows(c, part, places, count, staging)
                                     : write_rows(c, part, places, count, staging);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

bool wefti_disk_cache_ahead(wefti_disk_cache *c, int part, bool turn, wefti_row_place *places,
                            int64_t count, void *staging) {
    const cache_part *x = &c->parts[part];
    const cache_group *g = &c->groups[x->group];
    const int64_t bytes = x->table.row_bytes, first = (x->begin - x->table.begin) / bytes,
                  end = (x->end - x->table.begin) / bytes;
    wefti_blocks_brought brought = {.rows = 1};
    int64_t misses = 0;
    weft_status status = WEFT_OK;
    (void)pthread_mutex_lock(&c->lock);
    if (c->quiet) brought.rows = count = 0;
    if (turn) wefti_disk_blocks_turn(&c->blocks);
    for (int64_t i = 0; i < count; i++)
        if (places[i].row >= first && places[i].row < end && slot_with(c, g, places[i].row) < 0)
            places[misses++] = places[i];
    sort(places, misses);
    for (int64_t done = 0; done < misses && brought.rows && status >= 0; done += brought.rows)
        status = wefti_disk_blocks_bring(&c->blocks, &g->records, places + done, misses - done,
                                         true, staging, &brought);
    (void)pthread_mutex_unlock(&c->lock);
    return status >= 0 && brought.rows;
}
