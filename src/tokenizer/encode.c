/* Encodes text: extracts added tokens, normalises, splits into words, and caches words.
 *
 * Natural text repeats its words, so most words are merged once and then found in the cache. The
 * cache is bounded and emptied when full. Only long texts use it. */
#include <string.h>

#include "tokenizer/tokenizer.h"

enum {
    CACHED_WORDS = 1 << 15,
    LONGEST_CACHED = 48,        /* bytes; longer words seldom repeat */
    CACHE_KEY_BYTES = 1 << 19,  /* of all cached words */
    CACHE_FROM_BYTES = 1 << 12, /* shorter texts do without */
};

typedef struct word_entry {
    int64_t first;
    int64_t count;
} word_entry;

struct wefti_encoder {
    const weft_tokenizer *tokenizer;
    wefti_merge_scratch scratch;
    unsigned char *normal; /* normalised text */
    int64_t normal_capacity;
    wefti_map cache; /* word -> index of its entry */
    word_entry *entries;
    unsigned char *keys;
    int64_t keys_used;
    wefti_ids cached;
};

weft_status wefti_encoder_create(const weft_tokenizer *tokenizer, wefti_encoder **out) {
    wefti_encoder *e;
    WEFT_NEW(e, wefti_encoder);
    e->tokenizer = tokenizer;
    *out = e;
    return WEFT_OK;
}

void wefti_encoder_destroy(wefti_encoder *e) {
    if (!e) return;
    wefti_merge_scratch_free(&e->scratch);
    wefti_free(e->normal);
    wefti_map_free(&e->cache);
    wefti_free(e->entries);
    wefti_free(e->keys);
    wefti_free(e->cached.ids);
    wefti_free(e);
}

static weft_status make_cache(wefti_encoder *e) {
    if (!e->keys) e->keys = wefti_alloc(CACHE_KEY_BYTES);
    if (!e->entries) e->entries = wefti_calloc(CACHED_WORDS, sizeof *e->entries);
    WEFT_REQUIRE(e->keys && e->entries, WEFT_E_NOMEM, "no memory for a cache of words");
    return wefti_map_reserve(&e->cache, CACHED_WORDS);
}

static void empty_cache(wefti_encoder *e) {
    wefti_map_clear(&e->cache);
    e->keys_used = 0;
    e->cached.count = 0;
}

static weft_status append(wefti_ids *to, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        WEFT_TRY(WEFT_GROW(to->ids, to->count, to->capacity));
        to->ids[to->count++] = ids[i];
    }
    return WEFT_OK;
}

static weft_status remember(wefti_encoder *e, const unsigned char *word, int64_t bytes,
                            const int32_t *ids, int64_t count) {
    if (e->cache.count == CACHED_WORDS || e->keys_used + bytes > CACHE_KEY_BYTES) empty_cache(e);
    int64_t first = e->cached.count;
    WEFT_TRY(append(&e->cached, ids, count));
    unsigned char *key = e->keys + e->keys_used;
    memcpy(key, word, (size_t)bytes);
    e->keys_used += bytes;
    e->entries[e->cache.count] = (word_entry){first, count};
    return wefti_map_add(&e->cache, key, bytes, e->cache.count, NULL);
}

static weft_status tokens_of(wefti_encoder *e, const unsigned char *word, int64_t bytes,
                             wefti_ids *ids) {
    if (e->tokenizer->kind == WEFTI_TOKENS_WORD_PIECES)
        return wefti_piece_word(e->tokenizer, word, bytes, ids);
    return wefti_merge_word(e->tokenizer, word, bytes, &e->scratch, ids);
}

static weft_status add_word(wefti_encoder *e, const unsigned char *word, int64_t bytes,
                            wefti_ids *ids) {
    if (!e->cache.slots || bytes > LONGEST_CACHED) return tokens_of(e, word, bytes, ids);
    int64_t entry = wefti_map_find(&e->cache, word, bytes);
    if (entry >= 0)
        return append(ids, e->cached.ids + e->entries[entry].first, e->entries[entry].count);
    int64_t before = ids->count;
    WEFT_TRY(tokens_of(e, word, bytes, ids));
    return remember(e, word, bytes, ids->ids + before, ids->count - before);
}

/* Text with `front` put in front, and each space replaced by U+2581 if `replace`. */
static weft_status rewrite(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                           const char *front, bool replace, int64_t *out_bytes) {
    int64_t wanted = bytes * (replace ? 3 : 1) + 3;
    if (wanted > e->normal_capacity) {
        unsigned char *bigger = wefti_realloc(e->normal, (size_t)wanted);
        WEFT_REQUIRE(bigger, WEFT_E_NOMEM, "no memory for %lld bytes of text", (long long)wanted);
        e->normal = bigger;
        e->normal_capacity = wanted;
    }
    int64_t used = (int64_t)strlen(front);
    memcpy(e->normal, front, (size_t)used);
    for (int64_t i = 0; i < bytes; i++) {
        if (replace && text[i] == ' ') {
            memcpy(e->normal + used, WEFTI_PIECE_SPACE, 3);
            used += 3;
        } else {
            e->normal[used++] = text[i];
        }
    }
    *out_bytes = used;
    return WEFT_OK;
}

static bool begins_with_piece_space(const unsigned char *text, int64_t bytes) {
    return text[0] == ' ' || (bytes >= 3 && !memcmp(text, WEFTI_PIECE_SPACE, 3));
}

static weft_status normalise(wefti_encoder *e, const unsigned char **text, int64_t *bytes,
                             bool first) {
    const weft_tokenizer *t = e->tokenizer;
    if (t->kind == WEFTI_TOKENS_PIECES) {
        bool missing = !begins_with_piece_space(*text, *bytes);
        bool prepend = t->prepend == WEFTI_PREPEND_ALWAYS ||
                       (t->prepend == WEFTI_PREPEND_MISSING && missing) ||
                       (t->prepend == WEFTI_PREPEND_FIRST_MISSING && missing && first);
        WEFT_TRY(rewrite(e, *text, *bytes, prepend ? WEFTI_PIECE_SPACE : "", true, bytes));
    } else if (t->space_first && **text != ' ') {
        WEFT_TRY(rewrite(e, *text, *bytes, " ", false, bytes));
    } else if (t->kind == WEFTI_TOKENS_WORD_PIECES) {
        WEFT_TRY(
            wefti_bert_normalise(&t->bert, *text, *bytes, &e->normal, &e->normal_capacity, bytes));
    } else {
        return WEFT_OK;
    }
    *text = e->normal;
    return WEFT_OK;
}

/* Text without added tokens. */
static weft_status add_plain(wefti_encoder *e, const unsigned char *text, int64_t bytes, bool first,
                             wefti_ids *ids) {
    if (!bytes) return WEFT_OK;
    WEFT_TRY(normalise(e, &text, &bytes, first));
    while (bytes > 0) {
        bool white = false;
        int64_t word = e->tokenizer->split == WEFTI_SPLIT_BERT
                           ? wefti_bert_next(text, bytes, &white)
                           : wefti_pretokenize_next(e->tokenizer->split, text, bytes);
        if (!white) WEFT_TRY(add_word(e, text, word, ids));
        text += word;
        bytes -= word;
    }
    return WEFT_OK;
}

/* The longest added token at the start of the text, or NULL. */
static const wefti_added_token *added_at(const weft_tokenizer *t, const unsigned char *text,
                                         int64_t bytes, bool normalized) {
    if (!t->added_first[text[0]]) return NULL;
    const wefti_added_token *best = NULL;
    for (int64_t i = 0; i < t->added_count; i++) {
        const wefti_added_token *a = &t->added[i];
        if (a->normalized != normalized || a->content.count > bytes) continue;
        if (best && a->content.count <= best->content.count) continue;
        if (!memcmp(a->content.data, text, (size_t)a->content.count)) best = a;
    }
    return best;
}

/* Extracts added tokens, leftmost and longest first: tokens that match before normalising, then the
 * others in the normalised rest. */
static weft_status add_cutting(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                               bool first, bool normalized, wefti_ids *ids) {
    int64_t from = 0;
    for (int64_t at = 0; at <= bytes;) {
        const wefti_added_token *found =
            at < bytes ? added_at(e->tokenizer, text + at, bytes - at, normalized) : NULL;
        if (!found && at < bytes) {
            at++;
            continue;
        }
        bool start = first && from == 0;
        if (normalized)
            WEFT_TRY(add_plain(e, text + from, at - from, start, ids));
        else
            WEFT_TRY(add_cutting(e, text + from, at - from, start, true, ids));
        if (!found) break;
        WEFT_TRY(append(ids, &found->id, 1));
        at += found->content.count;
        from = at;
    }
    return WEFT_OK;
}

weft_status wefti_encoder_add(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                              wefti_ids *ids) {
    const weft_tokenizer *t = e->tokenizer;
    if (t->kind == WEFTI_TOKENS_BYTES) {
        for (int64_t i = 0; i < bytes; i++) WEFT_TRY(append(ids, &t->byte_ids[text[i]], 1));
        return WEFT_OK;
    }
    if (!e->cache.slots && bytes >= CACHE_FROM_BYTES) WEFT_TRY(make_cache(e));
    WEFT_TRY(add_cutting(e, text, bytes, true, false, ids));
    return WEFT_OK;
}
