/* The model of a tokenizer.json: vocabulary, merges, scores and added tokens, as tables of the
 * tokenizer. Source: huggingface/tokenizers, serialisation of models and of AddedVocabulary. */
#include <math.h>

#include "base/text.h"
#include "tokenizer/alphabet.h"
#include "tokenizer/file.h"

/* <0x41>: the byte, or -1. */
static int byte_piece(const char *text, int64_t bytes) {
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'))) return -1;
        value = value * 16 + (c <= '9' ? c - '0' : c - 'A' + 10);
    }
    return value;
}

static weft_status set_token(wefti_tokenizer_file *l, int32_t id, const char *name,
                             wefti_bytes bytes) {
    if (l->t->tokens[id].data)
        return DAMAGED(l, "two tokens have the number %d, one is '%s'", id, name);
    l->t->tokens[id] = bytes;
    return WEFT_OK;
}

/* One entry of the vocabulary. The decoder turns the name into what the token decodes to. */
static weft_status add_word(wefti_tokenizer_file *l, const char *name, int32_t id) {
    weft_tokenizer *t = l->t;
    wefti_bytes kept, key;
    WEFT_TRY(wefti_tokenizer_keep(l, name, (int64_t)strlen(name), &kept));
    WEFT_TRY(wefti_map_add(&l->names, kept.data, kept.count, id, NULL));
    key = kept;
    if (kept.count > t->longest) t->longest = kept.count;
    int byte = byte_piece(name, kept.count);
    if (t->byte_fallback && byte >= 0) t->byte_ids[byte] = id;
    if (t->alphabet) {
        int64_t bytes;
        unsigned char *raw = wefti_arena_alloc(t->arena, (size_t)kept.count + 1);
        WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
        key = (wefti_bytes){0}; /* text outside the alphabet is no word */
        if (wefti_alphabet_bytes(kept.data, kept.count, raw, &bytes)) {
            key = (wefti_bytes){raw, bytes};
            if (bytes == 1) t->byte_ids[raw[0]] = id;
        }
    }
    if (key.data) WEFT_TRY(wefti_map_add(&t->words, key.data, key.count, id, NULL));
    return set_token(l, id, name, kept);
}

/* Sizes the tables: numbers may have gaps, but not so that a small file makes a large table.
 * `largest` is the largest number of the model, of `entries` tokens. */
static weft_status make_tables(wefti_tokenizer_file *l, int64_t entries, int64_t largest) {
    enum { GAPS = 65536 };
    weft_tokenizer *t = l->t;
    const wefti_json *added = get(l->root, "added_tokens");
    entries += count_of(added);
    ITEMS(token, added) {
        int32_t id;
        WEFT_TRY(wefti_tokenizer_number(l, get(token, "id"), text_of(token, "content"),
                                        entries * 2 + GAPS, &id));
        if (id > largest) largest = id;
    }
    if (largest < 0) return DAMAGED(l, "the vocabulary is empty");
    t->vocab = largest + 1;
    t->tokens = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *t->tokens);
    WEFT_REQUIRE(t->tokens, WEFT_E_NOMEM, "no memory for a vocabulary of %lld",
                 (long long)t->vocab);
    for (int i = 0; i < 256; i++) t->byte_ids[i] = -1;
    WEFT_TRY(wefti_map_reserve(&t->words, entries));
    return wefti_map_reserve(&l->names, entries);
}

static weft_status read_vocab(wefti_tokenizer_file *l, const wefti_json *model) {
    const wefti_json *vocab = get(model, "vocab"), *added = get(l->root, "added_tokens");
    if (!is_kind(vocab, WEFTI_JSON_OBJECT))
        return DAMAGED(l, "model.vocab is missing or no object");
    int64_t limit = ((int64_t)vocab->count + count_of(added)) * 2 + 65536, largest = -1;
    WEFTI_JSON_EACH(word, vocab) {
        int32_t id;
        WEFT_TRY(wefti_tokenizer_number(l, word, word->key, limit, &id));
        if (id > largest) largest = id;
    }
    WEFT_TRY(make_tables(l, vocab->count, largest));
    WEFTI_JSON_EACH(word, vocab) WEFT_TRY(add_word(l, word->key, (int32_t)word->as.integer));
    return WEFT_OK;
}

/* ---- byte pairs ---- */

/* One merge: "a b", or ["a", "b"]. */
static weft_status add_merge(wefti_tokenizer_file *l, const wefti_json *merge, int32_t rank,
                             wefti_text *both) {
    const char *left, *right;
    int64_t bytes, prefix = l->t->prefix_text.count;
    if (is_kind(merge, WEFTI_JSON_TEXT)) {
        left = merge->as.text;
        const char *space = strchr(left, ' ');
        if (!space || strchr(space + 1, ' '))
            return DAMAGED(l, "merge %d, '%.100s', is not two tokens and a space", rank, left);
        bytes = space - left;
        right = space + 1;
    } else {
        left = string_of(item_of(merge, 0));
        right = string_of(item_of(merge, 1));
        if (!left || !right || count_of(merge) != 2)
            return DAMAGED(l, "merge %d is not a pair of tokens", rank);
        bytes = (int64_t)strlen(left);
    }
    int32_t left_id = (int32_t)wefti_map_find(&l->names, left, bytes);
    int32_t right_id = (int32_t)wefti_map_find_text(&l->names, right);
    if (left_id < 0 || right_id < 0)
        return DAMAGED(l, "merge %d: '%.*s' is not in the vocabulary", rank,
                       (int)(left_id >= 0 || bytes > 100 ? 100 : bytes),
                       left_id < 0 ? left : right);
    both->used = 0;
    wefti_text_add_bytes(both, left, bytes);
    if ((int64_t)strlen(right) >= prefix) wefti_text_add(both, "%s", right + prefix);
    WEFT_REQUIRE(!both->failed, WEFT_E_NOMEM, "no memory for the merges of %s", l->path);
    int32_t id = (int32_t)wefti_map_find(&l->names, both->data, both->used);
    if (id < 0)
        return DAMAGED(l,
                       "merge %d: '%.100s' and '%.100s' make a token that is not in the vocabulary",
                       rank, left, right);
    wefti_pair_map_add(&l->t->merges, left_id, right_id, rank, id);
    return WEFT_OK;
}

static weft_status read_merges(wefti_tokenizer_file *l, const wefti_json *merges) {
    if (!is_kind(merges, WEFTI_JSON_ARRAY)) return DAMAGED(l, "model.merges is missing or no list");
    WEFT_TRY(wefti_pair_map_create(merges->count, &l->t->merges));
    wefti_text both = {0};
    weft_status status = WEFT_OK;
    int32_t rank = 0;
    WEFTI_JSON_EACH(merge, merges) {
        status = add_merge(l, merge, rank++, &both);
        if (status < 0) break;
    }
    wefti_text_free(&both);
    return status;
}

/* Cuts text that no step splits, for the same tokens in far less time. That is safe if U+2581
 * stands only at the front of tokens: then no merge crosses from anything else to it. */
static void cut_pieces(wefti_tokenizer_file *l) {
    weft_tokenizer *t = l->t;
    if (t->split_count &&
        (t->split_count > 1 || t->split[0].kind != WEFTI_SPLIT_METASPACE || t->split[0].regex))
        return;
    if (t->whole_words || t->prefix_text.count || t->suffix_text.count) return;
    if (wefti_map_find(&t->words, WEFTI_PIECE_SPACE, 3) < 0) return;
    for (int64_t i = 0; i < t->words.capacity; i++) {
        const wefti_map_slot *word = &t->words.slots[i];
        if (word->key && wefti_piece_end(word->key, word->bytes) != word->bytes) return;
    }
    l->split[t->split_count++] = (wefti_split_step){.kind = WEFTI_SPLIT_PIECES};
}

static weft_status keep_text(wefti_tokenizer_file *l, const wefti_json *model, const char *key,
                             wefti_bytes *out) {
    const char *text = text_of(model, key);
    return *text ? wefti_tokenizer_keep(l, text, (int64_t)strlen(text), out) : WEFT_OK;
}

static weft_status find_unknown(wefti_tokenizer_file *l, const wefti_json *model, bool needed) {
    const char *name = string_of(get(model, "unk_token"));
    l->t->unknown = name ? (int32_t)wefti_map_find_text(&l->names, name) : -1;
    if (l->t->unknown < 0 && (name || needed))
        return DAMAGED(l, "the token for unknown words, '%s', is not in the vocabulary",
                       name ? name : "");
    return WEFT_OK;
}

static weft_status read_bpe(wefti_tokenizer_file *l, const wefti_json *model) {
    weft_tokenizer *t = l->t;
    const wefti_json *dropout = get(model, "dropout");
    if (dropout && real_of(dropout) != 0.0) return UNREADABLE(l, "model.dropout");
    t->model = WEFTI_MODEL_BPE;
    t->byte_fallback = flag_of(model, "byte_fallback", false);
    if (t->byte_fallback && t->alphabet)
        return UNREADABLE(l, "model.byte_fallback together with the pre-tokenizer ByteLevel");
    t->fuse_unknown = flag_of(model, "fuse_unk", false);
    t->whole_words = flag_of(model, "ignore_merges", false);
    WEFT_TRY(keep_text(l, model, "continuing_subword_prefix", &t->prefix_text));
    WEFT_TRY(keep_text(l, model, "end_of_word_suffix", &t->suffix_text));
    WEFT_TRY(read_vocab(l, model));
    WEFT_TRY(read_merges(l, get(model, "merges")));
    WEFT_TRY(find_unknown(l, model, false));
    cut_pieces(l);
    return WEFT_OK;
}

/* ---- the other models ---- */

static weft_status read_word_piece(wefti_tokenizer_file *l, const wefti_json *model) {
    weft_tokenizer *t = l->t;
    t->model = WEFTI_MODEL_WORD_PIECE;
    t->most_characters = int_of(get(model, "max_input_chars_per_word"), 100);
    if (t->most_characters < 1)
        return DAMAGED(l, "model.max_input_chars_per_word is %lld; at least 1 was expected",
                       (long long)t->most_characters);
    WEFT_TRY(keep_text(l, model, "continuing_subword_prefix", &t->prefix_text));
    WEFT_TRY(read_vocab(l, model));
    return find_unknown(l, model, true);
}

static weft_status read_word_level(wefti_tokenizer_file *l, const wefti_json *model) {
    l->t->model = WEFTI_MODEL_WORD_LEVEL;
    WEFT_TRY(read_vocab(l, model));
    const char *name = text_of(model, "unk_token"); /* it need not be there */
    l->t->unknown = (int32_t)wefti_map_find_text(&l->names, name);
    return WEFT_OK;
}

/* The bytes that a piece in GPT-2's alphabet stands for. */
static weft_status keep_raw(wefti_tokenizer_file *l, wefti_bytes *piece) {
    unsigned char *raw = wefti_arena_alloc(l->t->arena, (size_t)piece->count + 1);
    WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
    if (wefti_alphabet_bytes(piece->data, piece->count, raw, &piece->count)) piece->data = raw;
    return WEFT_OK;
}

/* vocab: [["<unk>", 0.0], ...]; the place in the list is the number. */
static weft_status read_unigram(wefti_tokenizer_file *l, const wefti_json *model) {
    weft_tokenizer *t = l->t;
    const wefti_json *vocab = get(model, "vocab");
    if (!is_kind(vocab, WEFTI_JSON_ARRAY)) return DAMAGED(l, "model.vocab is missing or no list");
    t->model = WEFTI_MODEL_UNIGRAM;
    t->byte_fallback = flag_of(model, "byte_fallback", false);
    if (t->byte_fallback && t->alphabet)
        return UNREADABLE(l, "model.byte_fallback together with the pre-tokenizer ByteLevel");
    int64_t unknown = int_of(get(model, "unk_id"), -1);
    if (unknown >= vocab->count)
        return DAMAGED(l, "model.unk_id is %lld, but the vocabulary has %d pieces",
                       (long long)unknown, vocab->count);
    t->unknown = unknown < 0 ? -1 : (int32_t)unknown;
    WEFT_TRY(make_tables(l, vocab->count, (int64_t)vocab->count - 1));
    t->scores = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *t->scores);
    wefti_bytes *keys = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *keys);
    int32_t *ids = wefti_arena_alloc(t->arena, (size_t)t->vocab * sizeof *ids);
    WEFT_REQUIRE(t->scores && keys && ids, WEFT_E_NOMEM, "no memory for a vocabulary of %lld",
                 (long long)t->vocab);
    int32_t id = 0;
    t->least_score = HUGE_VAL;
    WEFTI_JSON_EACH(entry, vocab) {
        const wefti_json *score = item_of(entry, 1);
        const char *name = string_of(item_of(entry, 0));
        if (!name || (!is_kind(score, WEFTI_JSON_REAL) && !is_kind(score, WEFTI_JSON_INT)))
            return DAMAGED(l, "piece %d of model.vocab is not a text and a score", id);
        t->scores[id] = real_of(score);
        if (t->scores[id] < t->least_score) t->least_score = t->scores[id];
        WEFT_TRY(add_word(l, name, id));
        keys[id] = t->tokens[id];
        if (t->alphabet) WEFT_TRY(keep_raw(l, &keys[id]));
        ids[id] = id;
        id++;
    }
    return wefti_trie_build(keys, ids, id, &t->pieces);
}

weft_status wefti_tokenizer_read_model(wefti_tokenizer_file *l, const wefti_json *model) {
    /* early files have no type; merges make them byte pairs */
    const char *type = text_of(model, "type");
    const wefti_json *added = get(l->root, "added_tokens");
    if (added && !is_kind(added, WEFTI_JSON_ARRAY)) return DAMAGED(l, "added_tokens is not a list");
    if (!*type || !strcmp(type, "BPE")) return read_bpe(l, model);
    if (!strcmp(type, "WordPiece")) return read_word_piece(l, model);
    if (!strcmp(type, "WordLevel")) return read_word_level(l, model);
    if (!strcmp(type, "Unigram")) return read_unigram(l, model);
    return UNREADABLE(l, "the model type %s (only BPE, WordPiece, WordLevel and Unigram)", type);
}

/* ---- added tokens ---- */

/* The pattern of a token that is found in normalised text. */
static weft_status normalize_pattern(wefti_tokenizer_file *l, wefti_normal_scratch *scratch,
                                     wefti_added_token *a) {
    const unsigned char *text = a->content.data;
    int64_t bytes = a->content.count;
    bool first = true;
    a->pattern = a->content;
    if (!a->normalized) return WEFT_OK;
    WEFT_TRY(wefti_normalize(l->t->normal, l->t->normal_count, scratch, &text, &bytes, &first));
    return text == a->content.data && bytes == a->content.count
               ? WEFT_OK
               : wefti_tokenizer_keep(l, text, bytes, &a->pattern);
}

static weft_status add_added(wefti_tokenizer_file *l, const wefti_json *entry,
                             wefti_normal_scratch *scratch) {
    weft_tokenizer *t = l->t;
    const char *content = text_of(entry, "content");
    if (!*content) return DAMAGED(l, "added token %lld has no content", (long long)t->added.count);
    wefti_added_token *a = &t->added.tokens[t->added.count++];
    *a = (wefti_added_token){.id = (int32_t)int_of(get(entry, "id"), -1),
                             .normalized = flag_of(entry, "normalized", false),
                             .single_word = flag_of(entry, "single_word", false),
                             .lstrip = flag_of(entry, "lstrip", false),
                             .rstrip = flag_of(entry, "rstrip", false)};
    WEFT_TRY(wefti_tokenizer_keep(l, content, (int64_t)strlen(content), &a->content));
    WEFT_TRY(normalize_pattern(l, scratch, a));
    /* it may be in the vocabulary as well, under the same number */
    if (wefti_map_find(&l->names, content, a->content.count) == a->id) t->tokens[a->id].data = NULL;
    return set_token(l, a->id, content, a->content);
}

/* The trie of the patterns that are found before or after normalising. */
static weft_status build_added(wefti_added *added, bool normalized, wefti_bytes *keys, int32_t *ids,
                               wefti_trie *out) {
    int64_t count = 0;
    for (int64_t i = 0; i < added->count; i++) {
        const wefti_added_token *a = &added->tokens[i];
        if (a->normalized != normalized || !a->pattern.count) continue;
        added->begins[normalized][a->pattern.data[0]] = true;
        keys[count] = a->pattern;
        ids[count++] = (int32_t)i;
    }
    return count ? wefti_trie_build(keys, ids, count, out) : WEFT_OK;
}

weft_status wefti_tokenizer_read_added(wefti_tokenizer_file *l, const wefti_json *list) {
    weft_tokenizer *t = l->t;
    size_t room = (size_t)count_of(list) + 1;
    wefti_normal_scratch scratch = {0};
    t->added.tokens = wefti_arena_alloc(t->arena, room * sizeof *t->added.tokens);
    wefti_bytes *keys = wefti_arena_alloc(t->arena, room * sizeof *keys);
    int32_t *ids = wefti_arena_alloc(t->arena, room * sizeof *ids);
    WEFT_REQUIRE(t->added.tokens && keys && ids, WEFT_E_NOMEM,
                 "no memory for the added tokens of %s", l->path);
    weft_status status = WEFT_OK;
    ITEMS(entry, list) {
        status = add_added(l, entry, &scratch);
        if (status < 0) break;
    }
    wefti_normal_scratch_free(&scratch);
    WEFT_TRY(status);
    WEFT_TRY(build_added(&t->added, false, keys, ids, &t->added.exact));
    return build_added(&t->added, true, keys, ids, &t->added.normalized);
}
