/* See tokenizer/trie.h. */
#include "tokenizer/trie.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t h) { /* finaliser of splitmix64: Steele, Lea, Flood, OOPSLA 2014 */
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

static int64_t slots_for(int64_t count) {
    int64_t capacity = 16;
    while (capacity < count * 2) capacity *= 2;
    return capacity;
}

weft_status wefti_pair_map_create(int64_t count, wefti_pair_map *out) {
    wefti_pair_map map = {.capacity = slots_for(count)};
    WEFT_NEW_ARRAY(map.slots, wefti_pair_slot, map.capacity);
    for (int64_t i = 0; i < map.capacity; i++) map.slots[i].rank = -1;
    *out = map;
    return WEFT_OK;
}

static wefti_pair_slot *slot_of(const wefti_pair_map *map, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t mask = (uint64_t)map->capacity - 1;
    for (uint64_t at = mix(pair + 0x9e3779b97f4a7c15u) & mask;; at = (at + 1) & mask) {
        wefti_pair_slot *slot = &map->slots[at];
        if (slot->rank < 0 || slot->pair == pair) return slot;
    }
}

const wefti_pair_slot *wefti_pair_map_find(const wefti_pair_map *map, int32_t left, int32_t right) {
    const wefti_pair_slot *slot = slot_of(map, left, right);
    return slot->rank < 0 ? NULL : slot;
}

void wefti_pair_map_add(wefti_pair_map *map, int32_t left, int32_t right, int32_t rank,
                        int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    *slot_of(map, left, right) = (wefti_pair_slot){pair, rank, id};
}

static int by_bytes(const void *a, const void *b) {
    const wefti_bytes *x = a, *y = b;
    int64_t both = x->count < y->count ? x->count : y->count;
    int order = both ? memcmp(x->data, y->data, (size_t)both) : 0;
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

/* A node for each different prefix: in sorted order, what a key does not share with the last. */
static weft_status count_nodes(const wefti_bytes *keys, int64_t count, int64_t *out) {
    wefti_bytes *sorted = wefti_alloc((size_t)(count + 1) * sizeof *sorted);
    WEFT_REQUIRE(sorted, WEFT_E_NOMEM, "no memory for a vocabulary of %lld", (long long)count);
    if (count) memcpy(sorted, keys, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_bytes);
    int64_t nodes = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t shared = 0;
        while (i && shared < sorted[i].count && shared < sorted[i - 1].count &&
               sorted[i].data[shared] == sorted[i - 1].data[shared])
            shared++;
        nodes += sorted[i].count - shared;
    }
    wefti_free(sorted);
    *out = nodes;
    return WEFT_OK;
}

weft_status wefti_trie_build(const wefti_bytes *keys, const int32_t *ids, int64_t count,
                             wefti_trie *out) {
    int64_t nodes;
    WEFT_TRY(count_nodes(keys, count, &nodes));
    WEFT_TRY(wefti_pair_map_create(nodes, &out->edges));
    WEFT_NEW_ARRAY(out->ids, int32_t, nodes);
    out->nodes = 1;
    out->ids[0] = -1;
    for (int64_t i = 0; i < count; i++) {
        int32_t node = 0;
        for (int64_t k = 0; k < keys[i].count; k++) {
            int32_t next = wefti_trie_next(out, node, keys[i].data[k]);
            if (next < 0) {
                next = out->nodes++;
                out->ids[next] = -1;
                wefti_pair_map_add(&out->edges, node, keys[i].data[k], 0, next);
            }
            node = next;
        }
        out->ids[node] = ids[i];
    }
    return WEFT_OK;
}

void wefti_trie_free(wefti_trie *trie) {
    wefti_free(trie->edges.slots);
    wefti_free(trie->ids);
    *trie = (wefti_trie){0};
}

int32_t wefti_trie_next(const wefti_trie *trie, int32_t node, unsigned char byte) {
    if (!trie->edges.slots) return -1;
    const wefti_pair_slot *edge = wefti_pair_map_find(&trie->edges, node, byte);
    return edge ? edge->id : -1;
}
