/* Pre-tokenizers: see tokenizer/pretokenize.h. Each step hands its pieces to the next one at once,
 * so that no list of pieces is kept. Source: huggingface/tokenizers, pre_tokenizers, and
 * NormalizedString::split for the behaviors. */
#include "tokenizer/pretokenize.h"

#include <string.h>

#include "tokenizer/alphabet.h"
#include "tokenizer/unicode.h"

/* A text on its way through the steps that are left. */
typedef struct splitting {
    const wefti_split_step *steps, *end;
    wefti_split_scratch *scratch;
    const wefti_words *words;
    const unsigned char *text;
    int64_t bytes;
    bool first;
    /* the piece that the next one may join */
    int64_t from, behind;
    bool waits, matched;
} splitting;

static weft_status split_at(const splitting *s);

/* Passes a piece on to the next step. */
static weft_status pass(const splitting *s, int64_t from, int64_t behind) {
    if (from == behind) return WEFT_OK;
    const unsigned char *piece = s->text + from;
    int64_t bytes = behind - from;
    if (s->steps->maps) {
        wefti_text *mapped = &s->scratch->mapped;
        char character[4];
        mapped->used = 0;
        for (int64_t i = 0; i < bytes; i++)
            wefti_text_add_bytes(mapped, character,
                                 wefti_utf8_write(character, wefti_alphabet_character(piece[i])));
        WEFT_REQUIRE(!mapped->failed, WEFT_E_NOMEM, "no memory for %lld bytes of text",
                     (long long)bytes);
        piece = (const unsigned char *)mapped->data;
        bytes = mapped->used;
    }
    if (s->steps + 1 == s->end) return s->words->word(s->words->context, piece, bytes);
    splitting next = {.steps = s->steps + 1,
                      .end = s->end,
                      .scratch = s->scratch + 1,
                      .words = s->words,
                      .text = piece,
                      .bytes = bytes,
                      .first = s->first && from == 0};
    return split_at(&next);
}

static weft_status pass_waiting(splitting *s) {
    bool waits = s->waits;
    s->waits = false;
    return waits ? pass(s, s->from, s->behind) : WEFT_OK;
}

/* The next piece of the text, a match or what is between matches. */
static weft_status piece(splitting *s, int64_t from, int64_t behind, bool match) {
    bool joins = false;
    if (from == behind && !match) return WEFT_OK;
    match ^= s->steps->invert;
    switch (s->steps->behavior) {
    case WEFTI_BEHAVIOR_ISOLATED:
        return pass(s, from, behind);
    case WEFTI_BEHAVIOR_REMOVED:
        return match ? WEFT_OK : pass(s, from, behind);
    case WEFTI_BEHAVIOR_CONTIGUOUS:
        joins = match == s->matched;
        break;
    case WEFTI_BEHAVIOR_WITH_PREVIOUS:
        joins = match && !s->matched;
        break;
    case WEFTI_BEHAVIOR_WITH_NEXT:
        joins = !match && s->matched;
    }
    if (s->waits && joins) {
        s->behind = behind;
    } else {
        WEFT_TRY(pass_waiting(s));
        s->from = from;
        s->behind = behind;
        s->waits = true;
    }
    s->matched = match;
    return WEFT_OK;
}

static weft_status by_regex(splitting *s) {
    wefti_regex_search search = {0};
    int64_t last = 0;
    if (!s->steps->regex) return pass(s, 0, s->bytes);
    if (s->steps->behavior == WEFTI_BEHAVIOR_ISOLATED) { /* matches and gaps alike are words */
        while (wefti_regex_next(s->steps->regex, s->text, s->bytes, &search)) {
            if (last < search.first) WEFT_TRY(pass(s, last, search.first));
            WEFT_TRY(pass(s, search.first, search.behind));
            last = search.behind;
        }
        return pass(s, last, s->bytes);
    }
    while (wefti_regex_next(s->steps->regex, s->text, s->bytes, &search)) {
        WEFT_TRY(piece(s, last, search.first, false));
        WEFT_TRY(piece(s, search.first, search.behind, true));
        last = search.behind;
    }
    WEFT_TRY(piece(s, last, s->bytes, false));
    return pass_waiting(s);
}

static weft_status by_class(splitting *s) {
    int64_t last = 0;
    for (int64_t at = 0; at < s->bytes;) {
        uint32_t point = s->text[at];
        int length = point < 128 ? 1 : wefti_utf8_next(s->text + at, s->bytes - at, &point);
        bool match = s->steps->class ? s->steps->class(point) : point == s->steps->delimiter;
        if (match) {
            WEFT_TRY(piece(s, last, at, false));
            WEFT_TRY(piece(s, at, at + length, true));
            last = at + length;
        }
        at += length;
    }
    WEFT_TRY(piece(s, last, s->bytes, false));
    return pass_waiting(s);
}

static bool begins_with(const unsigned char *text, int64_t bytes, const char *with) {
    int64_t length = (int64_t)strlen(with);
    return bytes >= length && !memcmp(text, with, (size_t)length);
}

/* The text with `with` in front, if the step wants that, and spaces replaced by `space`. */
static weft_status put_front(splitting *s, const char *with, const char *space) {
    const wefti_split_step *step = s->steps;
    wefti_text *out = &s->scratch->front;
    bool there = begins_with(s->text, s->bytes, with) || begins_with(s->text, s->bytes, " ");
    bool wanted = !there && (step->prepend == WEFTI_PREPEND_ALWAYS ||
                             (step->prepend == WEFTI_PREPEND_FIRST && s->first));
    if (!wanted && !space) return WEFT_OK;
    out->used = 0;
    if (wanted) wefti_text_add_bytes(out, with, (int64_t)strlen(with));
    for (int64_t at = 0; at < s->bytes;) {
        const unsigned char *next =
            space ? memchr(s->text + at, ' ', (size_t)(s->bytes - at)) : NULL;
        int64_t end = next ? next - s->text : s->bytes;
        wefti_text_add_bytes(out, (const char *)s->text + at, end - at);
        if (next) wefti_text_add_bytes(out, space, (int64_t)strlen(space));
        at = end + (next != NULL);
    }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory for %lld bytes of text",
                 (long long)s->bytes);
    s->text = (const unsigned char *)out->data;
    s->bytes = out->used;
    return WEFT_OK;
}

int64_t wefti_piece_end(const unsigned char *text, int64_t bytes) {
    bool inside = false;
    for (int64_t at = 0; at < bytes;) {
        bool space = text[at] == 0xE2 && begins_with(text + at, bytes - at, WEFTI_PIECE_SPACE);
        if (space && inside) return at;
        inside = !space;
        at += space ? 3 : 1;
    }
    return bytes;
}

static weft_status by_pieces(splitting *s) {
    for (int64_t at = 0; at < s->bytes;) {
        int64_t end = at + wefti_piece_end(s->text + at, s->bytes - at);
        WEFT_TRY(pass(s, at, end));
        at = end;
    }
    return WEFT_OK;
}

static weft_status split_at(const splitting *given) {
    splitting s = *given;
    switch (s.steps->kind) {
    case WEFTI_SPLIT_CLASS:
        return by_class(&s);
    case WEFTI_SPLIT_METASPACE:
        WEFT_TRY(put_front(&s, s.steps->replacement, s.steps->replacement));
        return by_regex(&s);
    case WEFTI_SPLIT_BYTE_LEVEL:
        WEFT_TRY(put_front(&s, " ", NULL));
        return by_regex(&s);
    case WEFTI_SPLIT_PIECES:
        return by_pieces(&s);
    default:
        return by_regex(&s);
    }
}

weft_status wefti_pretokenize(const wefti_split_step *steps, int64_t count,
                              wefti_split_scratch *scratch, const unsigned char *text,
                              int64_t bytes, bool first, const wefti_words *words) {
    if (!bytes) return WEFT_OK;
    if (!count) return words->word(words->context, text, bytes);
    return split_at(&(splitting){.steps = steps,
                                 .end = steps + count,
                                 .scratch = scratch,
                                 .words = words,
                                 .text = text,
                                 .bytes = bytes,
                                 .first = first});
}
