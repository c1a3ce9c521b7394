/* A cache of routes. The key holds everything that a route depends on: sizes and links of the mesh,
 * the tensor, both layouts, and the bound. */
#include "layout/redistribute.h"

#include "base/map/map.h"
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

typedef struct route_cache_entry {
    route_key key;
    wefti_route route;
} route_cache_entry;

struct wefti_route_cache {
    wefti_map numbers; /* of entries, by their keys */
    route_cache_entry **entries;
    int64_t used, capacity, looks;
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
    for (int64_t i = 0; i < cache->used; i++) wefti_free(cache->entries[i]);
    wefti_free(cache->entries);
    wefti_map_free(&cache->numbers);
    wefti_free(cache);
}

int64_t wefti_route_cache_looks(const wefti_route_cache *cache) {
    return cache->looks;
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

/* Takes over the entry. */
static weft_status add(wefti_route_cache *cache, route_cache_entry *e) {
    weft_status status = WEFT_GROW(cache->entries, cache->used, cache->capacity);
    if (status >= 0)
        status = wefti_map_add(&cache->numbers, &e->key, sizeof e->key, cache->used, NULL);
    if (status < 0) {
        wefti_free(e);
        return status;
    }
    cache->entries[cache->used++] = e;
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
    int64_t number = wefti_map_find(&cache->numbers, &key, sizeof key);
    if (number < 0) {
        route_cache_entry *e;
        WEFT_NEW(e, route_cache_entry);
        weft_status status = wefti_redistribute(mesh, whole, &begin, &end, bound, &e->route);
        if (status < 0) {
            wefti_free(e);
            return wefti_note(status, __func__, __FILE__, __LINE__);
        }
        e->key = key;
        number = cache->used;
        cache->looks += e->route.looks;
        WEFT_TRY(add(cache, e));
    }
    *out = &cache->entries[number]->route;
    return WEFT_OK;
}
