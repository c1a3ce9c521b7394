#include "rows/cache.h"

#include <string.h>

enum {
    CACHE_PLACES = 2,  /* of the hash table, for each slot */
    CACHE_PROBES = 3,  /* counters of a row */
    CACHE_LOOKS = 8,   /* slots among which a victim is chosen */
    CACHE_PERIOD = 40, /* counters are halved when so many rows were counted for each slot */
};

size_t wefti_row_cache_bytes(int64_t slots) {
    return (size_t)slots * (sizeof(int32_t) * (1 + CACHE_PLACES) + 2 + WEFTI_CACHE_COUNTERS);
}

void wefti_row_cache_init(wefti_row_cache *c, int64_t slots, void *memory) {
    int32_t *row = memory;
    uint8_t *held = (uint8_t *)(row + slots * (1 + CACHE_PLACES));
    *c = (wefti_row_cache){.slots = slots,
                           .row = row,
                           .table = row + slots,
                           .held = held,
                           .changed = held + slots,
                           .counter = held + 2 * slots};
    memset(row, -1, (size_t)slots * (1 + CACHE_PLACES) * sizeof *row);
    memset(held, 0, (size_t)slots * (2 + WEFTI_CACHE_COUNTERS));
}

/* A number below `end` that depends on all bits of the row: the finalizer of splitmix64 (Steele,
 * Lea, Flood, 2014), and its upper bits. `which`: of several independent numbers. */
static int64_t hash(int32_t row, int which, int64_t end) {
    uint64_t x = ((uint64_t)(uint32_t)row << 3 | (uint64_t)which) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (int64_t)((x >> 32) * (uint64_t)end >> 32);
}

/* ---- the hash table: linear probing ---- */

static int64_t next_place(const wefti_row_cache *c, int64_t at) {
    return at + 1 < CACHE_PLACES * c->slots ? at + 1 : 0;
}

/* The place of a row, or the empty one where it would be. */
static int64_t place_of(const wefti_row_cache *c, int32_t row) {
    int64_t at = hash(row, 0, CACHE_PLACES * c->slots);
    while (c->table[at] >= 0 && c->row[c->table[at]] != row) at = next_place(c, at);
    return at;
}

/* Empties a place. Entries behind it move up, so that each is found from its own place on. */
static void remove_place(wefti_row_cache *c, int64_t hole) {
    const int64_t places = CACHE_PLACES * c->slots;
    for (int64_t at = next_place(c, hole); c->table[at] >= 0; at = next_place(c, at)) {
        const int64_t own = hash(c->row[c->table[at]], 0, places);
        const int64_t from_own = (at - own + places) % places,
                      from_hole = (at - hole + places) % places;
        if (from_own < from_hole) continue;
        c->table[hole] = c->table[at];
        hole = at;
    }
    c->table[hole] = -1;
}

int64_t wefti_row_cache_find(const wefti_row_cache *c, int32_t row) {
    return c->table[place_of(c, row)];
}

/* ---- frequencies ---- */

static uint8_t *counter_of(const wefti_row_cache *c, int32_t row, int probe) {
    return &c->counter[hash(row, 1 + probe, WEFTI_CACHE_COUNTERS * c->slots)];
}

static int frequency(const wefti_row_cache *c, int32_t row) {
    int least = UINT8_MAX;
    for (int probe = 0; probe < CACHE_PROBES; probe++) {
        const int one = *counter_of(c, row, probe);
        if (one < least) least = one;
    }
    return least;
}

static void halve(wefti_row_cache *c) {
    for (int64_t i = 0; i < WEFTI_CACHE_COUNTERS * c->slots; i++) c->counter[i] /= 2;
    c->counted = 0;
}

/* Only the least counters of the row rise, so that other rows raise it less. */
void wefti_row_cache_count(wefti_row_cache *c, int32_t row) {
    const int now = frequency(c, row);
    for (int probe = 0; now < UINT8_MAX && probe < CACHE_PROBES; probe++) {
        uint8_t *one = counter_of(c, row, probe);
        if (*one == now) (*one)++;
    }
    if (++c->counted >= CACHE_PERIOD * c->slots) halve(c);
}

/* ---- admission ---- */

/* The least frequent row of the next slots. */
static int64_t find_victim(wefti_row_cache *c, int *out_frequency) {
    int64_t victim = -1;
    for (int look = 0; look < CACHE_LOOKS && look < c->slots; look++) {
        const int one = frequency(c, c->row[c->hand]);
        if (victim < 0 || one < *out_frequency) {
            victim = c->hand;
            *out_frequency = one;
        }
        c->hand = c->hand + 1 < c->slots ? c->hand + 1 : 0;
    }
    return victim;
}

static void put(wefti_row_cache *c, int64_t slot, int32_t row) {
    c->table[place_of(c, row)] = (int32_t)slot;
    c->row[slot] = row;
}

void wefti_row_cache_give(wefti_row_cache *c, int64_t slot, int32_t row) {
    if (c->row[slot] >= 0) remove_place(c, place_of(c, c->row[slot]));
    put(c, slot, row);
    c->held[slot] = c->changed[slot] = 0;
}

bool wefti_row_cache_admit(wefti_row_cache *c, int32_t row, wefti_row_admission *out) {
    *out = (wefti_row_admission){.slot = c->used, .victim = -1};
    if (c->used < c->slots) {
        c->used++;
    } else {
        int least = 0;
        out->slot = find_victim(c, &least);
        if (frequency(c, row) <= least) return false;
        out->victim = c->row[out->slot];
        out->held = c->held[out->slot];
        out->changed = c->changed[out->slot];
    }
    wefti_row_cache_give(c, out->slot, row);
    return true;
}

void wefti_row_cache_restore(wefti_row_cache *c, const wefti_row_admission *a) {
    wefti_row_cache_give(c, a->slot, a->victim);
    c->held[a->slot] = a->held;
    c->changed[a->slot] = a->changed;
}
