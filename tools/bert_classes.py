#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_bert_tables.h: what the normalizer and the pre-tokenizer of BERT do to each
character. Hugging Face tokenizers takes categories from Unicode 8, decompositions and letter case from
later versions; so that text gets the very same tokens, its parts are asked about every character.

Usage: tools/bert_classes.py > src/tokenizer/unicode_bert_tables.h      (made with tokenizers 0.23.3)
"""
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from unicode_tables import header, range_table, table

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by rule


def normalizer(**on):
    parts = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**parts, **on})


def between(part):
    """What becomes of each character between two letters."""
    return {p: part.normalize_str("a" + chr(p) + "b")[1:-1] for p in POINTS}


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

print(header(
    "What BERT's normalizer and pre-tokenizer do to characters, as in tokenizers %s."
    % tokenizers.__version__, "bert_classes.py", "WEFTI_TOKENIZER_UNICODE_BERT_TABLES_H",
    """#include "tokenizer/unicode.h"

/* Every `step`th character of a range moves by `by`. */
typedef struct shift {
    wefti_range of;
    int32_t step, by;
} shift;

/* Neighbours whose results begin at a place of `bases`. */
typedef struct run {
    wefti_range of;
    uint32_t at;
} run;

/* One character becomes several; 0: no more. */
typedef struct expansion {
    wefti_range of;
    uint32_t to[4];
} expansion;
""",
    "\n".join([
        range_table("removed", removed), range_table("spaced", spaced), range_table("ideographs", ideographs),
        range_table("dropped", dropped), range_table("punctuation", punctuation),
        table("run", "base_runs", ("{{0x%X, 0x%X}, %d}" % tuple(r) for r in runs(single))),
        table("uint32_t", "bases", ("0x%X" % to for _, to in single)),
        table("expansion", "expansions",
              ("{{0x%X, 0x%X}, {%s}}" % (p, p, ", ".join("0x%X" % ord(c) for c in s)) for p, s in several)),
        table("shift", "small", ("{{0x%X, 0x%X}, %d, %d}" % tuple(s) for s in shifts(lower))),
    ])))
