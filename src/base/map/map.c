/* The hash map. See base/map/map.h. */
#include "base/map/map.h"

#include "base/memory.h"

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15u; /* Fibonacci hashing */
    return h ^ h >> 29;
}

static uint64_t hash_of(const void *key, int64_t bytes) {
    const char *at = key;
    uint64_t word = 0, h = mix(0, (uint64_t)bytes);
    for (; bytes >= (int64_t)sizeof word; bytes -= (int64_t)sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, at, (size_t)bytes);
    h = mix(h, word);
    return h ^ h >> 32;
}

/* The slot of the key, or the free slot where it would go. Requires a free slot. */
static wefti_map_slot *slot_of(const wefti_map *map, const void *key, int64_t bytes,
                               uint64_t hash) {
    const uint64_t mask = (uint64_t)map->capacity - 1;
    for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
        wefti_map_slot *slot = &map->slots[at];
        if (!slot->key ||
            (slot->hash == hash && slot->bytes == bytes && !memcmp(slot->key, key, (size_t)bytes)))
            return slot;
    }
}

weft_status wefti_map_reserve(wefti_map *map, int64_t count) {
    wefti_map bigger = {.count = map->count, .capacity = map->capacity ? map->capacity : 16};
    if (2 * count <= map->capacity) return WEFT_OK;
    while (bigger.capacity < 2 * count) bigger.capacity *= 2;
    WEFT_NEW_ARRAY(bigger.slots, wefti_map_slot, bigger.capacity);
    for (int64_t i = 0; i < map->capacity; i++) {
        const wefti_map_slot *old = &map->slots[i];
        if (old->key) *slot_of(&bigger, old->key, old->bytes, old->hash) = *old;
    }
    wefti_free(map->slots);
    *map = bigger;
    return WEFT_OK;
}

int64_t wefti_map_find(const wefti_map *map, const void *key, int64_t bytes) {
    if (!map->count) return -1;
    const wefti_map_slot *slot = slot_of(map, key, bytes, hash_of(key, bytes));
    return slot->key ? slot->value : -1;
}

weft_status wefti_map_add(wefti_map *map, const void *key, int64_t bytes, int64_t value,
                          int64_t *out) {
    const uint64_t hash = hash_of(key, bytes);
    WEFT_TRY(wefti_map_reserve(map, map->count + 1));
    wefti_map_slot *slot = slot_of(map, key, bytes, hash);
    if (!slot->key) {
        *slot = (wefti_map_slot){.key = key, .bytes = bytes, .value = value, .hash = hash};
        map->count++;
    }
    if (out) *out = slot->value;
    return WEFT_OK;
}

void wefti_map_clear(wefti_map *map) {
    if (map->capacity) memset(map->slots, 0, (size_t)map->capacity * sizeof *map->slots);
    map->count = 0;
}

void wefti_map_free(wefti_map *map) {
    wefti_free(map->slots);
    *map = (wefti_map){0};
}
