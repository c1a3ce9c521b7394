/* Parses tokenizer.json of Hugging Face tokenizers, and checks it part by part.
 *
 * The format describes a pipeline with many kinds of parts. Supported are the parts of GPT-2, Llama
 * 3, Qwen 2, Llama 2 and BERT. Any other part is refused by name, since a pipeline without it would
 * silently give other tokens. Source: huggingface/tokenizers, serialisation of Tokenizer; the byte
 * alphabet is bytes_to_unicode of openai/gpt-2, src/encoder.py. */
#include "tokenizer/tokenizer.h"

#include "tokenizer/tokenizer_json.h"

static weft_status read_split(wefti_tokenizer_file *l, const wefti_json *split) {
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
        return UNREADABLE(l, "the pre-tokenizer Split with behavior '%s'%s",
                          text_of(split, "behavior"),
                          flag_of(split, "invert", false) ? ", inverted," : "");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(pattern, known[i].pattern)) {
            l->t->split = known[i].split;
            return WEFT_OK;
        }
    return UNREADABLE(
        l,
        "the pre-tokenizer Split with the pattern '%.300s' (only those of GPT-2, Llama 3 "
        "and Qwen 2)",
        pattern);
}

static weft_status read_metaspace(wefti_tokenizer_file *l, const wefti_json *part) {
    weft_tokenizer *t = l->t;
    if (strcmp(text_of(part, "replacement"), WEFTI_PIECE_SPACE) || flag_of(part, "split", true))
        return UNREADABLE(
            l, "the pre-tokenizer Metaspace that splits or has another replacement than U+2581");
    const char *scheme = text_of(part, "prepend_scheme");
    if (!strcmp(scheme, "always"))
        t->prepend = WEFTI_PREPEND_MISSING;
    else if (!strcmp(scheme, "first"))
        t->prepend = WEFTI_PREPEND_FIRST_MISSING;
    else if (strcmp(scheme, "never"))
        return UNREADABLE(l, "the prepend_scheme '%s' of the pre-tokenizer Metaspace", scheme);
    t->kind = WEFTI_TOKENS_PIECES;
    return WEFT_OK;
}

static weft_status read_byte_level(wefti_tokenizer_file *l, const wefti_json *part, bool alone) {
    weft_tokenizer *t = l->t;
    bool space = flag_of(part, "add_prefix_space", true), regex = flag_of(part, "use_regex", true);
    if (!alone && (space || regex))
        return UNREADABLE(
            l, "the pre-tokenizer ByteLevel behind others with use_regex or add_prefix_space");
    t->space_first = space;
    if (alone) t->split = regex ? WEFTI_SPLIT_GPT2 : WEFTI_SPLIT_NONE;
    t->kind = WEFTI_TOKENS_BYTE_LEVEL;
    return WEFT_OK;
}

/* Byte level: ByteLevel, or Split and ByteLevel. Pieces: Metaspace, or nothing with a normalizer.
 * Word pieces: BertPreTokenizer. */
static weft_status read_pre_tokenizer(wefti_tokenizer_file *l, const wefti_json *part) {
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
        return UNREADABLE(l, "the pre-tokenizer '%s'", text_of(part, "type"));
    const wefti_json *parts = get(part, "pretokenizers");
    const wefti_json *first = item_of(parts, 0), *second = item_of(parts, 1);
    if (count_of(parts) == 1) return read_pre_tokenizer(l, first);
    if (count_of(parts) != 2 || !is(first, "Split") || !is(second, "ByteLevel"))
        return UNREADABLE(l, "a sequence of %d pre-tokenizers other than Split and ByteLevel",
                          count_of(parts));
    WEFT_TRY(read_split(l, first));
    return read_byte_level(l, second, false);
}

static bool is_replace(const wefti_json *part, const char *from, const char *to) {
    return is(part, "Replace") && !strcmp(text_of(get(part, "pattern"), "String"), from) &&
           !strcmp(text_of(part, "content"), to);
}

/* Nothing for byte level and Metaspace; for bare pieces Prepend U+2581 and Replace of spaces by it.
 */
static weft_status read_normalizer(wefti_tokenizer_file *l, const wefti_json *part) {
    if (!part) {
        if (l->t->kind == WEFTI_TOKENS_PIECES && !get(l->root, "pre_tokenizer"))
            return UNREADABLE(l, "a file with neither normalizer nor pre-tokenizer");
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
        return UNREADABLE(l, "the normalizer '%s' together with a pre-tokenizer",
                          text_of(part, "type"));
    const wefti_json *parts = get(part, "normalizers");
    const wefti_json *prepend = NULL, *replace = part;
    if (is(part, "Sequence")) {
        int32_t count = count_of(parts);
        prepend = count == 2 ? item_of(parts, 0) : NULL;
        replace = count == 1 || count == 2 ? item_of(parts, count - 1) : NULL;
    }
    if (!is_replace(replace, " ", WEFTI_PIECE_SPACE))
        return UNREADABLE(l, "the normalizer '%s' (only Prepend and Replace as in Llama 2)",
                          replace ? text_of(replace, "type") : "Sequence");
    if (prepend &&
        (!is(prepend, "Prepend") || strcmp(text_of(prepend, "prepend"), WEFTI_PIECE_SPACE)))
        return UNREADABLE(l, "the normalizer '%s'", text_of(prepend, "type"));
    if (prepend) l->t->prepend = WEFTI_PREPEND_ALWAYS;
    return WEFT_OK;
}

/* The decoder must undo the encoding; it may drop a leading space. */
static weft_status read_decoder(wefti_tokenizer_file *l, const wefti_json *part) {
    if (l->t->kind == WEFTI_TOKENS_BYTE_LEVEL) {
        if (part && !is(part, "ByteLevel"))
            return UNREADABLE(l, "the decoder '%s' with the pre-tokenizer ByteLevel",
                              text_of(part, "type"));
        return WEFT_OK;
    }
    if (l->t->kind == WEFTI_TOKENS_WORD_PIECES) {
        const char *prefix = text_of(part, "prefix");
        if (part && !is(part, "WordPiece"))
            return UNREADABLE(l, "the decoder '%s' with the pre-tokenizer BertPreTokenizer",
                              text_of(part, "type"));
        l->t->pieces.joins = part != NULL;
        l->t->pieces.cleanup = flag_of(part, "cleanup", false);
        return wefti_tokenizer_keep(l, prefix, (int64_t)strlen(prefix), &l->t->pieces.joined);
    }
    if (is(part, "Metaspace")) {
        l->t->strip = strcmp(text_of(part, "prepend_scheme"), "never") != 0;
        return WEFT_OK;
    }
    const wefti_json *parts = get(part, "decoders");
    int32_t count = count_of(parts);
    bool fits = is(part, "Sequence") && (count == 3 || count == 4) &&
                is_replace(item_of(parts, 0), WEFTI_PIECE_SPACE, " ") &&
                is(item_of(parts, 1), "ByteFallback") && is(item_of(parts, 2), "Fuse");
    const wefti_json *strip = fits ? item_of(parts, 3) : NULL;
    if (strip) {
        fits = is(strip, "Strip") && !strcmp(text_of(strip, "content"), " ") &&
               int_of(get(strip, "start"), -1) == 1 && int_of(get(strip, "stop"), -1) == 0;
        l->t->strip = true;
    }
    if (!fits)
        return UNREADABLE(l, "the decoder '%s' (only that of Llama 2)", text_of(part, "type"));
    return WEFT_OK;
}

/* Numbers that a TemplateProcessing puts in front of a single text. */
static weft_status read_template(wefti_tokenizer_file *l, const wefti_json *part) {
    weft_tokenizer *t = l->t;
    const wefti_json *single = get(part, "single"), *specials = get(part, "special_tokens");
    ITEMS(piece, single) {
        const wefti_json *special = get(piece, "SpecialToken");
        if (!special) break;
        const wefti_json *ids = get(get(specials, text_of(special, "id")), "ids");
        int32_t *longer =
            wefti_arena_alloc(t->arena, (size_t)(t->prefix_count + count_of(ids)) * sizeof *longer);
        WEFT_REQUIRE(longer, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
        if (t->prefix_count) memcpy(longer, t->prefix, (size_t)t->prefix_count * sizeof *longer);
        t->prefix = longer;
        ITEMS(id, ids)
        WEFT_TRY(wefti_tokenizer_number(l, id, text_of(special, "id"), t->vocab,
                                        &t->prefix[t->prefix_count++]));
    }
    return WEFT_OK;
}

/* BertProcessing: ["[CLS]", 101] in front. */
static weft_status read_bert_processing(wefti_tokenizer_file *l, const wefti_json *part) {
    weft_tokenizer *t = l->t;
    const wefti_json *begin = get(part, "cls");
    const char *name = string_of(item_of(begin, 0));
    t->prefix = wefti_arena_alloc(t->arena, sizeof *t->prefix);
    WEFT_REQUIRE(t->prefix, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
    t->prefix_count = 1;
    return wefti_tokenizer_number(l, item_of(begin, 1), name ? name : "cls", t->vocab, t->prefix);
}

static weft_status read_post_processor(wefti_tokenizer_file *l, const wefti_json *part) {
    if (is(part, "BertProcessing")) return read_bert_processing(l, part);
    if (!part || is(part, "ByteLevel")) return WEFT_OK; /* that one moves offsets only */
    if (is(part, "TemplateProcessing")) return read_template(l, part);
    if (!is(part, "Sequence"))
        return UNREADABLE(l, "the post-processor '%s'", text_of(part, "type"));
    ITEMS(each, get(part, "processors")) {
        if (is(each, "Sequence")) return UNREADABLE(l, "a sequence of post-processors in another");
        WEFT_TRY(read_post_processor(l, each));
    }
    return WEFT_OK;
}

static weft_status read_all(wefti_tokenizer_file *l) {
    const wefti_json *model = get(l->root, "model");
    if (!is_kind(model, WEFTI_JSON_OBJECT))
        return DAMAGED(l, "no model: not a tokenizer.json of Hugging Face tokenizers");
    WEFT_TRY(read_pre_tokenizer(l, get(l->root, "pre_tokenizer")));
    WEFT_TRY(read_normalizer(l, get(l->root, "normalizer")));
    WEFT_TRY(read_decoder(l, get(l->root, "decoder")));
    WEFT_TRY(wefti_tokenizer_read_model(l, model));
    WEFT_TRY(wefti_tokenizer_read_added(l, get(l->root, "added_tokens")));
    WEFT_TRY(read_post_processor(l, get(l->root, "post_processor")));
    return wefti_tokenizer_finish_pieces(l);
}

weft_status wefti_tokenizer_parse(const char *path, const char *text, int64_t bytes,
                                  weft_tokenizer **out) {
    static const wefti_json_limits limits = {
        .depth = 32, .members = INT32_MAX, .array_items = INT32_MAX};
    wefti_tokenizer_file l = {.path = path};
    wefti_arena *parsed = NULL;
    WEFT_NEW(l.t, weft_tokenizer);
    weft_status status = wefti_arena_create(&l.t->arena);
    if (status >= 0) status = wefti_arena_create(&parsed);
    if (status >= 0) {
        status = wefti_json_parse(parsed, text, bytes, &limits, &l.root);
        if (status < 0) status = wefti_prefix(status, "%s", path);
    }
    if (status >= 0) status = read_all(&l);
    wefti_map_free(&l.names);
    wefti_arena_destroy(parsed);
    if (status < 0) {
        weft_tokenizer_close(l.t);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = l.t;
    return WEFT_OK;
}
