/* Reads the normalizers and pre-tokenizers of a tokenizer.json. Source: huggingface/tokenizers,
 * serialisation of normalizers and pre_tokenizers. */
#include "tokenizer/file.h"
#include "tokenizer/unicode.h"

enum { PIPELINE_STEPS = 64 };

/* ---- normalizers ---- */

static weft_status add_normal(wefti_tokenizer_file *l, wefti_normal_step step) {
    if (l->t->normal_count == PIPELINE_STEPS)
        return UNREADABLE(l, "more than %d normalizers", PIPELINE_STEPS);
    l->normal[l->t->normal_count++] = step;
    return WEFT_OK;
}

static weft_status add_normal_kind(wefti_tokenizer_file *l, wefti_normal_kind kind) {
    return add_normal(l, (wefti_normal_step){.kind = kind});
}

static weft_status read_bert(wefti_tokenizer_file *l, const wefti_json *part) {
    bool lower = flag_of(part, "lowercase", true);
    if (flag_of(part, "clean_text", true)) WEFT_TRY(add_normal_kind(l, WEFTI_NORMAL_CLEAN));
    if (flag_of(part, "handle_chinese_chars", true))
        WEFT_TRY(add_normal_kind(l, WEFTI_NORMAL_IDEOGRAPHS));
    if (flag_of(part, "strip_accents", lower)) {
        WEFT_TRY(add_normal_kind(l, WEFTI_NORMAL_NFD));
        WEFT_TRY(add_normal_kind(l, WEFTI_NORMAL_NONSPACING));
    }
    return lower ? add_normal_kind(l, WEFTI_NORMAL_LOWERCASE) : WEFT_OK;
}

static weft_status read_replace(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_normal_step step = {.kind = WEFTI_NORMAL_REPLACE};
    WEFT_TRY(wefti_tokenizer_pattern(l, part, &step.regex));
    step.content = wefti_arena_strdup(l->t->arena, text_of(part, "content"));
    WEFT_REQUIRE(step.content, WEFT_E_NOMEM, "no memory for the normalizers of %s", l->path);
    return step.regex ? add_normal(l, step) : WEFT_OK;
}

static weft_status read_prepend(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_normal_step step = {.kind = WEFTI_NORMAL_PREPEND};
    step.content = wefti_arena_strdup(l->t->arena, text_of(part, "prepend"));
    WEFT_REQUIRE(step.content, WEFT_E_NOMEM, "no memory for the normalizers of %s", l->path);
    return add_normal(l, step);
}

static weft_status read_precompiled(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_normal_step step = {.kind = WEFTI_NORMAL_PRECOMPILED};
    weft_status status =
        wefti_precompiled_read(l->t->arena, text_of(part, "precompiled_charsmap"), &step.rules);
    return status < 0 ? wefti_prefix(status, "%s", l->path) : add_normal(l, step);
}

static weft_status read_normal(wefti_tokenizer_file *l, const wefti_json *part) {
    static const struct {
        const char *type;
        wefti_normal_kind kind;
    } plain[] = {{"NFC", WEFTI_NORMAL_NFC},
                 {"NFD", WEFTI_NORMAL_NFD},
                 {"NFKC", WEFTI_NORMAL_NFKC},
                 {"NFKD", WEFTI_NORMAL_NFKD},
                 {"Lowercase", WEFTI_NORMAL_LOWERCASE},
                 {"StripAccents", WEFTI_NORMAL_STRIP_ACCENTS},
                 {"Nmt", WEFTI_NORMAL_NMT}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is(part, plain[i].type)) return add_normal_kind(l, plain[i].kind);
    if (is(part, "BertNormalizer")) return read_bert(l, part);
    if (is(part, "Replace")) return read_replace(l, part);
    if (is(part, "Prepend")) return read_prepend(l, part);
    if (is(part, "Precompiled")) return read_precompiled(l, part);
    if (is(part, "ByteLevel")) {
        l->t->alphabet = WEFTI_ALPHABET_MAPPED;
        return add_normal_kind(l, WEFTI_NORMAL_BYTE_LEVEL);
    }
    if (is(part, "Strip"))
        return add_normal(l, (wefti_normal_step){.kind = WEFTI_NORMAL_STRIP,
                                                 .left = flag_of(part, "strip_left", true),
                                                 .right = flag_of(part, "strip_right", true)});
    if (!is(part, "Sequence")) return UNREADABLE(l, "the normalizer '%s'", text_of(part, "type"));
    ITEMS(each, get(part, "normalizers")) WEFT_TRY(read_normal(l, each));
    return WEFT_OK;
}

weft_status wefti_tokenizer_read_normal(wefti_tokenizer_file *l, const wefti_json *part) {
    l->normal = wefti_arena_alloc(l->t->arena, PIPELINE_STEPS * sizeof *l->normal);
    WEFT_REQUIRE(l->normal, WEFT_E_NOMEM, "no memory for the normalizers of %s", l->path);
    l->t->normal = l->normal;
    return part ? read_normal(l, part) : WEFT_OK;
}

/* ---- pre-tokenizers ---- */

static weft_status add_split(wefti_tokenizer_file *l, wefti_split_step step) {
    if (l->t->split_count == PIPELINE_STEPS)
        return UNREADABLE(l, "more than %d pre-tokenizers", PIPELINE_STEPS);
    l->split[l->t->split_count++] = step;
    return WEFT_OK;
}

static weft_status read_behavior(wefti_tokenizer_file *l, const wefti_json *part,
                                 wefti_split_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = text_of(part, "behavior");
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i]) || (!*name && i == 0)) {
            *out = (wefti_split_behavior)i;
            return WEFT_OK;
        }
    return UNREADABLE(l, "the behavior '%s' of the pre-tokenizer '%s'", name,
                      text_of(part, "type"));
}

static weft_status compile(wefti_tokenizer_file *l, const char *pattern, const wefti_regex **out) {
    weft_status status = wefti_regex_compile(l->t->arena, pattern, out);
    return status < 0 ? wefti_prefix(status, "%s", l->path) : WEFT_OK;
}

static weft_status read_split(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_split_step step = {.kind = WEFTI_SPLIT_REGEX, .invert = flag_of(part, "invert", false)};
    WEFT_TRY(read_behavior(l, part, &step.behavior));
    WEFT_TRY(wefti_tokenizer_pattern(l, part, &step.regex));
    return add_split(l, step);
}

static weft_status read_scheme(wefti_tokenizer_file *l, const wefti_json *part,
                               wefti_prepend *out) {
    static const char *const names[] = {"never", "always", "first"};
    const char *name = text_of(part, "prepend_scheme");
    if (!flag_of(part, "add_prefix_space", true)) name = "never"; /* as early files say it */
    if (!*name) name = "always";
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            *out = (wefti_prepend)i;
            return WEFT_OK;
        }
    return UNREADABLE(l, "the prepend_scheme '%s' of the pre-tokenizer Metaspace", name);
}

static weft_status read_metaspace(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_split_step step = {.kind = WEFTI_SPLIT_METASPACE, .behavior = WEFTI_BEHAVIOR_WITH_NEXT};
    step.replacement = wefti_arena_strdup(l->t->arena, text_of(part, "replacement"));
    WEFT_REQUIRE(step.replacement, WEFT_E_NOMEM, "no memory for the steps of %s", l->path);
    if (!*step.replacement) return DAMAGED(l, "the pre-tokenizer Metaspace has no replacement");
    WEFT_TRY(read_scheme(l, part, &step.prepend));
    if (flag_of(part, "split", true))
        WEFT_TRY(wefti_regex_literal(l->t->arena, step.replacement, &step.regex));
    return add_split(l, step);
}

/* The steps behind it see the alphabet; `read_splits` takes that back if there are none. */
static weft_status read_byte_level(wefti_tokenizer_file *l, const wefti_json *part) {
    static const char gpt2[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    wefti_split_step step = {.kind = WEFTI_SPLIT_BYTE_LEVEL, .maps = true};
    if (l->t->alphabet) return UNREADABLE(l, "a second ByteLevel");
    l->t->alphabet = WEFTI_ALPHABET_MAPPED;
    if (flag_of(part, "add_prefix_space", true)) step.prepend = WEFTI_PREPEND_ALWAYS;
    if (flag_of(part, "use_regex", true)) WEFT_TRY(compile(l, gpt2, &step.regex));
    return add_split(l, step);
}

static weft_status read_delimiter(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_split_step step = {.kind = WEFTI_SPLIT_CLASS, .behavior = WEFTI_BEHAVIOR_REMOVED};
    const char *text = text_of(part, "delimiter");
    if (!*text) return DAMAGED(l, "the pre-tokenizer CharDelimiterSplit has no delimiter");
    (void)wefti_utf8_next((const unsigned char *)text, (int64_t)strlen(text), &step.delimiter);
    return add_split(l, step);
}

static weft_status read_class_split(wefti_tokenizer_file *l, bool (*class)(uint32_t),
                                    wefti_split_behavior behavior) {
    return add_split(
        l, (wefti_split_step){.kind = WEFTI_SPLIT_CLASS, .class = class, .behavior = behavior});
}

static weft_status read_splits(wefti_tokenizer_file *l, const wefti_json *part) {
    wefti_split_behavior behavior = WEFTI_BEHAVIOR_REMOVED;
    if (is(part, "Split")) return read_split(l, part);
    if (is(part, "ByteLevel")) return read_byte_level(l, part);
    if (is(part, "Metaspace")) return read_metaspace(l, part);
    if (is(part, "CharDelimiterSplit")) return read_delimiter(l, part);
    if (is(part, "WhitespaceSplit")) return read_class_split(l, wefti_unicode_space, behavior);
    if (is(part, "Digits"))
        return read_class_split(l, wefti_unicode_digit,
                                flag_of(part, "individual_digits", false)
                                    ? WEFTI_BEHAVIOR_ISOLATED
                                    : WEFTI_BEHAVIOR_CONTIGUOUS);
    if (is(part, "Punctuation")) {
        WEFT_TRY(read_behavior(l, part, &behavior));
        return read_class_split(l, wefti_unicode_punctuation, behavior);
    }
    if (is(part, "BertPreTokenizer")) {
        WEFT_TRY(read_class_split(l, wefti_unicode_space, behavior));
        return read_class_split(l, wefti_unicode_punctuation, WEFTI_BEHAVIOR_ISOLATED);
    }
    if (is(part, "Whitespace")) { /* \w here knows the joiners, too */
        wefti_split_step step = {
            .kind = WEFTI_SPLIT_REGEX, .behavior = WEFTI_BEHAVIOR_REMOVED, .invert = true};
        WEFT_TRY(compile(l, "[\\w\\u200C\\u200D]+|[^\\w\\u200C\\u200D\\s]+", &step.regex));
        return add_split(l, step);
    }
    if (!is(part, "Sequence"))
        return UNREADABLE(l, "the pre-tokenizer '%s'", text_of(part, "type"));
    ITEMS(each, get(part, "pretokenizers")) WEFT_TRY(read_splits(l, each));
    return WEFT_OK;
}

weft_status wefti_tokenizer_read_splits(wefti_tokenizer_file *l, const wefti_json *part) {
    weft_tokenizer *t = l->t;
    l->split = wefti_arena_alloc(t->arena, (PIPELINE_STEPS + 1) * sizeof *l->split);
    WEFT_REQUIRE(l->split, WEFT_E_NOMEM, "no memory for the pre-tokenizers of %s", l->path);
    t->split = l->split;
    if (part) WEFT_TRY(read_splits(l, part));
    wefti_split_step *last = &l->split[t->split_count - (t->split_count > 0)];
    if (last->maps) { /* nothing looks at the alphabet: words stay bytes */
        last->maps = false;
        t->alphabet = WEFTI_ALPHABET_BYTES;
        t->split_count -= !last->regex && last->prepend == WEFTI_PREPEND_NEVER; /* does nothing */
    }
    return WEFT_OK;
}
