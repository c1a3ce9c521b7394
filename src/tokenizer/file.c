/* Reads tokenizer.json of Hugging Face tokenizers, and checks it part by part. A part that weft
 * does not know is refused by name, since a pipeline without it would silently give other tokens.
 * Source: huggingface/tokenizers, serialisation of Tokenizer. */
#include "tokenizer/file.h"

weft_status wefti_tokenizer_keep(wefti_tokenizer_file *l, const void *data, int64_t bytes,
                                 wefti_bytes *out) {
    unsigned char *to = wefti_arena_alloc(l->t->arena, (size_t)bytes + 1);
    WEFT_REQUIRE(to, WEFT_E_NOMEM, "no memory for the vocabulary of %s", l->path);
    if (bytes) memcpy(to, data, (size_t)bytes);
    *out = (wefti_bytes){to, bytes};
    return WEFT_OK;
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

weft_status wefti_tokenizer_pattern(wefti_tokenizer_file *l, const wefti_json *part,
                                    const wefti_regex **out) {
    const wefti_json *pattern = get(part, "pattern");
    const char *text = string_of(get(pattern, "String")), *regex = string_of(get(pattern, "Regex"));
    weft_status status = WEFT_OK;
    *out = NULL;
    if (!text && !regex) return DAMAGED(l, "the part '%s' has no pattern", text_of(part, "type"));
    if (regex)
        status = wefti_regex_compile(l->t->arena, regex, out);
    else if (*text)
        status = wefti_regex_literal(l->t->arena, text, out);
    return status < 0 ? wefti_prefix(status, "%s", l->path) : WEFT_OK;
}

/* ---- the post-processor: what stands in front of a text ---- */

static weft_status add_prefix(wefti_tokenizer_file *l, const wefti_json *ids, const char *name) {
    weft_tokenizer *t = l->t;
    int32_t *longer =
        wefti_arena_alloc(t->arena, (size_t)(t->prefix_count + count_of(ids)) * sizeof *longer);
    WEFT_REQUIRE(longer, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
    if (t->prefix_count) memcpy(longer, t->prefix, (size_t)t->prefix_count * sizeof *longer);
    t->prefix = longer;
    ITEMS(id, ids)
    WEFT_TRY(wefti_tokenizer_number(l, id, name, t->vocab, &t->prefix[t->prefix_count++]));
    return WEFT_OK;
}

static weft_status read_template(wefti_tokenizer_file *l, const wefti_json *part) {
    ITEMS(piece, get(part, "single")) {
        const wefti_json *special = get(piece, "SpecialToken");
        if (!special) break;
        const char *name = text_of(special, "id");
        WEFT_TRY(add_prefix(l, get(get(get(part, "special_tokens"), name), "ids"), name));
    }
    return WEFT_OK;
}

/* BertProcessing, RobertaProcessing: ["[CLS]", 101] in front. */
static weft_status read_class_token(wefti_tokenizer_file *l, const wefti_json *part) {
    weft_tokenizer *t = l->t;
    const wefti_json *begin = get(part, "cls");
    const char *name = string_of(item_of(begin, 0));
    t->prefix = wefti_arena_alloc(t->arena, sizeof *t->prefix);
    WEFT_REQUIRE(t->prefix, WEFT_E_NOMEM, "no memory for the template of %s", l->path);
    t->prefix_count = 1;
    return wefti_tokenizer_number(l, item_of(begin, 1), name ? name : "cls", t->vocab, t->prefix);
}

static weft_status read_post_processor(wefti_tokenizer_file *l, const wefti_json *part) {
    if (!part || is(part, "ByteLevel")) return WEFT_OK; /* that one moves offsets only */
    if (is(part, "BertProcessing") || is(part, "RobertaProcessing"))
        return read_class_token(l, part);
    if (is(part, "TemplateProcessing")) return read_template(l, part);
    if (!is(part, "Sequence"))
        return UNREADABLE(l, "the post-processor '%s'", text_of(part, "type"));
    ITEMS(each, get(part, "processors")) {
        if (is(each, "Sequence")) return UNREADABLE(l, "a sequence of post-processors in another");
        WEFT_TRY(read_post_processor(l, each));
    }
    return WEFT_OK;
}

/* ---- all of it ---- */

static weft_status read_all(wefti_tokenizer_file *l) {
    const wefti_json *model = get(l->root, "model");
    if (!is_kind(model, WEFTI_JSON_OBJECT))
        return DAMAGED(l, "no model: not a tokenizer.json of Hugging Face tokenizers");
    WEFT_TRY(wefti_tokenizer_read_normal(l, get(l->root, "normalizer")));
    WEFT_TRY(wefti_tokenizer_read_splits(l, get(l->root, "pre_tokenizer")));
    WEFT_TRY(wefti_tokenizer_read_model(l, model));
    WEFT_TRY(wefti_tokenizer_read_added(l, get(l->root, "added_tokens")));
    WEFT_TRY(wefti_tokenizer_read_decoder(l, get(l->root, "decoder")));
    return read_post_processor(l, get(l->root, "post_processor"));
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
