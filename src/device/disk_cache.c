/* Caches of rows of files: see disk_cache.h. */
#include "device/disk_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/disk_parts.h"
#include "rows/cache.h"

/* Rows that are written back at once. */
enum { CACHE_ROUND = 1 << 16 };

/* One of the tables. */
typedef struct cache_part {
    wefti_disk_guard guard; /* of its bytes */
    wefti_disk_cache *cache;
    wefti_disk_table table;
    unsigned char *memory; /* [slots]: a row */
    bool held, changed;    /* by any slot, perhaps */
} cache_part;

struct wefti_disk_cache {
    pthread_mutex_t lock; /* of all below */
    wefti_row_cache policy;
    cache_part parts[WEFTI_CACHE_PARTS];
    int count;
    bool looked_up;
    wefti_row_counts counts;
    wefti_row_place *misses, *leaving; /* [room], both */
    wefti_row_admission *admissions;   /* [room] */
    int64_t room;
    void *staging; /* for rows that are written back before others read */
};

int64_t wefti_disk_cache_bytes(int64_t slots, int64_t slot_bytes) {
    return (int64_t)wefti_row_cache_bytes(slots) + slots * slot_bytes;
}

static uint8_t bit_of(int part) {
    return (uint8_t)(1u << part);
}

static unsigned char *row_in(const wefti_disk_cache *c, int part, int64_t slot) {
    return c->parts[part].memory + slot * c->parts[part].table.row_bytes;
}

/* ---- rows that are written back ---- */

static weft_status write_back(wefti_disk_cache *c, int part, wefti_row_place *places, int64_t count,
                              void *staging) {
    const weft_status status =
        wefti_disk_rows_exchange(&c->parts[part].table, false, places, count, staging);
    if (status < 0)
        return wefti_prefix(status, "writing back %lld rows of a cache", (long long)count);
    c->counts.written += count;
    return WEFT_OK;
}

/* Writes back all rows of a part. */
static weft_status flush(wefti_disk_cache *c, int part) {
    wefti_row_cache *p = &c->policy;
    for (int64_t slot = 0, begin; c->parts[part].changed && slot < p->used;) {
        int64_t count = 0;
        for (begin = slot; slot < p->used && count < c->room; slot++)
            if (p->changed[slot] & bit_of(part))
                c->leaving[count++] = (wefti_row_place){p->row[slot], 0, row_in(c, part, slot)};
        WEFT_TRY(write_back(c, part, c->leaving, count, c->staging));
        while (begin < slot) p->changed[begin++] &= (uint8_t)~bit_of(part);
    }
    c->parts[part].changed = false;
    return WEFT_OK;
}

/* The rows of a part are about to change in the file. */
static void drop(wefti_disk_cache *c, int part) {
    for (int64_t slot = 0; c->parts[part].held && slot < c->policy.used; slot++)
        c->policy.held[slot] &= (uint8_t)~bit_of(part);
    c->parts[part].held = false;
}

static weft_status before_others(wefti_disk_guard *guard, bool writes) {
    cache_part *part = (cache_part *)guard;
    wefti_disk_cache *c = part->cache;
    const int number = (int)(part - c->parts);
    (void)pthread_mutex_lock(&c->lock);
    const weft_status status = flush(c, number);
    if (status >= 0 && writes) drop(c, number);
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

static void open_part(wefti_disk_cache *c, int part, const wefti_cache_table *of,
                      unsigned char *memory) {
    cache_part *x = &c->parts[part];
    const wefti_disk_table *table = &of->table;
    *x = (cache_part){.guard = {.begin = table->begin + of->first * table->row_bytes,
                                .end = table->begin + (of->first + of->rows) * table->row_bytes,
                                .before = before_others},
                      .cache = c,
                      .table = *table,
                      .memory = memory};
    wefti_disk_stream_guard(table->file, &x->guard);
    c->count++;
}

weft_status wefti_disk_cache_open(const wefti_disk_cache_options *o, wefti_disk_cache **out) {
    wefti_disk_cache *c;
    unsigned char *memory = (unsigned char *)o->memory + wefti_row_cache_bytes(o->slots);
    WEFT_NEW(c, wefti_disk_cache);
    (void)pthread_mutex_init(&c->lock, NULL);
    weft_status status =
        wefti_disk_cache_reserve(c, o->slots < CACHE_ROUND ? o->slots : CACHE_ROUND);
    c->staging = status < 0 ? NULL : wefti_alloc(WEFTI_ROWS_STAGING);
    if (!c->staging) {
        wefti_disk_cache_close(c);
        return status < 0 ? status : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a cache of rows");
    }
    wefti_row_cache_init(&c->policy, o->slots, o->memory);
    c->looked_up = o->looked_up;
    for (int part = 0; part < o->count; part++) {
        open_part(c, part, &o->parts[part], memory);
        memory += o->slots * o->parts[part].table.row_bytes;
    }
    *out = c;
    return WEFT_OK;
}

void wefti_disk_cache_close(wefti_disk_cache *c) {
    if (!c) return;
    for (int part = 0; part < c->count; part++)
        wefti_disk_stream_unguard(c->parts[part].table.file, &c->parts[part].guard);
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
    for (int part = 0; part < c->count; part++)
        c->parts[part].held = c->parts[part].changed = false;
    (void)pthread_mutex_unlock(&c->lock);
}

int wefti_disk_cache_part(const wefti_disk_cache *c, const wefti_disk_table *t, int64_t *out_row) {
    for (int part = 0; part < c->count; part++) {
        const wefti_disk_guard *g = &c->parts[part].guard;
        const int64_t row_bytes = c->parts[part].table.row_bytes,
                      at = t->begin - c->parts[part].table.begin;
        if (t->file != c->parts[part].table.file || t->begin < g->begin || t->begin >= g->end ||
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

static void keep(wefti_disk_cache *c, int part, int64_t slot, const wefti_row_place *from) {
    memcpy(row_in(c, part, slot), from->memory, (size_t)c->parts[part].table.row_bytes);
    c->policy.held[slot] |= bit_of(part);
    c->parts[part].held = true;
}

/* Rows that were missed get slots. The victims' rows stay in the slots' memory for now. Returns how
 * many of the victims were changed, which are `admissions`. */
static int64_t admit(wefti_disk_cache *c, int64_t misses) {
    int64_t changed = 0;
    for (int64_t i = 0; i < misses; i++) {
        wefti_row_admission *a = &c->admissions[changed];
        if (wefti_row_cache_find(&c->policy, c->misses[i].row) < 0 &&
            wefti_row_cache_admit(&c->policy, c->misses[i].row, a))
            changed += a->changed != 0;
    }
    return changed;
}

static weft_status write_victims(wefti_disk_cache *c, int64_t victims, void *staging) {
    for (int part = 0; part < c->count; part++) {
        int64_t count = 0;
        for (int64_t i = 0; i < victims; i++) {
            const wefti_row_admission *a = &c->admissions[i];
            if (a->changed & bit_of(part))
                c->leaving[count++] = (wefti_row_place){a->victim, 0, row_in(c, part, a->slot)};
        }
        WEFT_TRY(write_back(c, part, c->leaving, count, staging));
    }
    return WEFT_OK;
}

static weft_status read_rows(wefti_disk_cache *c, int part, const wefti_row_place *places,
                             int64_t count, void *staging) {
    const size_t bytes = (size_t)c->parts[part].table.row_bytes;
    int64_t misses = 0, look_ups = 0, hit = 0;
    for (int64_t i = 0; i < count; i++) {
        const wefti_row_place *row = &places[i];
        const int64_t slot = wefti_row_cache_find(&c->policy, row->row);
        if (row->look_ups || (part == 0 && !c->looked_up))
            wefti_row_cache_count(&c->policy, row->row);
        look_ups += row->look_ups;
        if (slot >= 0 && c->policy.held[slot] & bit_of(part)) {
            memcpy(row->memory, row_in(c, part, slot), bytes);
            hit += row->look_ups;
        } else {
            c->misses[misses++] = *row;
        }
    }
    WEFT_TRY(wefti_disk_rows_exchange(&c->parts[part].table, true, c->misses, misses, staging));
    c->counts.hits += count - misses;
    c->counts.misses += misses;
    c->counts.look_ups += look_ups;
    c->counts.look_ups_hit += hit;
    const int64_t victims = admit(c, misses);
    const weft_status status = write_victims(c, victims, staging);
    for (int64_t i = 0; i < victims && status < 0; i++)
        wefti_row_cache_restore(&c->policy, &c->admissions[i]);
    for (int64_t i = 0; i < misses && status >= 0; i++) {
        const int64_t slot = wefti_row_cache_find(&c->policy, c->misses[i].row);
        if (slot >= 0) keep(c, part, slot, &c->misses[i]);
    }
    return status;
}

static weft_status write_rows(wefti_disk_cache *c, int part, const wefti_row_place *places,
                              int64_t count, void *staging) {
    int64_t misses = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t slot = wefti_row_cache_find(&c->policy, places[i].row);
        if (slot < 0) {
            c->misses[misses++] = places[i];
            continue;
        }
        keep(c, part, slot, &places[i]);
        c->policy.changed[slot] |= bit_of(part);
        c->parts[part].changed = true;
    }
    WEFT_TRY(wefti_disk_rows_exchange(&c->parts[part].table, false, c->misses, misses, staging));
    c->counts.written += misses;
    return WEFT_OK;
}

weft_status wefti_disk_cache_move(wefti_disk_cache *c, int part, bool reads,
                                  wefti_row_place *places, int64_t count, void *staging) {
    WEFT_REQUIRE(count <= c->room, WEFT_E_BUG, "%lld rows of a cache with room for %lld",
                 (long long)count, (long long)c->room);
    (void)pthread_mutex_lock(&c->lock);
    const weft_status status = reads ? read_rows(c, part, places, count, staging)
                                     : write_rows(c, part, places, count, staging);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}
