#!/usr/bin/env python3
"""Writes src/train/data_unicode_bert.c: what the normalizer and the pre-tokenizer of BERT do to each
character. Hugging Face tokenizers takes categories from Unicode 8, decompositions and letter case from
later versions; so that text gets the very same tokens, its parts are asked about every character.

Usage: tools/bert_classes.py > src/train/data_unicode_bert.c      (made with tokenizers 0.23.3)
"""
import tokenizers
from tokenizers import normalizers, pre_tokenizers

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by rule


def normalizer(**on):
    parts = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**parts, **on})


def between(part):
    """What becomes of each character between two letters."""
    return {p: part.normalize_str("a" + chr(p) + "b")[1:-1] for p in POINTS}


def ranges(points):
    out = []
    for point in points:
        if out and point == out[-1][1] + 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def wrapped(rows):
    lines, line = [], "   "
    for row in rows:
        if len(line) + len(row) + 1 > 100:
            lines.append(line)
            line = "   "
        line += " " + row
    return "\n".join(lines + [line])


def table(name, points):
    return "static const range %s[] = {\n%s\n};\n" % (name, wrapped("{0x%X, 0x%X}," % tuple(r) for r in ranges(points)))


def shifts(pairs):
    """Runs of characters, one or two apart, that all move by the same distance."""
    out = []
    for point, to in pairs:
        last = out[-1] if out else None
        if last and to - point == last[3] and (point - last[1] == last[2] or
                                               (last[0] == last[1] and point - last[1] <= 2)):
            last[2] = point - last[1]
            last[1] = point
        else:
            out.append([point, point, 1, to - point])
    return out


def runs(pairs):
    """Neighbouring characters, with the place of the first one in the list of all results."""
    out = []
    for at, (point, _) in enumerate(pairs):
        if out and point == out[-1][1] + 1:
            out[-1][1] = point
        else:
            out.append([point, point, at])
    return out


cleaned = between(normalizer(clean_text=True))
removed = [p for p in POINTS if cleaned[p] == ""]
spaced = [p for p in POINTS if cleaned[p] == " "]
assert all(cleaned[p] in ("", " ", chr(p)) for p in POINTS)
spread = between(normalizer(handle_chinese_chars=True))
ideographs = [p for p in POINTS if spread[p] == " %c " % p]
assert all(spread[p] == chr(p) for p in set(POINTS) - set(ideographs))
stripped = between(normalizer(strip_accents=True))
dropped = [p for p in POINTS if stripped[p] == ""]
single = [(p, ord(stripped[p])) for p in POINTS if len(stripped[p]) == 1 and stripped[p] != chr(p)]
several = [(p, stripped[p]) for p in POINTS if len(stripped[p]) > 1 and p not in HANGUL]
assert max(len(s) for _, s in several) <= 4
lowered = between(normalizer(lowercase=True))
lower = [(p, ord(lowered[p])) for p in POINTS if len(lowered[p]) == 1 and lowered[p] != chr(p)]
assert [p for p in POINTS if len(lowered[p]) > 1] == [0x130] and lowered[0x130] == "i\u0307"
pre = pre_tokenizers.BertPreTokenizer()
apart = {p: [word for word, _ in pre.pre_tokenize_str("a" + chr(p) + "b")] for p in POINTS}
punctuation = [p for p in POINTS if apart[p] == ["a", chr(p), "b"]]
white = [p for p in POINTS if apart[p] == ["a", "b"]]
assert white == [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                 0x205F, 0x3000], "wefti_unicode_space"

print("""/* What BERT's normalizer and pre-tokenizer do to characters, as Hugging Face tokenizers %s does it.
 * Written by tools/bert_classes.py; do not edit. */
#include "train/data_unicode_bert.h"

#include <stddef.h>

typedef struct range {
    uint32_t first, last;
} range;

/* Every `step`th character of a range moves by `by`. */
typedef struct shift {
    uint32_t first, last;
    int32_t step, by;
} shift;

/* Neighbours whose results begin at a place of `bases`. */
typedef struct run {
    uint32_t first, last, at;
} run;

typedef struct expansion {
    uint32_t from, to[4]; /* 0: no more */
} expansion;

/* clang-format off */
%s
%s
%s
%s
%s
static const run base_runs[] = {
%s
};

static const uint32_t bases[] = {
%s
};

static const expansion expansions[] = {
%s
};

static const shift small[] = {
%s
};
/* clang-format on */
""" % (tokenizers.__version__, table("removed", removed), table("spaced", spaced), table("ideographs", ideographs),
       table("dropped", dropped), table("punctuation", punctuation),
       wrapped("{0x%X, 0x%X, %d}," % tuple(r) for r in runs(single)), wrapped("0x%X," % to for _, to in single),
       wrapped("{0x%X, {%s}}," % (p, ", ".join("0x%X" % ord(c) for c in s)) for p, s in several),
       wrapped("{0x%X, 0x%X, %d, %d}," % tuple(s) for s in shifts(lower))))
print("""#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool contains(const range *ranges, size_t count, uint32_t point) {
    size_t low = 0, high = count; /* the first range whose last is not below the point */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= point;
}

static uint32_t base_of(uint32_t point) {
    size_t low = 0, high = COUNT(base_runs);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (base_runs[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(base_runs) || point < base_runs[low].first) return point;
    return bases[base_runs[low].at + point - base_runs[low].first];
}

static uint32_t small_of(uint32_t point) {
    size_t low = 0, high = COUNT(small);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (small[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(small) || point < small[low].first) return point;
    if ((point - small[low].first) % (uint32_t)small[low].step) return point;
    return (uint32_t)((int64_t)point + small[low].by);
}

uint32_t wefti_bert_clean(uint32_t point) {
    if (point > 32 && point < 127) return point;
    if (contains(removed, COUNT(removed), point)) return 0;
    return contains(spaced, COUNT(spaced), point) ? ' ' : point;
}

bool wefti_bert_ideograph(uint32_t point) {
    return point >= 0x3400 && contains(ideographs, COUNT(ideographs), point);
}

bool wefti_bert_punctuation(uint32_t point) {
    return contains(punctuation, COUNT(punctuation), point);
}

/* A syllable is made of a leading consonant, a vowel and perhaps a trailing consonant: The Unicode
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
    if (contains(dropped, COUNT(dropped), point)) return 0;
    for (size_t low = 0, high = COUNT(expansions); low < high;) {
        size_t middle = (low + high) / 2;
        const expansion *e = &expansions[middle];
        if (e->from == point) {
            int count = 0;
            for (; count < 4 && e->to[count]; count++) out[count] = e->to[count];
            return count;
        }
        if (e->from < point)
            low = middle + 1;
        else
            high = middle;
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
}""")
