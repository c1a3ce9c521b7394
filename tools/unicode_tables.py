#!/usr/bin/env python3
"""Writes the tables of characters of src/tokenizer: categories (\\p{L}), normal forms, and what BERT's parts do.

The parts of Hugging Face tokenizers follow several versions of Unicode: regular expressions 16, digits 17, BERT's
categories 8, normal forms one in between. So that text gets the very same tokens, each part is asked about every
character. Categories and combining classes come from unicodedata2, and the script checks them against the library.

Usage: tools/unicode_tables.py src/tokenizer      (made with tokenizers 0.23.3, unicodedata2 16.0.0)
"""
import sys

import tokenizers
import unicodedata2 as unicodedata
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)  # composed and decomposed by rule
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co").split()
SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul", "Latin", "Greek", "Cyrillic", "Arabic", "Hebrew", "Thai", "Devanagari")


def ranges(points):
    """Neighbours as [first, last]."""
    out = []
    for point in sorted(points):
        if out and point == out[-1][1] + 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def table(kind, name, rows):
    """static const KIND NAME[], in lines of at most 120 characters."""
    lines, line = [], "   "
    for row in rows:
        if len(line) + len(row) + 2 > 120:
            lines.append(line)
            line = "   "
        line += " " + row + ","
    return "static const %s %s[] = {\n%s\n};\n" % (kind, name, "\n".join(lines + [line]))


def range_table(name, points):
    return table("wefti_code_range", name, ("{0x%X, 0x%X}" % tuple(r) for r in ranges(points)))


def write(name, about, parts):
    with open("%s/%s" % (sys.argv[1], name), "w", encoding="utf-8") as file:
        file.write("/* %s\n * Written by tools/unicode_tables.py; do not edit. */\n/* clang-format off */\n%s"
                   "/* clang-format on */\n" % (about, "\n".join(parts)))


def chunks(size):
    for at in range(0, len(POINTS), size):
        yield POINTS[at:at + size]


def matched(pattern):
    """The characters that a regular expression of one character matches."""
    split, out = pre_tokenizers.Split(Regex(pattern), "removed", invert=True), set()
    for points in chunks(20000):
        for word, _ in split.pre_tokenize_str("".join(map(chr, points))):
            out.update(map(ord, word))
    return out


def between(part):
    """What becomes of each character between two letters."""
    return {p: part.normalize_str("a" + chr(p) + "b")[1:-1] for p in POINTS}


# ---- categories and classes ----
category = {p: unicodedata.category(chr(p)) for p in range(0x110000)}
for name in ("L", "M", "N", "P", "S", "Z", "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Mn", "Pc"):
    assert matched(r"\p{%s}" % name) == {p for p in POINTS if category[p].startswith(name)}, name
numbers = {p for p in POINTS if category[p][0] == "N"}
words = matched(r"\w")
single = pre_tokenizers.Digits(True)
digits = set()
for points in chunks(5000):
    for word, _ in single.pre_tokenize_str("".join("a" + chr(p) for p in points)):
        if len(word) == 1 and word != "a":
            digits.add(ord(word))
assert numbers <= digits
rust_words = set()
for points in chunks(5000):
    for word, _ in pre_tokenizers.Whitespace().pre_tokenize_str("".join("a" + chr(p) + " " for p in points)):
        if len(word) == 2:
            rust_words.add(ord(word[1]))
assert words - rust_words == {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE} and rust_words - words == {0x200C, 0x200D}
runs, last = [], None
for point in range(0x110000):
    if category[point] != last:
        last = category[point]
        runs.append("{0x%X, %d}" % (point, CATEGORIES.index(last)))
WHITE = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
         0x3000]
assert matched(r"\s") == set(WHITE)
write("unicode_classes.inc", "Unicode %s: categories, as runs; letters of words; scripts." % unicodedata.unidata_version,
      [table("category_run", "categories", runs), range_table("white", WHITE), range_table("words", words),
       range_table("newer_digits", digits - numbers)] +
      [range_table("script_" + name.lower(), matched(r"\p{%s}" % name)) for name in SCRIPTS] +
      [table("char *const", "category_names", ('"%s"' % name for name in CATEGORIES))])

def charsmap(rules):
    """sentencepiece's compiled form of rules (text, result)."""
    import tempfile
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/rules.tsv", "w") as file:
            for pair in rules:
                file.write("\t".join(" ".join("%X" % ord(c) for c in each) for each in pair) + "\n")
        with open(folder + "/text", "w") as file:
            file.write("hello world this is\n" * 50)
        sentencepiece.SentencePieceTrainer.train(
            input=folder + "/text", model_prefix=folder + "/m", vocab_size=20, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=folder + "/rules.tsv")
        model = sentencepiece_model_pb2.ModelProto()
        with open(folder + "/m.model", "rb") as file:
            model.ParseFromString(file.read())
    return model.normalizer_spec.precompiled_charsmap


# ---- grapheme clusters, as sentencepiece's rules meet them ----
def of_break(name):
    import regex  # knows a later version: characters that are new in it are left out
    return {p for p in POINTS if category[p] != "Cn" and regex.match(r"\p{%s}" % name, chr(p))}


rule = normalizers.Precompiled(charsmap([("a", "b")]))
extends = [p for p in POINTS if rule.normalize_str("a" + chr(p)) == "b"]
write("unicode_clusters.inc", "Parts of grapheme clusters.",
      [range_table("extends", extends), range_table("prepends", of_break("GCB=Prepend")),
       range_table("pictures", of_break("Extended_Pictographic")),
       range_table("controls", of_break("GCB=Control") | of_break("GCB=CR") | of_break("GCB=LF"))])

# ---- normal forms ----
nfd, nfkd = between(normalizers.NFD()), between(normalizers.NFKD())
NFC, NFD = normalizers.NFC(), normalizers.NFD()
canonical = [(p, nfd[p]) for p in POINTS if nfd[p] != chr(p) and p not in HANGUL]
compatible = [(p, nfkd[p]) for p in POINTS if nfkd[p] != nfd[p]]


def knows_class(point):
    """Whether the library orders the character by its combining class."""
    if unicodedata.combining(chr(point)) > 1:
        return NFD.normalize_str("a" + chr(point) + "\u0334") == "a\u0334" + chr(point)
    return NFD.normalize_str("a\u0301" + chr(point)) == "a" + chr(point) + "\u0301"


combining = {p: unicodedata.combining(chr(p)) for p in POINTS if unicodedata.combining(chr(p))}
combining = {p: c for p, c in combining.items() if nfd[p] != chr(p) or knows_class(p)}
class_runs = []
for point in sorted(combining):
    if class_runs and class_runs[-1][1] == point - 1 and class_runs[-1][2] == combining[point]:
        class_runs[-1][1] = point
    else:
        class_runs.append([point, point, combining[point]])
pairs = []
for point, _ in canonical:
    parts = unicodedata.decomposition(chr(point)).split()
    if len(parts) == 2 and NFC.normalize_str(chr(point)) == chr(point):
        pairs.append((int(parts[0], 16), int(parts[1], 16), point))
        assert NFC.normalize_str("".join(chr(int(x, 16)) for x in parts)) == chr(point), hex(point)
pool = ""


def expansion(point, text):
    global pool
    if text not in pool:
        pool += text
    return "{0x%X, %d, %d}" % (point, pool.index(text), len(text))


canonical_rows = [expansion(*each) for each in canonical]
compatible_rows = [expansion(*each) for each in compatible]
assert len(pool) < 65536
write("unicode_normal.inc", "Normal forms: combining classes, decompositions and compositions, as in tokenizers %s."
      % tokenizers.__version__,
      [table("class_run", "classes", ("{{0x%X, 0x%X}, %d}" % tuple(r) for r in class_runs)),
       table("expansion", "canonical", canonical_rows), table("expansion", "compatible", compatible_rows),
       table("uint32_t", "pool", ("0x%X" % ord(c) for c in pool)),
       range_table("seconds", {second for _, second, _ in pairs if second not in combining}),
       table("composition", "compositions", ("{0x%X, 0x%X, 0x%X}" % p for p in sorted(pairs)))])


# ---- BERT's parts, lower case, accents ----
def normalizer(**on):
    parts = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**parts, **on})


def shifts(moves):
    """Runs of characters, one or two apart, that all move by the same distance."""
    out = []
    for point, to in moves:
        last_run = out[-1] if out else None
        if last_run and to - point == last_run[3] and (point - last_run[1] == last_run[2] or (
                last_run[0] == last_run[1] and point - last_run[1] <= 2)):
            last_run[2] = point - last_run[1]
            last_run[1] = point
        else:
            out.append([point, point, 1, to - point])
    return out


cleaned = between(normalizer(clean_text=True))
assert all(cleaned[p] in ("", " ", chr(p)) for p in POINTS)
assert [p for p in POINTS if cleaned[p] == " " and p != 0x20] == [p for p in WHITE if p not in (0xB, 0xC, 0x85, 0x20)]
spread = between(normalizer(handle_chinese_chars=True))
ideographs = [p for p in POINTS if spread[p] == " %c " % p]
assert all(spread[p] == chr(p) for p in set(POINTS) - set(ideographs))
stripped = between(normalizer(strip_accents=True))
dropped = [p for p in POINTS if nfd[p] == chr(p) and stripped[p] == ""]
assert all(stripped[p] == "".join(c for c in nfd[p] if ord(c) not in set(dropped)) for p, _ in canonical)
lowered = between(normalizer(lowercase=True))
assert lowered == between(normalizers.Lowercase())
lower = [(p, ord(lowered[p])) for p in POINTS if len(lowered[p]) == 1 and lowered[p] != chr(p)]
assert [p for p in POINTS if len(lowered[p]) > 1] == [0x130] and lowered[0x130] == "i\u0307"
accents = between(normalizers.StripAccents())
pre = pre_tokenizers.BertPreTokenizer()
apart = {p: [word for word, _ in pre.pre_tokenize_str("a" + chr(p) + "b")] for p in POINTS}
punctuation = [p for p in POINTS if apart[p] == ["a", chr(p), "b"]]
assert [p for p in POINTS if apart[p] == ["a", "b"]] == WHITE
write("unicode_bert.inc", "What BERT's normalizer, Lowercase, StripAccents and Punctuation do to characters, as in "
      "tokenizers %s." % tokenizers.__version__,
      [range_table("removed", [p for p in POINTS if cleaned[p] == ""]), range_table("ideographs", ideographs),
       range_table("nonspacing", dropped), range_table("accents", [p for p in POINTS if accents[p] == ""]),
       range_table("punctuation", punctuation),
       table("shift", "small", ("{{0x%X, 0x%X}, %d, %d}" % tuple(s) for s in shifts(lower)))])
