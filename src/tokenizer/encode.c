/* Encodes text: extracts added tokens, normalises, splits into words, and caches words.
 *
 * Natural text repeats its words, so most words are merged once and then found in the cache. The
 * cache is bounded and emptied when full. Only long texts use it. */
#include <string.h>

#include "tokenizer/alphabet.h"
#include "tokenizer/model/model.h"
#include "tokenizer/unicode.h"

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
    wefti_model_function model;
    wefti_model_scratch scratch;
    wefti_normal_scratch normal;
    wefti_split_scratch *split; /* of each step */
    wefti_text raw;             /* the bytes of a word in GPT-2's alphabet */
    wefti_ids *ids;             /* where tokens go */
    wefti_map cache;            /* word -> index of its entry */
    word_entry *entries;
    unsigned char *keys;
    int64_t keys_used;
    wefti_ids cached;
};

static const wefti_model_function models[] = {
    [WEFTI_MODEL_BPE] = wefti_model_bpe,
    [WEFTI_MODEL_UNIGRAM] = wefti_model_unigram,
    [WEFTI_MODEL_WORD_PIECE] = wefti_model_word_piece,
    [WEFTI_MODEL_WORD_LEVEL] = wefti_model_word_level,
};

weft_status wefti_encoder_create(const weft_tokenizer *tokenizer, wefti_encoder **out) {
    wefti_encoder *e;
    WEFT_NEW(e, wefti_encoder);
    e->tokenizer = tokenizer;
    e->model = models[tokenizer->model];
    e->split = wefti_calloc((size_t)tokenizer->split_count + 1, sizeof *e->split);
    if (!e->split) {
        wefti_free(e);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory to encode text");
    }
    *out = e;
    return WEFT_OK;
}

void wefti_encoder_destroy(wefti_encoder *e) {
    if (!e) return;
    wefti_model_scratch_free(&e->scratch);
    wefti_normal_scratch_free(&e->normal);
    for (int64_t i = 0; i < e->tokenizer->split_count; i++) {
        wefti_text_free(&e->split[i].front);
        wefti_text_free(&e->split[i].mapped);
    }
    wefti_free(e->split);
    wefti_text_free(&e->raw);
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

/* Where the white space before text[at] begins, down to `from`. */
static int64_t spaces_before(const unsigned char *text, int64_t from, int64_t at) {
    int64_t begin = from; /* behind the last character that is none */
    for (int64_t i = from; i < at;) {
        uint32_t point;
        i += wefti_utf8_next(text + i, at - i, &point);
        if (!wefti_unicode_space(point)) begin = i;
    }
    return begin < at ? begin : at;
}

static int64_t spaces_behind(const unsigned char *text, int64_t bytes, int64_t at) {
    uint32_t point;
    for (int length; at < bytes; at += length) {
        length = wefti_utf8_next(text + at, bytes - at, &point);
        if (!wefti_unicode_space(point)) break;
    }
    return at;
}

/* A word from the last step of the splitting. */
static weft_status add_word(void *context, const unsigned char *word, int64_t bytes) {
    wefti_encoder *e = context;
    if (!e->cache.slots || bytes > LONGEST_CACHED)
        return e->model(e->tokenizer, word, bytes, &e->scratch, e->ids);
    int64_t entry = wefti_map_find(&e->cache, word, bytes);
    if (entry >= 0)
        return append(e->ids, e->cached.ids + e->entries[entry].first, e->entries[entry].count);
    int64_t before = e->ids->count;
    WEFT_TRY(e->model(e->tokenizer, word, bytes, &e->scratch, e->ids));
    return remember(e, word, bytes, e->ids->ids + before, e->ids->count - before);
}

/* A word in GPT-2's alphabet: its bytes. A character outside of the alphabet, which a later step
 * may have put there, stays as it is. */
static weft_status add_mapped_word(void *context, const unsigned char *word, int64_t bytes) {
    wefti_encoder *e = context;
    e->raw.used = 0;
    for (int64_t at = 0; at < bytes;) {
        uint32_t point;
        unsigned char byte;
        int64_t one;
        int length = wefti_utf8_next(word + at, bytes - at, &point);
        if (wefti_alphabet_bytes(word + at, length, &byte, &one))
            wefti_text_add_bytes(&e->raw, (const char *)&byte, one);
        else
            wefti_text_add_bytes(&e->raw, (const char *)word + at, length);
        at += length;
    }
    WEFT_REQUIRE(!e->raw.failed, WEFT_E_NOMEM, "no memory for %lld bytes of text",
                 (long long)bytes);
    return add_word(e, (const unsigned char *)e->raw.data, e->raw.used);
}

/* Text without added tokens, normalised. */
static weft_status add_plain(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                             bool first) {
    const weft_tokenizer *t = e->tokenizer;
    const wefti_words words = {t->alphabet == WEFTI_ALPHABET_MAPPED ? add_mapped_word : add_word,
                               e};
    return wefti_pretokenize(t->split, t->split_count, e->split, text, bytes, first, &words);
}

static weft_status add_normalized(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                                  bool first);

/* Extracts added tokens, leftmost and longest first: tokens that match before normalising, then the
 * others in the normalised rest. White space beside a token may belong to it. */
static weft_status add_cutting(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                               bool first, bool normalized) {
    int64_t from = 0; /* behind the last token */
    for (int64_t at = 0;;) {
        wefti_added_match found =
            wefti_added_find(&e->tokenizer->added, normalized, text, bytes, at);
        int64_t begin = found.first, end = found.behind;
        if (found.token && found.token->lstrip) begin = spaces_before(text, from, begin);
        if (found.token && found.token->rstrip) end = spaces_behind(text, bytes, end);
        if (begin > from)
            WEFT_TRY(normalized ? add_plain(e, text + from, begin - from, first && from == 0)
                                : add_normalized(e, text + from, begin - from, first && from == 0));
        if (!found.token) return WEFT_OK;
        WEFT_TRY(wefti_ids_add(e->ids, found.token->id));
        at = found.behind;
        from = end;
    }
}

static weft_status add_normalized(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                                  bool first) {
    const weft_tokenizer *t = e->tokenizer;
    WEFT_TRY(wefti_normalize(t->normal, t->normal_count, &e->normal, &text, &bytes, &first));
    return add_cutting(e, text, bytes, first, true);
}

weft_status wefti_encoder_add(wefti_encoder *e, const unsigned char *text, int64_t bytes,
                              wefti_ids *ids) {
    const weft_tokenizer *t = e->tokenizer;
    if (t->model == WEFTI_MODEL_BYTES) {
        for (int64_t i = 0; i < bytes; i++) WEFT_TRY(wefti_ids_add(ids, t->byte_ids[text[i]]));
        return WEFT_OK;
    }
    if (!e->cache.slots && bytes >= CACHE_FROM_BYTES) WEFT_TRY(make_cache(e));
    e->ids = ids;
    return add_cutting(e, text, bytes, true, false);
}
