/* BERT's normalizer and pre-tokenizer for characters, as in Hugging Face tokenizers. */
#include "tokenizer/unicode_bert.h"

#include "tokenizer/unicode_bert_tables.h"

#define UNICODE_BERT_COUNT(table) (sizeof(table) / sizeof *(table))
/* The row of a table that `point` is in, or NULL: rows begin with their ranges. */
#define ROW(type, table, point)                                                                    \
    ((const type *)(const void *)wefti_range_of(table, UNICODE_BERT_COUNT(table), sizeof *(table), \
                                                point))

static uint32_t base_of(uint32_t point) {
    const run *neighbours = ROW(run, base_runs, point);
    return neighbours ? bases[neighbours->at + point - neighbours->of.first] : point;
}

static uint32_t small_of(uint32_t point) {
    const shift *move = ROW(shift, small, point);
    if (!move || (point - move->of.first) % (uint32_t)move->step) return point;
    return (uint32_t)((int64_t)point + move->by);
}

uint32_t wefti_bert_clean(uint32_t point) {
    if (point > 32 && point < 127) return point;
    if (wefti_in_ranges(removed, UNICODE_BERT_COUNT(removed), point)) return 0;
    return wefti_in_ranges(spaced, UNICODE_BERT_COUNT(spaced), point) ? ' ' : point;
}

bool wefti_bert_ideograph(uint32_t point) {
    return point >= 0x3400 && wefti_in_ranges(ideographs, UNICODE_BERT_COUNT(ideographs), point);
}

bool wefti_bert_punctuation(uint32_t point) {
    return wefti_in_ranges(punctuation, UNICODE_BERT_COUNT(punctuation), point);
}

/* A syllable consists of a leading consonant, a vowel and perhaps a trailing consonant: The Unicode
 * Standard, section 3.12. */
static int hangul(uint32_t point, uint32_t out[4]) {
    uint32_t index = point - 0xAC00, trailing = index % 28;
    out[0] = 0x1100 + index / 588;
    out[1] = 0x1161 + index % 588 / 28;
    out[2] = 0x11A7 + trailing;
    return trailing ? 3 : 2;
}

int wefti_bert_strip(uint32_t point, uint32_t out[4]) {
    out[0] = point;
    if (point < 0xC0) return 1;
    if (point >= 0xAC00 && point < 0xD7A4) return hangul(point, out);
    if (wefti_in_ranges(dropped, UNICODE_BERT_COUNT(dropped), point)) return 0;
    const expansion *several = ROW(expansion, expansions, point);
    if (several) {
        int count = 0;
        for (; count < 4 && several->to[count]; count++) out[count] = several->to[count];
        return count;
    }
    out[0] = base_of(point);
    return 1;
}

int wefti_bert_lower(uint32_t point, uint32_t out[4]) {
    if (point == 0x130) { /* I with a dot above: i with a combining one */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = point < 128 ? point + (point >= 'A' && point <= 'Z' ? 32 : 0) : small_of(point);
    return 1;
}
