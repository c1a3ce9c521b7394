/* Tokenizers: open, encode, decode. See weft/data.h and tokenizer/tokenizer.h. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/io.h"

static weft_status fill_bytes(weft_tokenizer *t) {
    t->vocab = 256;
    t->model = WEFTI_MODEL_BYTES;
    t->tokens = wefti_arena_alloc(t->arena, 256 * sizeof *t->tokens);
    unsigned char *all = wefti_arena_alloc(t->arena, 256);
    WEFT_REQUIRE(t->tokens && all, WEFT_E_NOMEM, "no memory for a tokenizer");
    for (int i = 0; i < 256; i++) {
        all[i] = (unsigned char)i;
        t->byte_ids[i] = i;
        t->tokens[i] = (wefti_bytes){all + i, 1};
    }
    return WEFT_OK;
}

static weft_status open_bytes(weft_tokenizer **out) {
    weft_tokenizer *t;
    WEFT_NEW(t, weft_tokenizer);
    weft_status status = wefti_arena_create(&t->arena);
    if (status >= 0) status = fill_bytes(t);
    if (status < 0) {
        weft_tokenizer_close(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

weft_status weft_tokenizer_open(const char *path, weft_tokenizer **out) {
    if (!path || !strcmp(path, "bytes")) return open_bytes(out);
    WEFT_REQUIRE(!wefti_is_missing(path), WEFT_E_NOT_FOUND, "cannot open %s: it does not exist%s",
                 path, wefti_hub_hint(path));
    char *name = wefti_is_dir(path) ? wefti_format("%s/tokenizer.json", path) : wefti_strdup(path);
    WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for the name of a file");
    char *text = NULL;
    int64_t bytes;
    weft_status status = wefti_file_read(name, WEFTI_TOKENIZER_BYTES, &text, &bytes);
    if (status >= 0) status = wefti_tokenizer_parse(name, text, bytes, out);
    wefti_free(text);
    wefti_free(name);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}

void weft_tokenizer_close(weft_tokenizer *t) {
    if (!t) return;
    wefti_map_free(&t->words);
    wefti_free(t->merges.slots);
    wefti_trie_free(&t->pieces);
    wefti_trie_free(&t->added.exact);
    wefti_trie_free(&t->added.normalized);
    wefti_arena_destroy(t->arena);
    wefti_free(t);
}

int64_t weft_tokenizer_vocab(const weft_tokenizer *t) {
    return t->vocab;
}

int32_t weft_tokenizer_find(const weft_tokenizer *t, const char *text) {
    size_t bytes = strlen(text);
    for (int64_t i = 0; i < t->added.count; i++) {
        const wefti_added_token *added = &t->added.tokens[i];
        if ((size_t)added->content.count == bytes && !memcmp(added->content.data, text, bytes))
            return added->id;
    }
    int32_t id = (int32_t)wefti_map_find(&t->words, text, (int64_t)bytes);
    if (id >= 0 || t->model == WEFTI_MODEL_WORD_PIECE || t->model == WEFTI_MODEL_WORD_LEVEL)
        return id;
    for (int64_t i = 0; i < t->vocab; i++) { /* by what a token decodes to */
        const wefti_bytes *token = &t->tokens[i];
        if (token->data && (size_t)token->count == bytes && !memcmp(token->data, text, bytes) &&
            !(t->byte_fallback && bytes == 1 && t->byte_ids[token->data[0]] == i))
            return (int32_t)i;
    }
    return -1;
}

const int32_t *weft_tokenizer_prefix(const weft_tokenizer *t, int64_t *out_count) {
    *out_count = t->prefix_count;
    return t->prefix;
}

const char *weft_tokenizer_token(const weft_tokenizer *t, int32_t id, int64_t *out_bytes) {
    if (id < 0 || id >= t->vocab || !t->tokens[id].data) return NULL;
    *out_bytes = t->tokens[id].count;
    return (const char *)t->tokens[id].data;
}

weft_status weft_tokenizer_encode(const weft_tokenizer *t, const char *text, int64_t bytes,
                                  int32_t *ids, int64_t capacity, int64_t *out_count) {
    WEFT_REQUIRE(bytes >= 0 && capacity >= 0, WEFT_E_ARG, "%lld bytes, room for %lld tokens",
                 (long long)bytes, (long long)capacity);
    wefti_encoder *encoder;
    WEFT_TRY(wefti_encoder_create(t, &encoder));
    wefti_ids found = {0};
    weft_status status = wefti_encoder_add(encoder, (const unsigned char *)text, bytes, &found);
    wefti_encoder_destroy(encoder);
    if (status >= 0) {
        *out_count = found.count;
        if (found.count > capacity)
            status = WEFT_RAISE(WEFT_E_ARG, "the text has %lld tokens; there is room for %lld",
                                (long long)found.count, (long long)capacity);
        else if (found.count)
            memcpy(ids, found.ids, (size_t)found.count * sizeof *ids);
    }
    wefti_free(found.ids);
    return status;
}

/* What a token at place `at` of `count` decodes to. */
static wefti_bytes decoded(const weft_tokenizer *t, int32_t id, int64_t at, int64_t count) {
    if (t->decoding.first && at == 0) return t->decoding.first[id];
    if (t->decoding.last && at == count - 1) return t->decoding.last[id];
    return t->tokens[id];
}

weft_status weft_tokenizer_decode(const weft_tokenizer *t, const int32_t *ids, int64_t count,
                                  char *text, int64_t capacity, int64_t *out_bytes) {
    const char *strip = t->decoding.strip ? t->decoding.strip : "";
    int64_t used = 0, strips = t->decoding.strip_count, length = (int64_t)strlen(strip);
    for (int64_t i = 0; i < count; i++) {
        WEFT_REQUIRE(ids[i] >= 0 && ids[i] < t->vocab && t->tokens[ids[i]].data, WEFT_E_ARG,
                     "%d, number %lld of the tokens, is not a token of this vocabulary of %lld",
                     ids[i], (long long)i, (long long)t->vocab);
        wefti_bytes token = decoded(t, ids[i], i, count);
        while (length && strips && !used && token.count >= length &&
               !memcmp(token.data, strip, (size_t)length)) {
            token.data += length;
            token.count -= length;
            strips--;
        }
        if (token.count && used <= capacity - token.count)
            memcpy(text + used, token.data, (size_t)token.count);
        used += token.count;
    }
    *out_bytes = used;
    WEFT_REQUIRE(used <= capacity, WEFT_E_ARG,
                 "the tokens are %lld bytes of text; there is room for %lld", (long long)used,
                 (long long)capacity);
    return WEFT_OK;
}
