/* Normalizers: see tokenizer/normalize.h. Bytes that are no character pass every step but CLEAN,
 * which removes them. Sources: Unicode Standard Annex 15; huggingface/tokenizers, normalizers. */
#include "tokenizer/normalize.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/alphabet.h"
#include "tokenizer/unicode.h"

#define NO_CHARACTER_BYTE 0x80000000u

void wefti_normal_scratch_free(wefti_normal_scratch *s) {
    wefti_text_free(&s->texts[0]);
    wefti_text_free(&s->texts[1]);
    wefti_free(s->points);
    wefti_free(s->sorted);
    *s = (wefti_normal_scratch){0};
}

static void put(wefti_text *out, uint32_t point) {
    char bytes[4];
    int length = 1;
    if (point & NO_CHARACTER_BYTE)
        bytes[0] = (char)(unsigned char)point;
    else
        length = wefti_utf8_write(bytes, point);
    wefti_text_add_bytes(out, bytes, length);
}

static int take(const unsigned char *text, int64_t bytes, uint32_t *out) {
    int length = wefti_utf8_next(text, bytes, out);
    if (*out == WEFTI_NO_CHARACTER) *out = NO_CHARACTER_BYTE | text[0];
    return length;
}

/* ---- normal forms ---- */

typedef struct forming {
    wefti_normal_scratch *s;
    wefti_text *out;
    int64_t count; /* points that may still combine */
    bool composes, compatible;
} forming;

/* Orders a run of marks by their classes; equal ones keep their order. */
static weft_status order_run(wefti_normal_scratch *s, wefti_normal_point *run, int64_t count) {
    int64_t places[257] = {0};
    if (count < 2) return WEFT_OK;
    while (s->sorted_capacity < count)
        WEFT_TRY(WEFT_GROW(s->sorted, s->sorted_capacity, s->sorted_capacity));
    for (int64_t i = 0; i < count; i++) places[run[i].combining + 1]++;
    for (int c = 1; c < 257; c++) places[c] += places[c - 1];
    for (int64_t i = 0; i < count; i++) s->sorted[places[run[i].combining]++] = run[i];
    memcpy(run, s->sorted, (size_t)count * sizeof *run);
    return WEFT_OK;
}

static weft_status order(wefti_normal_scratch *s, int64_t count) {
    for (int64_t from = 0; from < count;) {
        int64_t end = from;
        while (end < count && s->points[end].combining) end++;
        WEFT_TRY(order_run(s, s->points + from, end - from));
        from = end + 1;
    }
    return WEFT_OK;
}

/* Joins each character with the last one of class 0 before it, unless one between blocks it. */
static int64_t compose(wefti_normal_point *points, int64_t count) {
    int64_t used = 0, starter = -1;
    int32_t last = -1; /* class of the last one behind the starter */
    for (int64_t i = 0; i < count; i++) {
        wefti_normal_point next = points[i];
        if (starter >= 0 && last < next.combining) {
            uint32_t both = wefti_unicode_compose(points[starter].point, next.point);
            if (both) {
                points[starter].point = both;
                continue;
            }
        }
        last = next.combining ? next.combining : -1;
        if (!next.combining) starter = used;
        points[used++] = next;
    }
    return used;
}

static weft_status flush(forming *f) {
    if (!f->count) return WEFT_OK;
    WEFT_TRY(order(f->s, f->count));
    int64_t count = f->composes ? compose(f->s->points, f->count) : f->count;
    for (int64_t i = 0; i < count; i++) put(f->out, f->s->points[i].point);
    f->count = 0;
    return WEFT_OK;
}

static weft_status form_character(forming *f, uint32_t point) {
    uint32_t parts[WEFTI_DECOMPOSED] = {point};
    bool character = !(point & NO_CHARACTER_BYTE);
    int count = character ? wefti_unicode_decompose(point, f->compatible, parts) : 1;
    if (!character || wefti_unicode_starts(parts[0])) WEFT_TRY(flush(f));
    for (int i = 0; i < count; i++) {
        WEFT_TRY(WEFT_GROW(f->s->points, f->count, f->s->capacity));
        f->s->points[f->count++] =
            (wefti_normal_point){parts[i], character ? wefti_unicode_combining(parts[i]) : 0};
    }
    return WEFT_OK;
}

static weft_status form(forming *f, const unsigned char *text, int64_t bytes) {
    for (int64_t at = 0; at < bytes;) {
        int64_t plain = at;
        while (plain < bytes && text[plain] < 0x80) plain++;
        if (plain < bytes && plain > at) plain--; /* the last one may combine */
        if (plain > at) {
            WEFT_TRY(flush(f));
            wefti_text_add_bytes(f->out, (const char *)text + at, plain - at);
            at = plain;
            continue;
        }
        uint32_t point;
        at += take(text + at, bytes - at, &point);
        WEFT_TRY(form_character(f, point));
    }
    return flush(f);
}

/* Text without a byte of at least `from` is in the normal form: all characters below U+0300 are in
 * NFC, and all below U+0080 in each form. */
static bool formed_already(const unsigned char *text, int64_t bytes, unsigned char from) {
    for (int64_t i = 0; i < bytes; i++)
        if (text[i] >= from) return false;
    return true;
}

/* ---- steps of single characters ---- */

static uint32_t nmt(uint32_t point) {
    if ((point >= 1 && point <= 8) || point == 0xB || (point >= 0xE && point <= 0x1F) ||
        point == 0x7F || point == 0x8F || point == 0x9F)
        return WEFTI_NO_CHARACTER;
    bool space = point == 9 || point == 0xA || point == 0xC || point == 0xD || point == 0x1680 ||
                 (point >= 0x200B && point <= 0x200F) || point == 0x2028 || point == 0x2029 ||
                 point == 0x2581 || point == 0xFEFF || point == 0xFFFD;
    return space ? ' ' : point;
}

static uint32_t clean(uint32_t point) {
    if (point & NO_CHARACTER_BYTE || wefti_unicode_removed(point)) return WEFTI_NO_CHARACTER;
    return wefti_unicode_space(point) ? ' ' : point;
}

static void rewrite_character(wefti_normal_kind kind, uint32_t point, wefti_text *out) {
    uint32_t parts[2] = {point};
    int count = 1;
    bool character = !(point & NO_CHARACTER_BYTE);
    switch (kind) {
    case WEFTI_NORMAL_LOWERCASE:
        if (character) count = wefti_unicode_lower(point, parts);
        break;
    case WEFTI_NORMAL_STRIP_ACCENTS:
        count = !character || !wefti_unicode_accent(point);
        break;
    case WEFTI_NORMAL_NONSPACING:
        count = !character || !wefti_unicode_nonspacing(point);
        break;
    case WEFTI_NORMAL_CLEAN:
        parts[0] = clean(point);
        break;
    case WEFTI_NORMAL_NMT:
        parts[0] = nmt(point);
        break;
    default:
        break;
    }
    bool apart = kind == WEFTI_NORMAL_IDEOGRAPHS && character && wefti_unicode_ideograph(point);
    if (apart) put(out, ' ');
    for (int i = 0; i < count; i++)
        if (parts[i] != WEFTI_NO_CHARACTER) put(out, parts[i]);
    if (apart) put(out, ' ');
}

/* Bytes of ASCII text that the step copies, in lower case for LOWERCASE. */
static int64_t copied(wefti_normal_kind kind, const unsigned char *text, int64_t bytes) {
    bool controls = kind == WEFTI_NORMAL_CLEAN || kind == WEFTI_NORMAL_NMT;
    int64_t at = 0;
    while (at < bytes && text[at] < (controls ? 0x7F : 0x80) && (!controls || text[at] >= ' '))
        at++;
    return at;
}

static void rewrite(wefti_normal_kind kind, const unsigned char *text, int64_t bytes,
                    wefti_text *out, bool *first) {
    for (int64_t at = 0; at < bytes;) {
        int64_t plain = copied(kind, text + at, bytes - at);
        wefti_text_add_bytes(out, (const char *)text + at, plain);
        if (out->failed) return;
        at += plain;
        for (int64_t i = out->used - plain; kind == WEFTI_NORMAL_LOWERCASE && i < out->used; i++)
            if (out->data[i] >= 'A' && out->data[i] <= 'Z') out->data[i] |= 32;
        if (at == bytes) return;
        uint32_t point;
        int length = take(text + at, bytes - at, &point);
        rewrite_character(kind, point, out);
        if (at == 0 && !out->used) *first = false;
        at += length;
    }
}

static void to_alphabet(const unsigned char *text, int64_t bytes, wefti_text *out) {
    for (int64_t i = 0; i < bytes; i++) put(out, wefti_alphabet_character(text[i]));
}

/* ---- steps of whole texts ---- */

static void strip(const wefti_normal_step *step, const unsigned char **text, int64_t *bytes,
                  bool *first) {
    uint32_t point;
    while (step->left && *bytes) {
        int length = take(*text, *bytes, &point);
        if (!wefti_unicode_space(point)) break;
        *text += length;
        *bytes -= length;
        *first = false;
    }
    int64_t end = 0; /* behind the last character that stays */
    for (int64_t at = 0; step->right && at < *bytes;) {
        at += take(*text + at, *bytes - at, &point);
        if (!wefti_unicode_space(point)) end = at;
    }
    if (step->right) *bytes = end;
}

static void replace(const wefti_normal_step *step, const unsigned char *text, int64_t bytes,
                    wefti_text *out, bool *first) {
    wefti_regex_search search = {0};
    int64_t last = 0, length = (int64_t)strlen(step->content);
    while (wefti_regex_next(step->regex, text, bytes, &search)) {
        wefti_text_add_bytes(out, (const char *)text + last, search.first - last);
        wefti_text_add_bytes(out, step->content, length);
        last = search.behind;
        uint32_t point;
        if (search.first == 0 && last > 0 && (!length || take(text, bytes, &point) != last))
            *first = false;
    }
    wefti_text_add_bytes(out, (const char *)text + last, bytes - last);
}

/* Applies a step that writes a new text. */
static weft_status apply(const wefti_normal_step *step, wefti_normal_scratch *s,
                         const unsigned char *text, int64_t bytes, wefti_text *out, bool *first) {
    forming f = {.s = s,
                 .out = out,
                 .composes = step->kind == WEFTI_NORMAL_NFC || step->kind == WEFTI_NORMAL_NFKC,
                 .compatible = step->kind == WEFTI_NORMAL_NFKC || step->kind == WEFTI_NORMAL_NFKD};
    out->used = 0;
    switch (step->kind) {
    case WEFTI_NORMAL_NFC:
    case WEFTI_NORMAL_NFD:
    case WEFTI_NORMAL_NFKC:
    case WEFTI_NORMAL_NFKD:
        WEFT_TRY(form(&f, text, bytes));
        break;
    case WEFTI_NORMAL_REPLACE:
        replace(step, text, bytes, out, first);
        break;
    case WEFTI_NORMAL_PREPEND:
        wefti_text_add_bytes(out, step->content, (int64_t)strlen(step->content));
        wefti_text_add_bytes(out, (const char *)text, bytes);
        break;
    case WEFTI_NORMAL_PRECOMPILED:
        wefti_precompiled_apply(step->rules, text, bytes, out);
        break;
    case WEFTI_NORMAL_BYTE_LEVEL:
        to_alphabet(text, bytes, out);
        break;
    default:
        rewrite(step->kind, text, bytes, out, first);
    }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory for %lld bytes of text", (long long)bytes);
    return WEFT_OK;
}

static bool changes_nothing(const wefti_normal_step *step, const unsigned char *text,
                            int64_t bytes) {
    switch (step->kind) {
    case WEFTI_NORMAL_NFC:
        return formed_already(text, bytes, 0xCC);
    case WEFTI_NORMAL_NFD:
    case WEFTI_NORMAL_NFKC:
    case WEFTI_NORMAL_NFKD:
    case WEFTI_NORMAL_IDEOGRAPHS:
    case WEFTI_NORMAL_NONSPACING:
    case WEFTI_NORMAL_STRIP_ACCENTS:
        return formed_already(text, bytes, 0x80);
    default:
        return false;
    }
}

weft_status wefti_normalize(const wefti_normal_step *steps, int64_t count, wefti_normal_scratch *s,
                            const unsigned char **text, int64_t *bytes, bool *first) {
    int which = 0; /* of the texts, for the next result */
    for (int64_t i = 0; i < count && *bytes; i++) {
        if (changes_nothing(&steps[i], *text, *bytes)) continue;
        if (steps[i].kind == WEFTI_NORMAL_STRIP) {
            strip(&steps[i], text, bytes, first);
            continue;
        }
        wefti_text *out = &s->texts[which];
        which = !which;
        WEFT_TRY(apply(&steps[i], s, *text, *bytes, out, first));
        *text = (const unsigned char *)out->data;
        *bytes = out->used;
    }
    return WEFT_OK;
}
