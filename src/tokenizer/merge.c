/* Byte-pair merging of one word, and the hash map of merges. Merging looks up a pair at each step,
 * so this map holds its entries in the table itself, in place of numbers as base/map/map.h.
 *
 * The symbols of a word are a linked list. A heap holds the pairs that could merge, lowest rank
 * first, leftmost of equals. A pair that has changed since it was pushed is dropped when popped. A
 * word of n bytes costs n log n, even a megabyte without a space. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/text.h"
#include "tokenizer/unicode.h"

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

weft_status wefti_merge_map_create(int64_t count, wefti_merge_map *out) {
    wefti_merge_map map = {.capacity = slots_for(count)};
    WEFT_NEW_ARRAY(map.slots, wefti_merge_slot, map.capacity);
    for (int64_t i = 0; i < map.capacity; i++) map.slots[i].rank = -1;
    *out = map;
    return WEFT_OK;
}

static wefti_merge_slot *merge_slot(const wefti_merge_map *map, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t mask = (uint64_t)map->capacity - 1;
    for (uint64_t at = mix(pair + 0x9e3779b97f4a7c15u) & mask;; at = (at + 1) & mask) {
        wefti_merge_slot *slot = &map->slots[at];
        if (slot->rank < 0 || slot->pair == pair) return slot;
    }
}

const wefti_merge_slot *wefti_merge_map_find(const wefti_merge_map *map, int32_t left,
                                             int32_t right) {
    const wefti_merge_slot *slot = merge_slot(map, left, right);
    return slot->rank < 0 ? NULL : slot;
}

void wefti_merge_map_add(wefti_merge_map *map, int32_t left, int32_t right, int32_t rank,
                         int32_t id) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    *merge_slot(map, left, right) = (wefti_merge_slot){pair, rank, id};
}

typedef struct wefti_merge_symbol {
    int32_t id;             /* -1: merged into its left neighbour */
    int64_t previous, next; /* -1: none */
} symbol;

typedef struct wefti_merge_candidate {
    int32_t rank;
    int32_t left, right; /* the pair's symbols when it was pushed */
    int32_t id;
    int64_t at;
} candidate;

static bool before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(candidate *heap, int64_t *count, candidate c) {
    int64_t at = (*count)++;
    while (at > 0 && before(&c, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = c;
}

static candidate pop(candidate *heap, int64_t *count) {
    candidate top = heap[0], last = heap[--*count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= *count) break;
        if (child + 1 < *count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Room for `wanted` elements without keeping old ones. */
static weft_status make_room(void **array, int64_t *capacity, int64_t wanted, size_t element) {
    if (wanted <= *capacity) return WEFT_OK;
    int64_t bigger = wanted < 256 ? 256 : wanted + wanted / 2;
    void *fresh = wefti_alloc((size_t)bigger * element);
    WEFT_REQUIRE(fresh, WEFT_E_NOMEM, "no memory for a word of %lld bytes", (long long)wanted);
    wefti_free(*array);
    *array = fresh;
    *capacity = bigger;
    return WEFT_OK;
}

/* The initial symbols of a word: bytes, or characters; a character without a token becomes its
 * bytes. */
static weft_status symbols_of(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                              symbol *symbols, int64_t *out_count) {
    int64_t count = 0;
    for (int64_t at = 0; at < bytes;) {
        int length = 1;
        int32_t id = -1;
        if (t->kind == WEFTI_TOKENS_PIECES) {
            uint32_t point;
            length = wefti_utf8_next(word + at, bytes - at, &point);
            if (point != WEFTI_NO_CHARACTER)
                id = (int32_t)wefti_map_find(&t->words, word + at, length);
        }
        for (int i = 0; i < (id < 0 ? length : 1); i++) {
            int32_t each = id < 0 ? t->byte_ids[word[at + i]] : id;
            WEFT_REQUIRE(each >= 0, WEFT_E_ARG, "the tokenizer has no token for the byte 0x%02x",
                         word[at + i]);
            symbols[count] = (symbol){each, count - 1, count + 1};
            count++;
        }
        at += length;
    }
    symbols[count - 1].next = -1;
    *out_count = count;
    return WEFT_OK;
}

static void consider(const weft_tokenizer *t, const symbol *symbols, int64_t at, candidate *heap,
                     int64_t *count) {
    if (at < 0 || symbols[at].next < 0) return;
    int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const wefti_merge_slot *merge = wefti_merge_map_find(&t->merges, left, right);
    if (merge) push(heap, count, (candidate){merge->rank, left, right, merge->id, at});
}

weft_status wefti_merge_word(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                             wefti_merge_scratch *scratch, wefti_ids *ids) {
    if (t->whole_words) {
        int32_t id = (int32_t)wefti_map_find(&t->words, word, bytes);
        if (id >= 0) {
            WEFT_TRY(WEFT_GROW(ids->ids, ids->count, ids->capacity));
            ids->ids[ids->count++] = id;
            return WEFT_OK;
        }
    }
    WEFT_TRY(
        make_room((void **)&scratch->symbols, &scratch->symbol_capacity, bytes, sizeof(symbol)));
    /* n - 1 pairs at the start; each of at most n - 1 merges pops one and pushes two */
    WEFT_TRY(
        make_room((void **)&scratch->heap, &scratch->heap_capacity, 2 * bytes, sizeof(candidate)));
    symbol *symbols = scratch->symbols;
    candidate *heap = scratch->heap;
    int64_t count = 0, waiting = 0;
    WEFT_TRY(symbols_of(t, word, bytes, symbols, &count));
    for (int64_t i = 0; i + 1 < count; i++) consider(t, symbols, i, heap, &waiting);
    while (waiting) {
        candidate c = pop(heap, &waiting);
        symbol *left = &symbols[c.at];
        if (left->id != c.left || left->next < 0 || symbols[left->next].id != c.right) continue;
        symbol *right = &symbols[left->next];
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) symbols[left->next].previous = c.at;
        consider(t, symbols, left->previous, heap, &waiting);
        consider(t, symbols, c.at, heap, &waiting);
    }
    for (int64_t i = 0; i >= 0; i = symbols[i].next) {
        WEFT_TRY(WEFT_GROW(ids->ids, ids->count, ids->capacity));
        ids->ids[ids->count++] = symbols[i].id;
    }
    return WEFT_OK;
}

void wefti_merge_scratch_free(wefti_merge_scratch *scratch) {
    wefti_free(scratch->symbols);
    wefti_free(scratch->heap);
    *scratch = (wefti_merge_scratch){0};
}
