/* A hash map from byte strings to numbers: open addressing, linear probing, at most half full.
 * A map borrows its keys: they stay valid and unchanged as long as the map is used. */
#ifndef WEFTI_BASE_MAP_H
#define WEFTI_BASE_MAP_H

#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct wefti_map_slot {
    const void *key; /* NULL: free */
    int64_t bytes, value;
    uint64_t hash;
} wefti_map_slot;

/* Zero-initialise. */
typedef struct wefti_map {
    wefti_map_slot *slots;
    int64_t count, capacity;
} wefti_map;

/* Makes room for `count` keys in all. */
weft_status wefti_map_reserve(wefti_map *map, int64_t count) WEFT_CHECKED;
/* The key's value; -1: the map does not have the key. */
int64_t wefti_map_find(const wefti_map *map, const void *key, int64_t bytes);
/* Adds the key with `value` >= 0. A key that the map has already keeps its value. Stores in *out
 * the value that the map has now; `out` may be NULL. `key` is not NULL, even if it has no bytes. */
weft_status wefti_map_add(wefti_map *map, const void *key, int64_t bytes, int64_t value,
                          int64_t *out) WEFT_CHECKED;
/* Removes all keys, and keeps the room. */
void wefti_map_clear(wefti_map *map);
void wefti_map_free(wefti_map *map);

static inline int64_t wefti_map_find_text(const wefti_map *map, const char *key) {
    return wefti_map_find(map, key, (int64_t)strlen(key));
}
static inline weft_status wefti_map_add_text(wefti_map *map, const char *key, int64_t value,
                                             int64_t *out) {
    return wefti_map_add(map, key, (int64_t)strlen(key), value, out);
}

#endif
