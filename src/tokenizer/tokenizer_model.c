/* The model of a tokenizer.json: vocabulary, merges, word pieces and added tokens, as tables of the
 * tokenizer. Sources: see tokenizer_json.c. */
#include "tokenizer/tokenizer.h"

#include "base/text.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"

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

weft_status wefti_tokenizer_keep(wefti_tokenizer_file *l, const void *data, int64_t bytes,
                                 wefti_bytes *out) {
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
static weft_status decode_piece(wefti_tokenizer_file *l, const char *text, size_t bytes, int32_t id,
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

static weft_status set_token(wefti_tokenizer_file *l, int32_t id, const char *name,
                             wefti_bytes bytes) {
    if (l->t->tokens[id].data)
        return DAMAGED(l, "two tokens have the number %d, one is '%s'", id, name);
    l->t->tokens[id] = bytes;
    return WEFT_OK;
}

/* One entry of model.vocab. */
static weft_status add_word(wefti_tokenizer_file *l, const char *name, int32_t id) {
    weft_tokenizer *t = l->t;
    int64_t length = (int64_t)strlen(name);
    wefti_bytes key, decoded;
    WEFT_TRY(wefti_tokenizer_keep(l, name, length, &key));
    WEFT_TRY(wefti_map_add(&l->names, key.data, length, id, NULL));
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

weft_status wefti_tokenizer_number(wefti_tokenizer_file *l, const wefti_json *value,
                                   const char *name, int64_t limit, int32_t *out) {
    if (!is_kind(value, WEFTI_JSON_INT)) return DAMAGED(l, "the token '%s' has no number", name);
    int64_t id = value->as.integer;
    if (id < 0 || id >= limit)
        return DAMAGED(l, "the token '%s' has the number %lld; below %lld were expected", name,
                       (long long)id, (long long)limit);
    *out = (int32_t)id;
    return WEFT_OK;
}

/* Sizes the tables: numbers may have gaps, but not so that a small file makes a large table. */
static weft_status make_tables(wefti_tokenizer_file *l, const wefti_json *vocab,
                               const wefti_json *added) {
    enum { GAPS = 65536 };
    weft_tokenizer *t = l->t;
    int64_t entries = (int64_t)vocab->count + count_of(added);
    int64_t limit = entries * 2 + GAPS, largest = -1;
    int32_t id;
    WEFTI_JSON_EACH(word, vocab) {
        WEFT_TRY(wefti_tokenizer_number(l, word, word->key, limit, &id));
        if (id > largest) largest = id;
    }
    ITEMS(token, added) {
        WEFT_TRY(
            wefti_tokenizer_number(l, get(token, "id"), text_of(token, "content"), limit, &id));
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
    WEFT_TRY(wefti_map_reserve(&l->names, entries));
    WEFTI_JSON_EACH(word, vocab) WEFT_TRY(add_word(l, word->key, (int32_t)word->as.integer));
    return WEFT_OK;
}

/* The number of one half of a merge, its bytes appended to `joined`. */
static weft_status half(wefti_tokenizer_file *l, int64_t rank, const char *text, int64_t bytes,
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
static weft_status add_merge(wefti_tokenizer_file *l, const wefti_json *merge, int64_t rank,
                             wefti_text *joined) {
    const char *left, *right;
    int64_t left_bytes, right_bytes;
    if (is_kind(merge, WEFTI_JSON_TEXT)) {
        left = merge->as.text;
        const char *space = strchr(left, ' ');
        if (!space || strchr(space + 1, ' '))
            return DAMAGED(l, "merge %lld, '%.100s', is not two tokens and a space",
                           (long long)rank, left);
        left_bytes = space - left;
        right = space + 1;
    } else {
        left = string_of(item_of(merge, 0));
        right = string_of(item_of(merge, 1));
        if (!left || !right || count_of(merge) != 2)
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

static weft_status read_merges(wefti_tokenizer_file *l, const wefti_json *merges) {
    WEFT_TRY(wefti_merge_map_create(merges->count, &l->t->merges));
    wefti_text joined = {0};
    weft_status status = WEFT_OK;
    int64_t rank = 0;
    WEFTI_JSON_EACH(merge, merges) {
        status = add_merge(l, merge, rank++, &joined);
        if (status < 0) break;
    }
    wefti_text_free(&joined);
    return status;
}

/* "[UNK]", the prefix "##", and how long a word may be. */
static weft_status read_word_pieces(wefti_tokenizer_file *l, const wefti_json *model,
                                    const wefti_json *vocab) {
    wefti_pieces *p = &l->t->pieces;
    const char *prefix = text_of(model, "continuing_subword_prefix");
    const char *unknown = text_of(model, "unk_token");
    const wefti_json *most = get(model, "max_input_chars_per_word");
    WEFT_TRY(wefti_tokenizer_keep(l, prefix, (int64_t)strlen(prefix), &p->prefix));
    p->most_characters = int_of(most, most ? 0 : 100);
    if (p->most_characters < 1)
        return DAMAGED(l, "model.max_input_chars_per_word is %lld; at least 1 was expected",
                       (long long)p->most_characters);
    WEFT_TRY(make_tables(l, vocab, get(l->root, "added_tokens")));
    p->unknown = (int32_t)wefti_map_find(&l->t->words, unknown, (int64_t)strlen(unknown));
    if (p->unknown < 0)
        return DAMAGED(l, "the token for unknown words, '%s', is not in the vocabulary", unknown);
    return WEFT_OK;
}

weft_status wefti_tokenizer_read_model(wefti_tokenizer_file *l, const wefti_json *model) {
    /* early files of GPT-2 have no type; then vocabulary and merges make it byte pairs */
    const char *type = text_of(model, "type");
    const wefti_json *vocab = get(model, "vocab"), *merges = get(model, "merges");
    bool pieces = l->t->kind == WEFTI_TOKENS_WORD_PIECES;
    if (*type && strcmp(type, "BPE") && strcmp(type, "WordPiece"))
        return UNREADABLE(l, "the model type %s (only BPE and WordPiece)", type);
    if (!strcmp(type, "WordPiece") != pieces)
        return UNREADABLE(l, "the model type %s %s the pre-tokenizer BertPreTokenizer",
                          *type ? type : "BPE", pieces ? "with" : "without");
    if (!is_kind(vocab, WEFTI_JSON_OBJECT))
        return DAMAGED(l, "model.vocab is missing or no object");
    const wefti_json *added = get(l->root, "added_tokens");
    if (added && !is_kind(added, WEFTI_JSON_ARRAY)) return DAMAGED(l, "added_tokens is not a list");
    if (pieces) return read_word_pieces(l, model, vocab);
    if (!is_kind(merges, WEFTI_JSON_ARRAY)) return DAMAGED(l, "model.merges is missing or no list");
    const wefti_json *dropout = get(model, "dropout");
    if (dropout && real_of(dropout) != 0.0) return UNREADABLE(l, "model.dropout");
    if (*text_of(model, "continuing_subword_prefix"))
        return UNREADABLE(l, "model.continuing_subword_prefix '%s'",
                          text_of(model, "continuing_subword_prefix"));
    if (*text_of(model, "end_of_word_suffix"))
        return UNREADABLE(l, "model.end_of_word_suffix '%s'", text_of(model, "end_of_word_suffix"));
    bool fallback = flag_of(model, "byte_fallback", false);
    if (l->t->kind == WEFTI_TOKENS_BYTE_LEVEL && fallback)
        return UNREADABLE(l, "model.byte_fallback together with the pre-tokenizer ByteLevel");
    if (l->t->kind == WEFTI_TOKENS_PIECES && !fallback)
        return UNREADABLE(l,
                          "a model without byte_fallback and without the pre-tokenizer ByteLevel");
    l->t->whole_words = flag_of(model, "ignore_merges", false);
    WEFT_TRY(make_tables(l, vocab, added));
    WEFT_TRY(read_merges(l, merges));
    return WEFT_OK;
}

weft_status wefti_tokenizer_read_added(wefti_tokenizer_file *l, const wefti_json *list) {
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    weft_tokenizer *t = l->t;
    t->added = wefti_arena_alloc(t->arena, (size_t)(count_of(list) + 1) * sizeof *t->added);
    WEFT_REQUIRE(t->added, WEFT_E_NOMEM, "no memory for the added tokens of %s", l->path);
    ITEMS(entry, list) {
        const char *content = text_of(entry, "content");
        if (!*content)
            return DAMAGED(l, "added token %lld has no content", (long long)t->added_count);
        for (size_t k = 0; k < 3; k++)
            if (flag_of(entry, unsupported[k], false))
                return UNREADABLE(l, "%s of the added token '%s'", unsupported[k], content);
        wefti_added_token *a = &t->added[t->added_count];
        a->id = (int32_t)int_of(get(entry, "id"), -1);
        a->normalized = flag_of(entry, "normalized", false);
        if (a->normalized && get(l->root, "normalizer"))
            return UNREADABLE(l, "'normalized' of the added token '%s' together with a normalizer",
                              content);
        WEFT_TRY(wefti_tokenizer_keep(l, content, (int64_t)strlen(content), &a->content));
        /* it may be in the vocabulary as well, under the same number */
        if (wefti_map_find(&l->names, content, a->content.count) == a->id)
            t->tokens[a->id].data = NULL;
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

/* Pieces need all bytes. When U+2581 stands only at the front of tokens, no merge crosses from
 * anything else to it, and the text may be cut there: the same tokens in far less time. */
weft_status wefti_tokenizer_finish_pieces(wefti_tokenizer_file *l) {
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
