/* Parses tokenizer.json of Hugging Face tokenizers, and checks it part by part.
 *
 * The format describes a pipeline with many kinds of parts. Supported are the parts of GPT-2, Llama
 * 3, Qwen 2, Llama 2 and BERT. Any other part is refused by name, since a pipeline without it would
 * silently give other tokens. Source: huggingface/tokenizers, serialisation of Tokenizer; the byte
 * alphabet is bytes_to_unicode of openai/gpt-2, src/encoder.py. */
#include "tokenizer/tokenizer.h"

#if WEFT_HAVE_JANSSON
#include "tokenizer/tokenizer_json.h"

static weft_status read_split(wefti_tokenizer_file *l, const json_t *split) {
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

static weft_status read_metaspace(wefti_tokenizer_file *l, const json_t *part) {
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

static weft_status read_byte_level(wefti_tokenizer_file *l, const json_t *part, bool alone) {
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
static weft_status read_pre_tokenizer(wefti_tokenizer_file *l, const json_t *part) {
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
    json_t *parts = get(part, "pretokenizers");
    json_t *first = json_array_get(parts, 0), *second = json_array_get(parts, 1);
    if (json_array_size(parts) == 1) return read_pre_tokenizer(l, first);
    if (json_array_size(parts) != 2 || !is(first, "Split") || !is(second, "ByteLevel"))
        return UNREADABLE(l, "a sequence of %zu pre-tokenizers other than Split and ByteLevel",
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
static weft_status read_normalizer(wefti_tokenizer_file *l, const json_t *part) {
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
    json_t *parts = get(part, "normalizers");
    const json_t *prepend = NULL, *replace = part;
    if (is(part, "Sequence")) {
        size_t count = json_array_size(parts);
        prepend = count == 2 ? json_array_get(parts, 0) : NULL;
        replace = count == 1 || count == 2 ? json_array_get(parts, count - 1) : NULL;
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
static weft_status read_decoder(wefti_tokenizer_file *l, const json_t *part) {
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
        return UNREADABLE(l, "the decoder '%s' (only that of Llama 2)", text_of(part, "type"));
    return WEFT_OK;
}

/* Numbers that a TemplateProcessing puts in front of a single text. */
static weft_status read_template(wefti_tokenizer_file *l, const json_t *part) {
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
            WEFT_TRY(wefti_tokenizer_number(l, json_array_get(ids, k), text_of(special, "id"),
                                            t->vocab, &t->prefix[t->prefix_count++]));
    }
    return WEFT_OK;
}

/* BertProcessing: ["[CLS]", 101] in front. */
static weft_status read_bert_processing(wefti_tokenizer_file *l, const json_t *part) {
    weft_tokenizer *t = l->t;
    json_t *begin = get(part, "cls");
    const char *name = json_string_value(json_array_get(begin, 0));
    t->prefix = wefti_arena_alloc(t->arena, sizeof *t->prefix);
    WEFT_REQUIRE(t->prefix, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
    t->prefix_count = 1;
    return wefti_tokenizer_number(l, json_array_get(begin, 1), name ? name : "cls", t->vocab,
                                  t->prefix);
}

static weft_status read_post_processor(wefti_tokenizer_file *l, const json_t *part) {
    if (is(part, "BertProcessing")) return read_bert_processing(l, part);
    if (!part || is(part, "ByteLevel")) return WEFT_OK; /* that one moves offsets only */
    if (is(part, "TemplateProcessing")) return read_template(l, part);
    if (!is(part, "Sequence"))
        return UNREADABLE(l, "the post-processor '%s'", text_of(part, "type"));
    json_t *parts = get(part, "processors");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *each = json_array_get(parts, i);
        if (is(each, "Sequence")) return UNREADABLE(l, "a sequence of post-processors in another");
        WEFT_TRY(read_post_processor(l, each));
    }
    return WEFT_OK;
}

static weft_status read_all(wefti_tokenizer_file *l) {
    json_t *model = get(l->root, "model");
    if (!json_is_object(model))
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
    json_error_t error;
    wefti_tokenizer_file l = {.path = path};
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
