/* A cache of routes. The key holds everything that a route depends on: sizes and links of the mesh,
 * the tensor, both layouts, and the bound. It is a hash table of pointers with open addressing. */
#include "layout/redistribute.h"

#include "base/memory.h"

/* The fields of a layout without padding between them. */
typedef struct layout_key {
    int64_t unit[WEFT_MAX_RANK];
    int8_t count[WEFT_MAX_RANK], axis[WEFT_MAX_RANK][WEFTI_MAX_AXES];
    wefti_axes sum, max;
} layout_key;

typedef struct route_key {
    int64_t bound, shape[WEFT_MAX_RANK];
    wefti_link link[WEFTI_MAX_AXES];
    int32_t size[WEFTI_MAX_AXES];
    int32_t axes, rank;
    int64_t element_bytes;
    layout_key from, to;
} route_key;
_Static_assert(sizeof(route_key) % sizeof(uint64_t) == 0, "hashed by words");

typedef struct route_cache_entry {
    route_key key;
    uint64_t hash;
    wefti_route route;
} route_cache_entry;

struct wefti_route_cache {
    route_cache_entry **table;
    int64_t slots, used;
    wefti_route none; /* the empty route, for equal layouts */
};

weft_status wefti_route_cache_create(wefti_route_cache **out) {
    wefti_route_cache *cache;
    WEFT_NEW(cache, wefti_route_cache);
    *out = cache;
    return WEFT_OK;
}

void wefti_route_cache_destroy(wefti_route_cache *cache) {
    if (!cache) return;
    for (int64_t i = 0; i < cache->slots; i++) wefti_free(cache->table[i]);
    wefti_free(cache->table);
    wefti_free(cache);
}

static void fill_layout(const wefti_layout *layout, layout_key *out) {
    for (int d = 0; d < layout->rank; d++) {
        out->unit[d] = layout->dim[d].unit;
        out->count[d] = layout->dim[d].count;
        for (int i = 0; i < layout->dim[d].count; i++) out->axis[d][i] = layout->dim[d].axis[i];
    }
    out->sum = layout->sum;
    out->max = layout->max;
}

static void fill(const wefti_mesh *mesh, const weft_desc *whole, const wefti_layout *from,
                 const wefti_layout *to, int64_t bound, route_key *out) {
    memset(out, 0, sizeof *out);
    out->bound = bound;
    out->axes = mesh->axes;
    out->rank = whole->rank;
    out->element_bytes = (int64_t)weft_dtype_bytes(whole->dtype);
    for (int d = 0; d < whole->rank; d++) out->shape[d] = whole->shape[d];
    for (int a = 0; a < mesh->axes; a++) {
        out->size[a] = mesh->axis[a].size;
        out->link[a] = mesh->axis[a].link;
    }
    fill_layout(from, &out->from);
    fill_layout(to, &out->to);
}

static uint64_t hash_of(const route_key *key) {
    uint64_t words[sizeof *key / sizeof(uint64_t)], h = 0;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u; /* Fibonacci hashing */
        h ^= h >> 32;
    }
    return h;
}

static int64_t slot_of(route_cache_entry *const *table, int64_t slots, const route_key *key,
                       uint64_t hash) {
    uint64_t mask = (uint64_t)slots - 1, i = hash & mask;
    while (table[i] && (table[i]->hash != hash || memcmp(&table[i]->key, key, sizeof *key)))
        i = (i + 1) & mask;
    return (int64_t)i;
}

static weft_status make_room(wefti_route_cache *cache) {
    if (2 * (cache->used + 1) <= cache->slots) return WEFT_OK;
    int64_t slots = cache->slots ? 2 * cache->slots : 64;
    route_cache_entry **table;
    WEFT_NEW_ARRAY(table, route_cache_entry *, slots);
    for (int64_t i = 0; i < cache->slots; i++) {
        route_cache_entry *e = cache->table[i];
        if (e) table[slot_of(table, slots, &e->key, e->hash)] = e;
    }
    wefti_free(cache->table);
    cache->table = table;
    cache->slots = slots;
    return WEFT_OK;
}

weft_status wefti_route_find(wefti_route_cache *cache, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *from,
                             const wefti_layout *to, int64_t bound, const wefti_route **out) {
    WEFT_TRY(wefti_layout_check(from, mesh, whole));
    WEFT_TRY(wefti_layout_check(to, mesh, whole));
    wefti_layout begin = *from, end = *to;
    wefti_layout_normal(&begin, mesh, whole);
    wefti_layout_normal(&end, mesh, whole);
    if (wefti_layout_equal(&begin, &end)) {
        *out = &cache->none;
        return WEFT_OK;
    }
    route_key key;
    fill(mesh, whole, &begin, &end, bound, &key);
    uint64_t hash = hash_of(&key);
    WEFT_TRY(make_room(cache));
    int64_t slot = slot_of(cache->table, cache->slots, &key, hash);
    if (!cache->table[slot]) {
        route_cache_entry *e;
        WEFT_NEW(e, route_cache_entry);
        weft_status status = wefti_redistribute(mesh, whole, &begin, &end, bound, &e->route);
        if (status < 0) {
            wefti_free(e);
            return wefti_note(status, __func__, __FILE__, __LINE__);
        }
        e->key = key;
        e->hash = hash;
        cache->table[slot] = e;
        cache->used++;
    }
    *out = &cache->table[slot]->route;
    return WEFT_OK;
}
