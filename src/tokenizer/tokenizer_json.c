/* Parses tokenizer.json of Hugging Face tokenizers, and checks it part by part.
 *
 * The format describes a pipeline with many kinds of parts. Supported are the parts of GPT-2, Llama
 * 3, Qwen 2, Llama 2 and BERT. Any other part is refused by name, since a pipeline without it would
 * silently give other tokens. Source: huggingface/tokenizers, serialisation of Tokenizer; the byte
 * alphabet is bytes_to_unicode of openai/gpt-2, src/encoder.py. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/text.h"
#include "tokenizer/unicode.h"

#if WEFT_HAVE_JANSSON
#include <jansson.h>

typedef struct loader {
    const char *path;
    weft_tokenizer *t;
    json_t *root;
} loader;

#define DAMAGED(l, ...) wefti_prefix(WEFT_RAISE(WEFT_E_CORRUPT, __VA_ARGS__), "%s", (l)->path)
#define UNSUPPORTED(l, ...)                                                                        \
    wefti_prefix(WEFT_RAISE(WEFT_E_NO_IMPL, __VA_ARGS__), "%s: not supported", (l)->path)

/* json_object_get that takes a missing key and null as the same. */
static json_t *get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(get(object, key));
    return text ? text : "";
}

static bool flag_of(const json_t *object, const char *key, bool missing) {
    json_t *value = get(object, key);
    return value ? json_is_true(value) : missing;
}

static bool is(const json_t *object, const char *type) {
    return !strcmp(text_of(object, "type"), type);
}

/* The byte that a character of GPT-2's alphabet stands for, or -1: printable Latin-1 stands for
 * itself, the other bytes, in order, are U+0100 and on. */
static int byte_of(uint32_t point) {
    if ((point >= 33 && point <= 126) || (point >= 161 && point <= 172) ||
        (point >= 174 && point <= 255))
        return (int)point;
    if (point < 0x100 || point > 0x143) return -1;
    int rest = (int)point - 0x100; /* 0 to 32, 127 to 160, 173 */
    return rest < 33 ? rest : rest < 67 ? rest + 94 : 173;
}

/* Decodes a token of the byte alphabet; false if a character is outside of the alphabet. `to` has
 * room for all bytes. */
static bool decode_alphabet(const unsigned char *text, int64_t bytes, unsigned char *to,
                            int64_t *out) {
    int64_t used = 0;
    for (int64_t at = 0; at < bytes;) {
        uint32_t point;
        at += wefti_utf8_next(text + at, bytes - at, &point);
        int byte = byte_of(point);
        if (byte < 0) return false;
        to[used++] = (unsigned char)byte;
    }
    *out = used;
    return true;
}

static weft_status copy(loader *l, const void *data, int64_t bytes, wefti_bytes *out) {
    unsigned char *to = wefti_arena_alloc(l->t->arena, (size_t)bytes + 1);
    WEFT_REQUIRE(to, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
    memcpy(to, data, (size_t)bytes);
    *out = (wefti_bytes){to, bytes};
    return WEFT_OK;
}

/* <0x41>: the byte, or -1. */
static int byte_piece(const char *text, size_t bytes) {
    if (bytes != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'))) return -1;
        value = value * 16 + (c <= '9' ? c - '0' : c - 'A' + 10);
    }
    return value;
}

/* The decoded bytes of a piece: U+2581 is a space, <0xNN> a byte. */
static weft_status decode_piece(loader *l, const char *text, size_t bytes, int32_t id,
                                wefti_bytes *out) {
    unsigned char *to = wefti_arena_alloc(l->t->arena, bytes + 1);
    WEFT_REQUIRE(to, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
    int64_t used = 0;
    int byte = byte_piece(text, bytes);
    if (byte >= 0) {
        to[used++] = (unsigned char)byte;
        l->t->byte_ids[byte] = id;
        bytes = 0;
    }
    for (size_t at = 0; at < bytes;) {
        if (bytes - at >= 3 && !memcmp(text + at, WEFTI_PIECE_SPACE, 3)) {
            to[used++] = ' ';
            at += 3;
        } else {
            to[used++] = (unsigned char)text[at++];
        }
    }
    *out = (wefti_bytes){to, used};
    return WEFT_OK;
}

static weft_status set_token(loader *l, int32_t id, const char *name, wefti_bytes bytes) {
    if (l->t->tokens[id].data)
        return DAMAGED(l, "two tokens have the number %d, one is '%s'", id, name);
    l->t->tokens[id] = bytes;
    return WEFT_OK;
}

/* One entry of model.vocab. */
static weft_status add_word(loader *l, const char *name, int32_t id) {
    weft_tokenizer *t = l->t;
    int64_t length = (int64_t)strlen(name);
    wefti_bytes key, decoded;
    WEFT_TRY(copy(l, name, length, &key));
    if (t->kind == WEFTI_TOKENS_PIECES) {
        WEFT_TRY(decode_piece(l, name, (size_t)length, id, &decoded));
        WEFT_TRY(wefti_map_add(&t->words, key.data, key.count, id, NULL));
    } else if (t->kind == WEFTI_TOKENS_WORD_PIECES) {
        WEFT_TRY(wefti_piece_decoded(t, key, false, &decoded));
        WEFT_TRY(wefti_piece_decoded(t, key, true, &t->pieces.first[id]));
        if (length > t->pieces.longest) t->pieces.longest = length;
        WEFT_TRY(wefti_map_add(&t->words, key.data, key.count, id, NULL));
    } else {
        int64_t bytes;
        unsigned char *raw = wefti_arena_alloc(t->arena, (size_t)length + 1);
        WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
        decoded = key; /* text outside the alphabet, which no merge makes, stands for itself */
        if (decode_alphabet(key.data, length, raw, &bytes)) {
            decoded = (wefti_bytes){raw, bytes};
            if (bytes == 1) t->byte_ids[raw[0]] = id;
            WEFT_TRY(wefti_map_add(&t->words, decoded.data, decoded.count, id, NULL));
        }
    }
    return set_token(l, id, name, decoded);
}

static weft_status number_of(loader *l, const json_t *value, const char *name, int64_t limit,
                             int32_t *out) {
    if (!json_is_integer(value)) return DAMAGED(l, "the token '%s' has no number", name);
    int64_t id = json_integer_value(value);
    if (id < 0 || id >= limit)
        return DAMAGED(l, "the token '%s' has the number %lld; below %lld were expected", name,
                       (long long)id, (long long)limit);
    *out = (int32_t)id;
    return WEFT_OK;
}

/* Sizes the tables: numbers may have gaps, but not so that a small file makes a large table. */
static weft_status make_tables(loader *l, const json_t *vocab, const json_t *added) {
    enum { GAPS = 65536 };
    weft_tokenizer *t = l->t;
    int64_t entries = (int64_t)json_object_size(vocab) + (int64_t)json_array_size(added);
    int64_t limit = entries * 2 + GAPS, largest = -1;
    const char *name;
    json_t *value;
    int32_t id;
    json_object_foreach((json_t *)vocab, name, value) {
        WEFT_TRY(number_of(l, value, name, limit, &id));
        if (id > largest) largest = id;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        value = json_array_get(added, i);
        WEFT_TRY(number_of(l, get(value, "id"), text_of(value, "content"), limit, &id));
        if (id > largest) largest = id;
    }
    if (largest < 0) return DAMAGED(l, "the vocabulary is empty");
    t->vocab = largest + 1;
    t->tokens = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *t->tokens);
    WEFT_REQUIRE(t->tokens, WEFT_E_NOMEM, "no memory for a vocabulary of %lld",
                 (long long)t->vocab);
    if (t->kind == WEFTI_TOKENS_WORD_PIECES) {
        t->pieces.first = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *t->pieces.first);
        WEFT_REQUIRE(t->pieces.first, WEFT_E_NOMEM, "no memory for a vocabulary of %lld",
                     (long long)t->vocab);
    }
    for (int i = 0; i < 256; i++) t->byte_ids[i] = -1;
    WEFT_TRY(wefti_map_reserve(&t->words, entries));
    json_object_foreach((json_t *)vocab, name, value)
        WEFT_TRY(add_word(l, name, (int32_t)json_integer_value(value)));
    return WEFT_OK;
}

/* The number of one half of a merge, its bytes appended to `joined`. */
static weft_status half(loader *l, int64_t rank, const char *text, int64_t bytes,
                        unsigned char *joined, int64_t *used, int32_t *out) {
    unsigned char *at = joined + *used;
    int64_t count = bytes;
    bool known = true;
    if (l->t->kind == WEFTI_TOKENS_PIECES)
        memcpy(at, text, (size_t)bytes);
    else
        known = decode_alphabet((const unsigned char *)text, bytes, at, &count);
    *used += count;
    *out = known ? (int32_t)wefti_map_find(&l->t->words, at, count) : -1;
    if (*out < 0)
        return DAMAGED(l, "merge %lld: '%.*s' is not in the vocabulary", (long long)rank,
                       (int)(bytes < 100 ? bytes : 100), text);
    return WEFT_OK;
}

/* One merge: "a b", or ["a", "b"]. */
static weft_status add_merge(loader *l, const json_t *merge, int64_t rank, wefti_text *joined) {
    const char *left, *right;
    int64_t left_bytes, right_bytes;
    if (json_is_string(merge)) {
        left = json_string_value(merge);
        const char *space = strchr(left, ' ');
        if (!space || strchr(space + 1, ' '))
            return DAMAGED(l, "merge %lld, '%.100s', is not two tokens and a space",
                           (long long)rank, left);
        left_bytes = space - left;
        right = space + 1;
    } else {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
        if (!left || !right || json_array_size(merge) != 2)
            return DAMAGED(l, "merge %lld is not a pair of tokens", (long long)rank);
        left_bytes = (int64_t)strlen(left);
    }
    right_bytes = (int64_t)strlen(right);
    joined->used = 0; /* room for both halves; its bytes are written below */
    wefti_text_add_bytes(joined, left, left_bytes);
    wefti_text_add_bytes(joined, right, right_bytes);
    WEFT_REQUIRE(!joined->failed, WEFT_E_NOMEM, "no memory for the merges of %s", l->path);
    unsigned char *bytes = (unsigned char *)joined->data;
    int64_t used = 0;
    int32_t left_id, right_id;
    WEFT_TRY(half(l, rank, left, left_bytes, bytes, &used, &left_id));
    WEFT_TRY(half(l, rank, right, right_bytes, bytes, &used, &right_id));
    int32_t id = (int32_t)wefti_map_find(&l->t->words, bytes, used);
    if (id < 0)
        return DAMAGED(
            l, "merge %lld: '%.100s' and '%.100s' make a token that is not in the vocabulary",
            (long long)rank, left, right);
    wefti_merge_map_add(&l->t->merges, left_id, right_id, (int32_t)rank, id);
    return WEFT_OK;
}

static weft_status read_merges(loader *l, const json_t *merges) {
    int64_t count = (int64_t)json_array_size(merges);
    WEFT_TRY(wefti_merge_map_create(count, &l->t->merges));
    wefti_text joined = {0};
    weft_status status = WEFT_OK;
    for (int64_t i = 0; status >= 0 && i < count; i++)
        status = add_merge(l, json_array_get(merges, (size_t)i), i, &joined);
    wefti_text_free(&joined);
    return status;
}

/* "[UNK]", the prefix "##", and how long a word may be. */
static weft_status read_word_pieces(loader *l, const json_t *model, const json_t *vocab) {
    wefti_pieces *p = &l->t->pieces;
    const char *prefix = text_of(model, "continuing_subword_prefix");
    const char *unknown = text_of(model, "unk_token");
    json_t *most = get(model, "max_input_chars_per_word");
    WEFT_TRY(copy(l, prefix, (int64_t)strlen(prefix), &p->prefix));
    p->most_characters = most ? json_integer_value(most) : 100;
    if (p->most_characters < 1)
        return DAMAGED(l, "model.max_input_chars_per_word is %lld; at least 1 was expected",
                       (long long)p->most_characters);
    WEFT_TRY(make_tables(l, vocab, get(l->root, "added_tokens")));
    p->unknown = (int32_t)wefti_map_find(&l->t->words, unknown, (int64_t)strlen(unknown));
    if (p->unknown < 0)
        return DAMAGED(l, "the token for unknown words, '%s', is not in the vocabulary", unknown);
    return WEFT_OK;
}

static weft_status read_model(loader *l, const json_t *model) {
    /* early files of GPT-2 have no type; then vocabulary and merges make it byte pairs */
    const char *type = text_of(model, "type");
    json_t *vocab = get(model, "vocab"), *merges = get(model, "merges");
    bool pieces = l->t->kind == WEFTI_TOKENS_WORD_PIECES;
    if (*type && strcmp(type, "BPE") && strcmp(type, "WordPiece"))
        return UNSUPPORTED(l, "the model type %s (only BPE and WordPiece)", type);
    if (!strcmp(type, "WordPiece") != pieces)
        return UNSUPPORTED(l, "the model type %s %s the pre-tokenizer BertPreTokenizer",
                           *type ? type : "BPE", pieces ? "with" : "without");
    if (!json_is_object(vocab)) return DAMAGED(l, "model.vocab is missing or no object");
    json_t *added = get(l->root, "added_tokens");
    if (added && !json_is_array(added)) return DAMAGED(l, "added_tokens is not a list");
    if (pieces) return read_word_pieces(l, model, vocab);
    if (!json_is_array(merges)) return DAMAGED(l, "model.merges is missing or no list");
    json_t *dropout = get(model, "dropout");
    if (dropout && json_number_value(dropout) != 0.0) return UNSUPPORTED(l, "model.dropout");
    if (*text_of(model, "continuing_subword_prefix"))
        return UNSUPPORTED(l, "model.continuing_subword_prefix '%s'",
                           text_of(model, "continuing_subword_prefix"));
    if (*text_of(model, "end_of_word_suffix"))
        return UNSUPPORTED(l, "model.end_of_word_suffix '%s'",
                           text_of(model, "end_of_word_suffix"));
    bool fallback = flag_of(model, "byte_fallback", false);
    if (l->t->kind == WEFTI_TOKENS_BYTE_LEVEL && fallback)
        return UNSUPPORTED(l, "model.byte_fallback together with the pre-tokenizer ByteLevel");
    if (l->t->kind == WEFTI_TOKENS_PIECES && !fallback)
        return UNSUPPORTED(l,
                           "a model without byte_fallback and without the pre-tokenizer ByteLevel");
    l->t->whole_words = flag_of(model, "ignore_merges", false);
    WEFT_TRY(make_tables(l, vocab, added));
    WEFT_TRY(read_merges(l, merges));
    return WEFT_OK;
}

static weft_status read_added(loader *l, const json_t *list) {
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    weft_tokenizer *t = l->t;
    size_t count = json_array_size(list);
    t->added = wefti_arena_alloc(t->arena, (count + 1) * sizeof *t->added);
    WEFT_REQUIRE(t->added, WEFT_E_NOMEM, "no memory for the added tokens of %s", l->path);
    for (size_t i = 0; i < count; i++) {
        json_t *entry = json_array_get(list, i);
        const char *content = text_of(entry, "content");
        if (!*content) return DAMAGED(l, "added token %zu has no content", i);
        for (size_t k = 0; k < 3; k++)
            if (flag_of(entry, unsupported[k], false))
                return UNSUPPORTED(l, "%s of the added token '%s'", unsupported[k], content);
        wefti_added_token *a = &t->added[i];
        a->id = (int32_t)json_integer_value(get(entry, "id"));
        a->normalized = flag_of(entry, "normalized", false);
        if (a->normalized && get(l->root, "normalizer"))
            return UNSUPPORTED(l, "'normalized' of the added token '%s' together with a normalizer",
                               content);
        WEFT_TRY(copy(l, content, (int64_t)strlen(content), &a->content));
        /* it may be in the vocabulary as well, under the same number */
        json_t *same = json_object_get(get(get(l->root, "model"), "vocab"), content);
        if (same && json_integer_value(same) == a->id) t->tokens[a->id].data = NULL;
        wefti_bytes decoded = a->content;
        if (t->pieces.first) {
            WEFT_TRY(wefti_piece_decoded(t, a->content, false, &decoded));
            WEFT_TRY(wefti_piece_decoded(t, a->content, true, &t->pieces.first[a->id]));
        }
        WEFT_TRY(set_token(l, a->id, content, decoded));
        t->added_first[a->content.data[0]] = true;
        t->added_count++;
    }
    return WEFT_OK;
}

static weft_status read_split(loader *l, const json_t *split) {
    static const struct {
        const char *pattern;
        wefti_pretokenizer split;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         WEFTI_SPLIT_GPT2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         WEFTI_SPLIT_LLAMA3},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         WEFTI_SPLIT_QWEN2}};
    const char *pattern = text_of(get(split, "pattern"), "Regex");
    if (strcmp(text_of(split, "behavior"), "Isolated") || flag_of(split, "invert", false))
        return UNSUPPORTED(l, "the pre-tokenizer Split with behavior '%s'%s",
                           text_of(split, "behavior"),
                           flag_of(split, "invert", false) ? ", inverted," : "");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(pattern, known[i].pattern)) {
            l->t->split = known[i].split;
            return WEFT_OK;
        }
    return UNSUPPORTED(
        l,
        "the pre-tokenizer Split with the pattern '%.300s' (only those of GPT-2, Llama 3 "
        "and Qwen 2)",
        pattern);
}

static weft_status read_metaspace(loader *l, const json_t *part) {
    weft_tokenizer *t = l->t;
    if (strcmp(text_of(part, "replacement"), WEFTI_PIECE_SPACE) || flag_of(part, "split", true))
        return UNSUPPORTED(
            l, "the pre-tokenizer Metaspace that splits or has another replacement than U+2581");
    const char *scheme = text_of(part, "prepend_scheme");
    if (!strcmp(scheme, "always"))
        t->prepend = WEFTI_PREPEND_MISSING;
    else if (!strcmp(scheme, "first"))
        t->prepend = WEFTI_PREPEND_FIRST_MISSING;
    else if (strcmp(scheme, "never"))
        return UNSUPPORTED(l, "the prepend_scheme '%s' of the pre-tokenizer Metaspace", scheme);
    t->kind = WEFTI_TOKENS_PIECES;
    return WEFT_OK;
}

static weft_status read_byte_level(loader *l, const json_t *part, bool alone) {
    weft_tokenizer *t = l->t;
    bool space = flag_of(part, "add_prefix_space", true), regex = flag_of(part, "use_regex", true);
    if (!alone && (space || regex))
        return UNSUPPORTED(
            l, "the pre-tokenizer ByteLevel behind others with use_regex or add_prefix_space");
    t->space_first = space;
    if (alone) t->split = regex ? WEFTI_SPLIT_GPT2 : WEFTI_SPLIT_NONE;
    t->kind = WEFTI_TOKENS_BYTE_LEVEL;
    return WEFT_OK;
}

/* Byte level: ByteLevel, or Split and ByteLevel. Pieces: Metaspace, or nothing with a normalizer.
 * Word pieces: BertPreTokenizer. */
static weft_status read_pre_tokenizer(loader *l, const json_t *part) {
    if (!part) {
        l->t->kind = WEFTI_TOKENS_PIECES;
        return WEFT_OK;
    }
    if (is(part, "ByteLevel")) return read_byte_level(l, part, true);
    if (is(part, "BertPreTokenizer")) {
        l->t->kind = WEFTI_TOKENS_WORD_PIECES;
        l->t->split = WEFTI_SPLIT_BERT;
        return WEFT_OK;
    }
    if (is(part, "Metaspace")) return read_metaspace(l, part);
    if (!is(part, "Sequence"))
        return UNSUPPORTED(l, "the pre-tokenizer '%s'", text_of(part, "type"));
    json_t *parts = get(part, "pretokenizers");
    json_t *first = json_array_get(parts, 0), *second = json_array_get(parts, 1);
    if (json_array_size(parts) == 1) return read_pre_tokenizer(l, first);
    if (json_array_size(parts) != 2 || !is(first, "Split") || !is(second, "ByteLevel"))
        return UNSUPPORTED(l, "a sequence of %zu pre-tokenizers other than Split and ByteLevel",
                           json_array_size(parts));
    WEFT_TRY(read_split(l, first));
    return read_byte_level(l, second, false);
}

static bool is_replace(const json_t *part, const char *from, const char *to) {
    return is(part, "Replace") && !strcmp(text_of(get(part, "pattern"), "String"), from) &&
           !strcmp(text_of(part, "content"), to);
}

/* Nothing for byte level and Metaspace; for bare pieces Prepend U+2581 and Replace of spaces by it.
 */
static weft_status read_normalizer(loader *l, const json_t *part) {
    if (!part) {
        if (l->t->kind == WEFTI_TOKENS_PIECES && !get(l->root, "pre_tokenizer"))
            return UNSUPPORTED(l, "a file with neither normalizer nor pre-tokenizer");
        return WEFT_OK;
    }
    if (l->t->kind == WEFTI_TOKENS_WORD_PIECES && is(part, "BertNormalizer")) {
        bool lower = flag_of(part, "lowercase", true);
        l->t->bert = (wefti_bert){.clean = flag_of(part, "clean_text", true),
                                  .ideographs = flag_of(part, "handle_chinese_chars", true),
                                  .strip = flag_of(part, "strip_accents", lower),
                                  .lower = lower};
        return WEFT_OK;
    }
    if (get(l->root, "pre_tokenizer"))
        return UNSUPPORTED(l, "the normalizer '%s' together with a pre-tokenizer",
                           text_of(part, "type"));
    json_t *parts = get(part, "normalizers");
    const json_t *prepend = NULL, *replace = part;
    if (is(part, "Sequence")) {
        size_t count = json_array_size(parts);
        prepend = count == 2 ? json_array_get(parts, 0) : NULL;
        replace = count == 1 || count == 2 ? json_array_get(parts, count - 1) : NULL;
    }
    if (!is_replace(replace, " ", WEFTI_PIECE_SPACE))
        return UNSUPPORTED(l, "the normalizer '%s' (only Prepend and Replace as in Llama 2)",
                           replace ? text_of(replace, "type") : "Sequence");
    if (prepend &&
        (!is(prepend, "Prepend") || strcmp(text_of(prepend, "prepend"), WEFTI_PIECE_SPACE)))
        return UNSUPPORTED(l, "the normalizer '%s'", text_of(prepend, "type"));
    if (prepend) l->t->prepend = WEFTI_PREPEND_ALWAYS;
    return WEFT_OK;
}

/* The decoder must undo the encoding; it may drop a leading space. */
static weft_status read_decoder(loader *l, const json_t *part) {
    if (l->t->kind == WEFTI_TOKENS_BYTE_LEVEL) {
        if (part && !is(part, "ByteLevel"))
            return UNSUPPORTED(l, "the decoder '%s' with the pre-tokenizer ByteLevel",
                               text_of(part, "type"));
        return WEFT_OK;
    }
    if (l->t->kind == WEFTI_TOKENS_WORD_PIECES) {
        const char *prefix = text_of(part, "prefix");
        if (part && !is(part, "WordPiece"))
            return UNSUPPORTED(l, "the decoder '%s' with the pre-tokenizer BertPreTokenizer",
                               text_of(part, "type"));
        l->t->pieces.joins = part != NULL;
        l->t->pieces.cleanup = flag_of(part, "cleanup", false);
        return copy(l, prefix, (int64_t)strlen(prefix), &l->t->pieces.joined);
    }
    if (is(part, "Metaspace")) {
        l->t->strip = strcmp(text_of(part, "prepend_scheme"), "never") != 0;
        return WEFT_OK;
    }
    json_t *parts = get(part, "decoders");
    size_t count = json_array_size(parts);
    bool fits = is(part, "Sequence") && (count == 3 || count == 4) &&
                is_replace(json_array_get(parts, 0), WEFTI_PIECE_SPACE, " ") &&
                is(json_array_get(parts, 1), "ByteFallback") &&
                is(json_array_get(parts, 2), "Fuse");
    json_t *strip = fits ? json_array_get(parts, 3) : NULL;
    if (strip) {
        fits = is(strip, "Strip") && !strcmp(text_of(strip, "content"), " ") &&
               json_integer_value(get(strip, "start")) == 1 &&
               json_integer_value(get(strip, "stop")) == 0;
        l->t->strip = true;
    }
    if (!fits)
        return UNSUPPORTED(l, "the decoder '%s' (only that of Llama 2)", text_of(part, "type"));
    return WEFT_OK;
}

/* Numbers that a TemplateProcessing puts in front of a single text. */
static weft_status read_template(loader *l, const json_t *part) {
    weft_tokenizer *t = l->t;
    json_t *single = get(part, "single"), *specials = get(part, "special_tokens");
    for (size_t i = 0; i < json_array_size(single); i++) {
        json_t *special = get(json_array_get(single, i), "SpecialToken");
        if (!special) break;
        json_t *ids = get(get(specials, text_of(special, "id")), "ids");
        size_t count = json_array_size(ids);
        int32_t *longer =
            wefti_arena_alloc(t->arena, ((size_t)t->prefix_count + count) * sizeof *longer);
        WEFT_REQUIRE(longer, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
        if (t->prefix_count) memcpy(longer, t->prefix, (size_t)t->prefix_count * sizeof *longer);
        t->prefix = longer;
        for (size_t k = 0; k < count; k++)
            WEFT_TRY(number_of(l, json_array_get(ids, k), text_of(special, "id"), t->vocab,
                               &t->prefix[t->prefix_count++]));
    }
    return WEFT_OK;
}

/* BertProcessing: ["[CLS]", 101] in front. */
static weft_status read_bert_processing(loader *l, const json_t *part) {
    weft_tokenizer *t = l->t;
    json_t *begin = get(part, "cls");
    const char *name = json_string_value(json_array_get(begin, 0));
    t->prefix = wefti_arena_alloc(t->arena, sizeof *t->prefix);
    WEFT_REQUIRE(t->prefix, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
    t->prefix_count = 1;
    return number_of(l, json_array_get(begin, 1), name ? name : "cls", t->vocab, t->prefix);
}

static weft_status read_post_processor(loader *l, const json_t *part) {
    if (is(part, "BertProcessing")) return read_bert_processing(l, part);
    if (!part || is(part, "ByteLevel")) return WEFT_OK; /* that one moves offsets only */
    if (is(part, "TemplateProcessing")) return read_template(l, part);
    if (!is(part, "Sequence"))
        return UNSUPPORTED(l, "the post-processor '%s'", text_of(part, "type"));
    json_t *parts = get(part, "processors");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *each = json_array_get(parts, i);
        if (is(each, "Sequence")) return UNSUPPORTED(l, "a sequence of post-processors in another");
        WEFT_TRY(read_post_processor(l, each));
    }
    return WEFT_OK;
}

/* Pieces need all bytes. When U+2581 stands only at the front of tokens, no merge crosses from
 * anything else to it, and the text may be cut there: the same tokens in far less time. */
static weft_status finish_pieces(loader *l) {
    weft_tokenizer *t = l->t;
    if (t->kind != WEFTI_TOKENS_PIECES) return WEFT_OK;
    for (int i = 0; i < 256; i++)
        if (t->byte_ids[i] < 0)
            return DAMAGED(l, "byte_fallback is set, but the token <0x%02X> is missing",
                           (unsigned)i);
    bool cut = !t->whole_words && wefti_map_find(&t->words, WEFTI_PIECE_SPACE, 3) >= 0;
    for (int64_t i = 0; cut && i < t->words.capacity; i++) {
        const wefti_map_slot *word = &t->words.slots[i];
        if (word->key)
            cut = wefti_pretokenize_next(WEFTI_SPLIT_PIECES, word->key, word->bytes) == word->bytes;
    }
    t->split = cut ? WEFTI_SPLIT_PIECES : WEFTI_SPLIT_NONE;
    return WEFT_OK;
}

static weft_status read_all(loader *l) {
    json_t *model = get(l->root, "model");
    if (!json_is_object(model))
        return DAMAGED(l, "no model: not a tokenizer.json of Hugging Face tokenizers");
    WEFT_TRY(read_pre_tokenizer(l, get(l->root, "pre_tokenizer")));
    WEFT_TRY(read_normalizer(l, get(l->root, "normalizer")));
    WEFT_TRY(read_decoder(l, get(l->root, "decoder")));
    WEFT_TRY(read_model(l, model));
    WEFT_TRY(read_added(l, get(l->root, "added_tokens")));
    WEFT_TRY(read_post_processor(l, get(l->root, "post_processor")));
    return finish_pieces(l);
}

weft_status wefti_tokenizer_parse(const char *path, const char *text, int64_t bytes,
                                  weft_tokenizer **out) {
    json_error_t error;
    loader l = {.path = path};
    WEFT_NEW(l.t, weft_tokenizer);
    weft_status status = wefti_arena_create(&l.t->arena);
    if (status >= 0) {
        l.root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
        if (!l.root)
            status = WEFT_RAISE(WEFT_E_CORRUPT, "%s, line %d, column %d: %s", path, error.line,
                                error.column, error.text);
    }
    if (status >= 0) status = read_all(&l);
    json_decref(l.root);
    if (status < 0) {
        weft_tokenizer_close(l.t);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = l.t;
    return WEFT_OK;
}

#else

weft_status wefti_tokenizer_parse(const char *path, const char *text, int64_t bytes,
                                  weft_tokenizer **out) {
    (void)text, (void)bytes, (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "%s: this build has no jansson, which reads tokenizer.json", path);
}

#endif
