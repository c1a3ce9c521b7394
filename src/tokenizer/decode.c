/* The decoders of a tokenizer.json, applied to each token when the file is read: what a token
 * decodes to inside a text, and at its start or end where that differs. So decoding copies bytes,
 * and a text can be shown while its tokens come in.
 *
 * Where Hugging Face tokenizers write U+FFFD for bytes that are not UTF-8, weft keeps the bytes.
 * Source: huggingface/tokenizers, decoders. */
#include "base/text.h"
#include "tokenizer/alphabet.h"
#include "tokenizer/file.h"

typedef enum decode_kind {
    DECODE_JOIN, /* no decoder: a space between tokens */
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_BYTE_LEVEL,
    DECODE_STRIP,
    DECODE_METASPACE,
    DECODE_WORD_PIECE,
    DECODE_END_OF_WORD
} decode_kind;

typedef struct decode_step {
    decode_kind kind;
    const wefti_regex *regex;
    const char *from, *to; /* what is replaced by what, stripped, or dropped from the front */
    int64_t start, stop;
    bool cleanup;
} decode_step;

typedef struct decoder {
    wefti_tokenizer_file *l;
    decode_step steps[16];
    int count;
    bool fused;       /* the steps behind see the whole text */
    bool first, last; /* a token at the start, or the end, of a text differs */
} decoder;

/* ---- steps ---- */

static void add(wefti_text *out, const char *text) {
    wefti_text_add_bytes(out, text, (int64_t)strlen(text));
}

static bool at_text(const char *text, int64_t bytes, const char *what) {
    int64_t length = (int64_t)strlen(what);
    return length && bytes >= length && !memcmp(text, what, (size_t)length);
}

static void replace_text(const char *text, int64_t bytes, const char *from, const char *to,
                         wefti_text *out) {
    for (int64_t at = 0; at < bytes;) {
        bool here = at_text(text + at, bytes - at, from);
        if (here)
            add(out, to);
        else
            wefti_text_add_bytes(out, text + at, 1);
        at += here ? (int64_t)strlen(from) : 1;
    }
}

static void replace_matches(const decode_step *s, const char *text, int64_t bytes,
                            wefti_text *out) {
    wefti_regex_search search = {0};
    int64_t last = 0;
    while (s->regex && wefti_regex_next(s->regex, (const unsigned char *)text, bytes, &search)) {
        wefti_text_add_bytes(out, text + last, search.first - last);
        add(out, s->to);
        last = search.behind;
    }
    wefti_text_add_bytes(out, text + last, bytes - last);
}

static int hexadecimal(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static void byte_token(const char *text, int64_t bytes, wefti_text *out) {
    bool is_byte = bytes == 6 && at_text(text, bytes, "<0x") && text[5] == '>' &&
                   hexadecimal(text[3]) >= 0 && hexadecimal(text[4]) >= 0;
    char byte = (char)(is_byte ? hexadecimal(text[3]) * 16 + hexadecimal(text[4]) : 0);
    wefti_text_add_bytes(out, is_byte ? &byte : text, is_byte ? 1 : bytes);
}

static void from_alphabet(const char *text, int64_t bytes, wefti_text *out) {
    int64_t count = 0;
    wefti_text_add_bytes(out, text, bytes); /* also the room for the bytes, which are fewer */
    if (!out->failed && bytes &&
        wefti_alphabet_bytes((const unsigned char *)text, bytes, (unsigned char *)out->data,
                             &count))
        out->used = count;
    else if (!out->failed && bytes)
        memcpy(out->data, text, (size_t)bytes);
}

static void strip_token(const decode_step *s, const char *text, int64_t bytes, wefti_text *out) {
    int64_t length = (int64_t)strlen(s->from);
    for (int64_t i = 0; i < s->start && at_text(text, bytes, s->from); i++) {
        text += length;
        bytes -= length;
    }
    for (int64_t i = 0;
         i < s->stop && bytes >= length && at_text(text + bytes - length, length, s->from); i++)
        bytes -= length;
    wefti_text_add_bytes(out, text, bytes);
}

/* Texts that English writes without a space before them; the list of the decoder WordPiece. */
static void clean_up(wefti_text *text, wefti_text *scratch) {
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        scratch->used = 0;
        replace_text(text->data, text->used, pairs[i][0], pairs[i][1], scratch);
        wefti_text other = *text;
        *text = *scratch;
        *scratch = other;
    }
}

static void apply(const decode_step *s, const char *text, int64_t bytes, bool first, bool last,
                  wefti_text *out) {
    out->used = 0;
    wefti_text_add_bytes(out, "", 0);
    switch (s->kind) {
    case DECODE_JOIN:
        if (!first) add(out, " ");
        wefti_text_add_bytes(out, text, bytes);
        break;
    case DECODE_REPLACE:
        replace_matches(s, text, bytes, out);
        break;
    case DECODE_BYTE_FALLBACK:
        byte_token(text, bytes, out);
        break;
    case DECODE_BYTE_LEVEL:
        from_alphabet(text, bytes, out);
        break;
    case DECODE_STRIP:
        strip_token(s, text, bytes, out);
        break;
    case DECODE_METASPACE:
        replace_text(text, bytes, s->from, first ? s->to : " ", out);
        break;
    case DECODE_END_OF_WORD:
        replace_text(text, bytes, s->from, last ? "" : " ", out);
        break;
    case DECODE_WORD_PIECE: {
        bool joins = !first && (!*s->from || at_text(text, bytes, s->from));
        int64_t skipped = joins ? (int64_t)strlen(s->from) : 0;
        if (!first && !joins) add(out, " ");
        wefti_text_add_bytes(out, text + skipped, bytes - skipped);
    }
    }
}

static weft_status decode_token(const decoder *d, wefti_bytes name, bool first, bool last,
                                wefti_text texts[3], wefti_bytes *out) {
    const char *text = (const char *)name.data;
    int64_t bytes = name.count;
    for (int i = 0; i < d->count; i++) {
        wefti_text *to = &texts[i % 2];
        apply(&d->steps[i], text, bytes, first, last, to);
        if (d->steps[i].cleanup && !to->failed) clean_up(to, &texts[2]);
        WEFT_REQUIRE(!to->failed && !texts[2].failed, WEFT_E_NOMEM,
                     "no memory for the decoded tokens of %s", d->l->path);
        text = to->data;
        bytes = to->used;
    }
    if (bytes == name.count && !memcmp(text, name.data, (size_t)bytes)) {
        *out = name;
        return WEFT_OK;
    }
    return wefti_tokenizer_keep(d->l, text, bytes, out);
}

/* ---- reading ---- */

static weft_status add_step(decoder *d, decode_step step) {
    if (d->count == (int)(sizeof d->steps / sizeof *d->steps))
        return UNREADABLE(d->l, "more than %d decoders", d->count);
    d->steps[d->count++] = step;
    return WEFT_OK;
}

/* Behind Fuse or ByteLevel the whole text begins with what is stripped. */
static weft_status read_strip(decoder *d, const wefti_json *part) {
    wefti_decoding *whole = &d->l->t->decoding;
    decode_step step = {.kind = DECODE_STRIP,
                        .start = int_of(get(part, "start"), 0),
                        .stop = int_of(get(part, "stop"), 0)};
    step.from = wefti_arena_strdup(d->l->t->arena, text_of(part, "content"));
    WEFT_REQUIRE(step.from, WEFT_E_NOMEM, "no memory for the decoders of %s", d->l->path);
    if (!d->fused) return add_step(d, step);
    if (step.stop || whole->strip)
        return UNREADABLE(d->l, "the decoder 'Strip' of the end of a text, or a second one");
    whole->strip = step.from;
    whole->strip_count = step.start;
    return WEFT_OK;
}

/* Behind Fuse, what a single character is replaced by does not depend on its neighbours. */
static weft_status read_replace(decoder *d, const wefti_json *part) {
    decode_step step = {.kind = DECODE_REPLACE};
    const char *text = text_of(get(part, "pattern"), "String");
    uint32_t point;
    if (d->fused && (!*text || wefti_utf8_next((const unsigned char *)text, (int64_t)strlen(text),
                                               &point) != (int)strlen(text)))
        return UNREADABLE(d->l, "the decoder 'Replace' behind Fuse, of other than one character");
    WEFT_TRY(wefti_tokenizer_pattern(d->l, part, &step.regex));
    step.to = wefti_arena_strdup(d->l->t->arena, text_of(part, "content"));
    WEFT_REQUIRE(step.to, WEFT_E_NOMEM, "no memory for the decoders of %s", d->l->path);
    return add_step(d, step);
}

/* A decoder with one text in its options. */
static weft_status read_with_text(decoder *d, const wefti_json *part, decode_step step,
                                  const char *key, const char *missing) {
    const char *text = string_of(get(part, key));
    step.from = wefti_arena_strdup(d->l->t->arena, text ? text : missing);
    WEFT_REQUIRE(step.from, WEFT_E_NOMEM, "no memory for the decoders of %s", d->l->path);
    return add_step(d, step);
}

static weft_status read_step(decoder *d, const wefti_json *part) {
    const char *type = text_of(part, "type");
    if (is(part, "Sequence")) {
        ITEMS(each, get(part, "decoders")) WEFT_TRY(read_step(d, each));
        return WEFT_OK;
    }
    if (is(part, "Strip")) return read_strip(d, part);
    if (is(part, "Replace")) return read_replace(d, part);
    if (is(part, "Fuse")) {
        d->fused = true;
        return WEFT_OK;
    }
    if (d->fused) return UNREADABLE(d->l, "the decoder '%s' behind Fuse", type);
    if (is(part, "ByteFallback")) return add_step(d, (decode_step){.kind = DECODE_BYTE_FALLBACK});
    if (is(part, "ByteLevel")) {
        d->fused = true;
        return add_step(d, (decode_step){.kind = DECODE_BYTE_LEVEL});
    }
    if (is(part, "Metaspace")) {
        bool keeps = !strcmp(text_of(part, "prepend_scheme"), "never") ||
                     !flag_of(part, "add_prefix_space", true);
        d->first |= !keeps;
        return read_with_text(d, part,
                              (decode_step){.kind = DECODE_METASPACE, .to = keeps ? " " : ""},
                              "replacement", WEFTI_PIECE_SPACE);
    }
    if (is(part, "WordPiece")) {
        d->first = true;
        return read_with_text(
            d, part,
            (decode_step){.kind = DECODE_WORD_PIECE, .cleanup = flag_of(part, "cleanup", true)},
            "prefix", "##");
    }
    if (is(part, "BPEDecoder")) {
        d->last = true;
        return read_with_text(d, part, (decode_step){.kind = DECODE_END_OF_WORD}, "suffix", "</w>");
    }
    return UNREADABLE(d->l, "the decoder '%s'", type);
}

static weft_status make_table(decoder *d, bool wanted, wefti_bytes **out) {
    if (!wanted) return WEFT_OK;
    *out = wefti_arena_alloc(d->l->t->arena, (size_t)d->l->t->vocab * sizeof **out);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the decoded tokens of %s", d->l->path);
    return WEFT_OK;
}

static weft_status decode_all(decoder *d, wefti_text texts[3]) {
    weft_tokenizer *t = d->l->t;
    WEFT_TRY(make_table(d, d->first, &t->decoding.first));
    WEFT_TRY(make_table(d, d->last, &t->decoding.last));
    for (int64_t i = 0; i < t->vocab; i++) {
        wefti_bytes name = t->tokens[i];
        if (!name.data) continue;
        WEFT_TRY(decode_token(d, name, false, false, texts, &t->tokens[i]));
        if (d->first) WEFT_TRY(decode_token(d, name, true, false, texts, &t->decoding.first[i]));
        if (d->last) WEFT_TRY(decode_token(d, name, false, true, texts, &t->decoding.last[i]));
    }
    return WEFT_OK;
}

weft_status wefti_tokenizer_read_decoder(wefti_tokenizer_file *l, const wefti_json *part) {
    decoder d = {.l = l, .first = !part};
    wefti_text texts[3] = {{0}, {0}, {0}};
    WEFT_TRY(part ? read_step(&d, part) : add_step(&d, (decode_step){.kind = DECODE_JOIN}));
    for (int64_t i = 0; i < l->t->added.count; i++) /* these decode as they were found */
        l->t->tokens[l->t->added.tokens[i].id] = l->t->added.tokens[i].pattern;
    weft_status status = decode_all(&d, texts);
    for (int i = 0; i < 3; i++) wefti_text_free(&texts[i]);
    return status;
}
