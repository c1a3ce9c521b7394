/* Byte-pair merging of one word.
 *
 * The symbols of a word are a linked list. A heap holds the pairs that could merge, lowest rank
 * first, leftmost of equals. A pair that has changed since it was pushed is dropped when popped. A
 * word of n bytes costs n log n, even a megabyte without a space.
 *
 * Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units",
 * ACL 2016; byte level: Radford et al., "Language Models are Unsupervised Multitask Learners",
 * 2019, section 2.2. */
#include <string.h>

#include "tokenizer/model/model.h"

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

/* The symbols of a word as they are made. */
typedef struct starting {
    const weft_tokenizer *t;
    wefti_model_scratch *scratch;
    int64_t count;
    bool unknown; /* an unknown character waits for a neighbour to be one token with */
} starting;

static void add_symbol(starting *s, int32_t id) {
    s->scratch->symbols[s->count] = (symbol){id, s->count - 1, s->count + 1};
    s->count++;
}

static void add_unknown(starting *s) {
    if (s->unknown) add_symbol(s, s->t->unknown);
    s->unknown = false;
}

/* The text of a character in the vocabulary, with the prefix or suffix that its place asks for. */
static weft_status vocabulary_text(starting *s, bool first, bool last, wefti_bytes *text) {
    wefti_model_scratch *scratch = s->scratch;
    int64_t front = first ? 0 : s->t->prefix_text.count,
            behind = last ? s->t->suffix_text.count : 0;
    if (!front && !behind) return WEFT_OK;
    WEFT_TRY(wefti_model_room((void **)&scratch->piece, &scratch->piece_capacity,
                              front + text->count + behind, 1));
    if (front) memcpy(scratch->piece, s->t->prefix_text.data, (size_t)front);
    memcpy(scratch->piece + front, text->data, (size_t)text->count);
    if (behind)
        memcpy(scratch->piece + front + text->count, s->t->suffix_text.data, (size_t)behind);
    *text = (wefti_bytes){scratch->piece, front + text->count + behind};
    return WEFT_OK;
}

static bool add_bytes(starting *s, wefti_bytes text) {
    for (int64_t i = 0; i < text.count; i++)
        if (s->t->byte_ids[text.data[i]] < 0) return false;
    for (int64_t i = 0; i < text.count; i++) add_symbol(s, s->t->byte_ids[text.data[i]]);
    return true;
}

static weft_status add_character(starting *s, wefti_bytes text) {
    const weft_tokenizer *t = s->t;
    int32_t id = t->alphabet && text.count == 1
                     ? t->byte_ids[text.data[0]]
                     : (int32_t)wefti_map_find(&t->words, text.data, text.count);
    if (id >= 0) {
        add_unknown(s);
        add_symbol(s, id);
        return WEFT_OK;
    }
    if (t->byte_fallback && add_bytes(s, text)) return WEFT_OK;
    WEFT_REQUIRE(t->unknown >= 0, WEFT_E_ARG,
                 "the tokenizer has no token for the byte 0x%02x, and none for unknown text",
                 text.data[0]);
    if (!t->fuse_unknown) add_unknown(s);
    s->unknown = true;
    return WEFT_OK;
}

/* The initial symbols of a word: its characters, bytes of those that are not in the vocabulary, or
 * the unknown token. */
static weft_status symbols_of(starting *s, const unsigned char *word, int64_t bytes) {
    const weft_tokenizer *t = s->t;
    int64_t room = bytes * (1 + t->prefix_text.count) + t->suffix_text.count;
    WEFT_TRY(wefti_model_room((void **)&s->scratch->symbols, &s->scratch->symbol_capacity, room,
                              sizeof(symbol)));
    for (int64_t at = 0; at < bytes;) {
        int length = wefti_model_character(t, word + at, bytes - at);
        wefti_bytes text = {word + at, length};
        WEFT_TRY(vocabulary_text(s, at == 0, at + length == bytes, &text));
        WEFT_TRY(add_character(s, text));
        at += length;
    }
    add_unknown(s);
    s->scratch->symbols[s->count - 1].next = -1;
    return WEFT_OK;
}

static void consider(const weft_tokenizer *t, const symbol *symbols, int64_t at, candidate *heap,
                     int64_t *count) {
    if (at < 0 || symbols[at].next < 0) return;
    int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const wefti_pair_slot *merge = wefti_pair_map_find(&t->merges, left, right);
    if (merge) push(heap, count, (candidate){merge->rank, left, right, merge->id, at});
}

weft_status wefti_model_bpe(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                            wefti_model_scratch *scratch, wefti_ids *ids) {
    if (t->whole_words) {
        int32_t id = (int32_t)wefti_map_find(&t->words, word, bytes);
        if (id >= 0) return wefti_ids_add(ids, id);
    }
    starting start = {.t = t, .scratch = scratch};
    WEFT_TRY(symbols_of(&start, word, bytes));
    /* n - 1 pairs at the start; each of at most n - 1 merges pops one and pushes two */
    WEFT_TRY(wefti_model_room((void **)&scratch->heap, &scratch->heap_capacity, 2 * start.count,
                              sizeof(candidate)));
    symbol *symbols = scratch->symbols;
    candidate *heap = scratch->heap;
    int64_t waiting = 0;
    for (int64_t i = 0; i + 1 < start.count; i++) consider(t, symbols, i, heap, &waiting);
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
    for (int64_t i = 0; i >= 0; i = symbols[i].next) WEFT_TRY(wefti_ids_add(ids, symbols[i].id));
    return WEFT_OK;
}
