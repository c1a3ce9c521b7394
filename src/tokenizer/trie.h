/* A set of byte strings with numbers, searched for the prefixes of a text; and the hash map of
 * pairs of numbers that it shares with byte-pair merging. Looking up a pair is the inner step of
 * both, so this map holds its entries in the table itself, in place of numbers as base/map/map.h.
 */
#ifndef WEFTI_TOKENIZER_TRIE_H
#define WEFTI_TOKENIZER_TRIE_H

#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

typedef struct wefti_bytes {
    const unsigned char *data;
    int64_t count;
} wefti_bytes;

/* (left, right) -> rank and id. */
typedef struct wefti_pair_slot {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: free */
    int32_t id;
} wefti_pair_slot;
typedef struct wefti_pair_map {
    wefti_pair_slot *slots;
    int64_t capacity;
} wefti_pair_map;
weft_status wefti_pair_map_create(int64_t count, wefti_pair_map *out) WEFT_CHECKED;
const wefti_pair_slot *wefti_pair_map_find(const wefti_pair_map *map, int32_t left, int32_t right);
/* A pair that is there gets the new rank, as in Hugging Face tokenizers. */
void wefti_pair_map_add(wefti_pair_map *map, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Zero-initialise; wefti_trie_free. */
typedef struct wefti_trie {
    wefti_pair_map edges; /* (node, byte) -> node; the root is 0 */
    int32_t *ids;         /* [node], -1: no key ends here */
    int32_t nodes;
} wefti_trie;
/* Of equal keys the last one counts. */
weft_status wefti_trie_build(const wefti_bytes *keys, const int32_t *ids, int64_t count,
                             wefti_trie *out) WEFT_CHECKED;
void wefti_trie_free(wefti_trie *trie);
/* The node behind `byte`, or -1. */
int32_t wefti_trie_next(const wefti_trie *trie, int32_t node, unsigned char byte);

#endif
