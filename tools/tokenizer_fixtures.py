#!/usr/bin/env python3
"""Trains the small tokenizers of tests/data with Hugging Face tokenizers and records what they encode and
decode, as the expectation of tests/tokenizer/test_tokenizer.c.

Usage: tools/tokenizer_fixtures.py TEXT DIRECTORY      (made with tokenizers 0.23.3 from tinyshakespeare.txt)
"""
import base64
import json
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

source, out = sys.argv[1], sys.argv[2]
text = open(source, encoding="utf-8").read()
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(tokenizer, lines, size, specials=(), alphabet=()):
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials),
                                                             initial_alphabet=list(alphabet), show_progress=False))


def save(name, content):
    with open("%s/%s" % (out, name), "w", encoding="utf-8") as file:
        file.write(json.dumps(content, ensure_ascii=False) + "\n")


# GPT-2, as old files are: no model type, merges as strings
gpt2 = Tokenizer(models.BPE())
gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
gpt2.decoder = decoders.ByteLevel()
gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
train(gpt2, text.splitlines(keepends=True), 1000, ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet())
content = json.loads(gpt2.to_str())
content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
del content["model"]["type"]
save("tokenizer_gpt2.json", content)

# Llama 3: merges as pairs, Split, added tokens, template
llama3 = Tokenizer(models.BPE(ignore_merges=True))
llama3.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
llama3.decoder = decoders.ByteLevel()
train(llama3, text.splitlines(keepends=True), 700, (), pre_tokenizers.ByteLevel.alphabet())
llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|end|>"])
llama3.add_tokens([AddedToken("<|end|>!", normalized=True), AddedToken("Capulet", normalized=True)])
begin = llama3.token_to_id("<|begin_of_text|>")
llama3.post_processor = processors.Sequence([
    processors.ByteLevel(trim_offsets=True),
    processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                  pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                  special_tokens=[("<|begin_of_text|>", begin)])])
save("tokenizer_llama3.json", json.loads(llama3.to_str()))

# Llama 2: characters with byte fallback
llama2 = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
llama2.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
llama2.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
train(llama2, text[:300000].split("\n"), 900, ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)])
llama2.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                    decoders.Strip(" ", 1, 0)])
llama2.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                      special_tokens=[("<s>", 1)])
content = json.loads(llama2.to_str())
content["pre_tokenizer"] = None
content["added_tokens"] = [dict(token, normalized=False) for token in content["added_tokens"]
                           if not token["content"].startswith("<0x")]
save("tokenizer_llama2.json", content)

# BERT: word pieces
bert = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
bert.normalizer = normalizers.BertNormalizer()
bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
bert.decoder = decoders.WordPiece()
specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
bert.train_from_iterator(text[:300000].split("\n") + ["caf\u00e9 na\u00efve \u4e2d \u1112\u1161\u11ab \u1112 \u0436"] * 9,
                         trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials, show_progress=False))
bert.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                    special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
save("tokenizer_bert.json", json.loads(bert.to_str()))
BERT = '"clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true'

# variants of these files, by replacing a part of their text
NORMALIZER = json.dumps(content["normalizer"], ensure_ascii=False)
VARIANTS = [
    ("gpt2", "tokenizer_gpt2.json", []),
    ("gpt2 with a space in front", "tokenizer_gpt2.json",
     [['"ByteLevel", "add_prefix_space": false', '"ByteLevel", "add_prefix_space": true']]),
    ("llama3", "tokenizer_llama3.json", []),
    ("qwen2", "tokenizer_llama3.json", [["\\\\p{N}{1,3}", "\\\\p{N}"]]),
    ("llama2", "tokenizer_llama2.json", []),
    ("metaspace", "tokenizer_llama2.json",
     [['"normalizer": ' + NORMALIZER, '"normalizer": null'],
      ['"pre_tokenizer": null', '"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", '
       '"prepend_scheme": "first", "split": false}']]),
    ("bert", "tokenizer_bert.json", []),
    ("bert, cased", "tokenizer_bert.json",
     [[BERT, '"clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": false'],
      ['"cleanup": true', '"cleanup": false']]),
    ("bert, small with accents", "tokenizer_bert.json",
     [[BERT, '"clean_text": false, "handle_chinese_chars": false, "strip_accents": false, "lowercase": true']]),
    ("bert, accents alone", "tokenizer_bert.json",
     [[BERT, '"clean_text": true, "handle_chinese_chars": false, "strip_accents": true, "lowercase": false'],
      ['"prefix": "##"', '"prefix": "-"']]),
]
TEXTS = [
    "", " ", "   ", "\n", "a", "The quick brown fox jumps over the lazy dog.", text[:1500],
    "I'm you'LL we'Ve they'd 'tis O'Re 's'S'\u017f x'\u017fa", "  a  b\t\n\n c \r\n\r\n  d  ",
    "1 12 123 1234 12345678 \u00bd\u00b2\u0663", "x" * 100, "thethethe" * 20, " " * 70 + "a",
    "\u65e5\u672c\u8a9e \ud14d\uc2a4\ud2b8 \u00e9migr\u00e9 \u00c0\u00c9 \u0436\u0416 \U0001F600!", "e\u0301 \u200b \ufeff \ufffd",
    "<|endoftext|>a<|endoftext|> b", "<|begin_of_text|><|end|>!<|end|>Capulets <s>x</s> <unk>",
    "\u2581a \u2581 b\u2581", " leading", "a\u00a0b\u2003c\u3000 d\u0085e\x1cf", "#include <stdio.h>\n\tint x_1 = 0x1F;\n",
    "[CLS]Unaffable cAF\u00c9 na\u00cfve\u0301 \u4e2d\u6587 \ud55c \u0130stanbul [SEP]", "don't you're I'm ' x ' do not. Stop! \u00bfQu\u00e9?",
    "a\u0001b\u0007c\u00add \u200de\ufffd\u0085f \U00013430 \u1e9e\u01c4", "abcdefghijklmnopqrst abcdefghijklmnopqrstu \ufa1e\U0002f800",
    "thethethethethethethe thethethethethethe \u0958\u0344\u1d15e\u0b4b", "##ing ing##the a#b##",
]
variants = []
for name, file, replaced in VARIANTS:
    content = open("%s/%s" % (out, file), encoding="utf-8").read()
    for old, new in replaced:
        assert old in content, (name, old)
        content = content.replace(old, new)
    tokenizer = Tokenizer.from_str(content)
    cases = []
    for each in TEXTS:
        ids = tokenizer.encode(each, add_special_tokens=False).ids
        cases.append({"text": each, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    variants.append({"name": name, "file": file, "replace": replaced, "cases": cases})
save("tokenizer_cases.json", variants)


# ---- pipelines by the structure of published families, over a few small models ----
# pipelines.json: parts of each tokenizer.json, and digests of what 200 texts encode and decode to.
MULTI = ("caf\u00e9 na\u00efve \u00dcber stra\u00dfe \u0130stanbul \u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e \u3072\u3089\u304c\u306a \u30ab\u30bf\u30ab\u30ca "
         "\ud55c\uad6d\uc5b4 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea "
         "12 345 6789 \U0001F600 don't I'LL we've x_1 = f(y); // \u2026\u3002")
lines = text[:200000].splitlines(keepends=True) + [MULTI + "\n"] * 40
BYTES = ["<0x%02X>" % i for i in range(256)]
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = dict(BYTE_LEVEL, use_regex=False)


def model_of(tokenizer, trainer, given=None):
    tokenizer.train_from_iterator(given or lines, trainer)
    return json.loads(tokenizer.to_str())["model"]


def trained():
    out = {}
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out["bytes"] = model_of(t, trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                   special_tokens=["<unk>"], show_progress=False))
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out["clip"] = model_of(t, trainers.BpeTrainer(vocab_size=700, end_of_word_suffix="</w>", show_progress=False,
                                                  special_tokens=["<unk>"] + [c + "</w>" for c in sorted(pre_tokenizers.ByteLevel.alphabet())],
                                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    out["pieces"] = model_of(t, trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, show_progress=False))
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out["gpt"] = model_of(t, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>",
                                                 show_progress=False, limit_alphabet=120))
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out["continued"] = model_of(t, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"],
                                                       continuing_subword_prefix="##", show_progress=False, limit_alphabet=90))
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    out["unigram"] = model_of(t, trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
                                                         show_progress=False))
    out["unigram"]["vocab"] = [[name, round(score, 4)] for name, score in out["unigram"]["vocab"]]
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out["word pieces"] = model_of(t, trainers.WordPieceTrainer(vocab_size=500, show_progress=False, limit_alphabet=200,
                                                               special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    out["words"] = model_of(t, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
    with_bytes = dict(out["unigram"], byte_fallback=True)
    with_bytes["vocab"] = out["unigram"]["vocab"] + [[b, 0.0] for b in BYTES]
    out["unigram bytes"] = with_bytes
    return out


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


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def steps(name, *parts):
    keys = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    return {"type": "Sequence", keys[name]: list(parts)}


def replace_by(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def token(content, **flags):
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return dict(plain, content=content, **flags)


def kind(name, **options):
    return dict(options, type=name)


QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]"
HEAD = r"[^\r\n\p{L}\p{N}]?"


def o200k(contractions, digits, tail, less=""):
    upper, lower = UPPER % less, LOWER % less
    return (HEAD + upper + "*" + lower + "+" + contractions + "|" + HEAD + upper + "+" + lower + "*" + contractions + "|" + digits
            + r"| ?[^\s\p{L}\p{N}]+[\r\n" + tail + r"]*|\s*[\r\n]+|\s+(?!\S)|\s+")


CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
             "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
LLAMA_NORMAL = steps("normalizer", kind("Prepend", prepend="\u2581"), replace_by(" ", "\u2581"))
LLAMA_DECODER = steps("decoder", replace_by("\u2581", " "), kind("ByteFallback"), kind("Fuse"),
                      kind("Strip", content=" ", start=1, stop=0))
GEMMA_DECODER = steps("decoder", replace_by("\u2581", " "), kind("ByteFallback"), kind("Fuse"))
BERT = kind("BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
WORDS, PIECES = kind("WordPiece", prefix="##", cleanup=True), dict(METASPACE)
SPECIAL = [token("<unk>"), token("<s>"), token("</s>")]
CHAT = [token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>"), token("<tool_call>", special=False)]
MASKS = [token("<s>", normalized=True), token("<mask>", lstrip=True)]
BERTS = [token(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]


def byte_level(name, pre, added=CHAT, normalizer=None, **model):
    return dict(name=name, model="bytes", options=model, normalizer=normalizer, pre_tokenizer=pre, decoder=kind("ByteLevel", **{
        k: v for k, v in BYTE_LEVEL.items() if k != "type"}), added_tokens=added)


def pipeline(name, model, normalizer, pre, decoder, added=SPECIAL, **options):
    return dict(name=name, model=model, options=options, normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, added_tokens=added)


def in_bytes(*parts):
    return steps("pre_tokenizer", *parts, BYTES_ONLY)


NFC = kind("NFC")
RULES = kind("Precompiled", precompiled_charsmap=base64.b64encode(charsmap([
    ("e\u0301", "\xe9"), ("a\u0301", "\xe1"), ("\r\n", " "), ("\n", " "), ("\t", " "), ("\ufb01", "fi"), ("\ufb03", "ffi"), ("\u3000", " "),
    ("\xa0", " "), ("\u200b", " "), ("\ufeff", ""), ("\x01", ""), ("\u1112\u1161", "\ud558"), ("\u1112", "h"), ("\u1161", "a"), ("\xaa", "a"), ("\xb5", "\u03bc"),
    ("\xbd", "1\u20442"), ("\uff11", "1"), ("\u2167", "VIII"), ("\u212b", "\xc5"), ("\u0301", "\u0300"), ("#", "number "), ("\xdf", "ss"), ("\ufdfa", "sallallahou"),
    ("\u0627", "\u0623"), ("\U0001F600", ":)"), ("\u0600", "x"), ("\xa9", "(c)")])).decode())
PIPELINES = [
    byte_level("GPT-2", BYTE_LEVEL),
    byte_level("RoBERTa", dict(BYTE_LEVEL, add_prefix_space=True), MASKS),
    byte_level("Llama 3", in_bytes(split(LLAMA3)), ignore_merges=True),
    byte_level("Qwen 2", in_bytes(split(QWEN2)), normalizer=NFC),
    byte_level("Qwen 2.5", in_bytes(split(QWEN2)), CHAT + [token("<think>", special=False, normalized=True)], NFC),
    byte_level("o200k", in_bytes(split(o200k(CONTRACTIONS, r"\p{N}{1,3}", "/")))),
    byte_level("cl100k, possessive", in_bytes(split(CL100K, "Removed", True))),
    byte_level("Mistral Nemo", in_bytes(split(o200k("", r"\p{N}", "/"))), ignore_merges=True),
    byte_level("Kimi", in_bytes(split(r"[\p{Han}]+|" + o200k(CONTRACTIONS, r"\p{N}{1,3}", "", r"&&[^\p{Han}]")))),
    byte_level("StarCoder", steps("pre_tokenizer", kind("Digits", individual_digits=True), BYTE_LEVEL)),
    byte_level("SmolLM", steps("pre_tokenizer", kind("Digits", individual_digits=True), dict(BYTE_LEVEL, add_prefix_space=True))),
    byte_level("Falcon", steps("pre_tokenizer", kind("Punctuation", behavior="Contiguous"), BYTE_LEVEL,
                               kind("Digits", individual_digits=False), split("[0-9][0-9][0-9]"))),
    byte_level("BLOOM", in_bytes(split(" ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"))),
    byte_level("GPT-NeoX", BYTE_LEVEL, CHAT + [token(" " * n, special=False, normalized=True) for n in range(2, 9)], NFC),
    byte_level("Phi", BYTE_LEVEL, CHAT + [token("\t" * n, special=False, normalized=False) for n in range(2, 5)]),
    byte_level("OLMo 2", in_bytes(split(LLAMA3), kind("Digits", individual_digits=False))),
    byte_level("DeepSeek Coder", steps("pre_tokenizer", split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"),
                                       split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                                       kind("Digits", individual_digits=True), BYTES_ONLY)),
    byte_level("DeepSeek 3", in_bytes(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3))),
    byte_level("ModernBERT", BYTE_LEVEL, [token("[MASK]", lstrip=True), token("[CLS]"), token("word", single_word=True, special=False)], NFC),
    byte_level("bytes by the normalizer", split(" ", "MergedWithNext", kind="String"), [token("<|endoftext|>")], kind("ByteLevel")),
    byte_level("lines", in_bytes(split(r"[^\n]+|[\n]+"), split(r"(?<=[a-z])\d+|\b[A-Z]\w*$", "MergedWithPrevious")), normalizer=kind("NFKC")),
    pipeline("CLIP", "clip", steps("normalizer", NFC, replace_by(r"\s+", " ", "Regex"), kind("Lowercase")),
             in_bytes(split(CLIP, "Removed", True)), kind("ByteLevel", **{k: v for k, v in BYTE_LEVEL.items() if k != "type"}),
             [token("<|startoftext|>", normalized=True), token("<|endoftext|>")], unk_token="<unk>"),
    pipeline("Llama 2", "pieces", LLAMA_NORMAL, None, LLAMA_DECODER),
    pipeline("Mistral", "pieces", LLAMA_NORMAL, None, LLAMA_DECODER, SPECIAL + [token("[INST]"), token("[/INST]")]),
    pipeline("Phi 3", "pieces", LLAMA_NORMAL, None, LLAMA_DECODER, SPECIAL + [token("<|end|>", rstrip=True), token("<|user|>", rstrip=True, lstrip=True)]),
    pipeline("Code Llama", "pieces", None, dict(METASPACE, prepend_scheme="first", split=False), LLAMA_DECODER,
             SPECIAL + [token("<PRE>", normalized=True)]),
    pipeline("Gemma", "pieces", replace_by(" ", "\u2581"), split(" ", "MergedWithPrevious", kind="String"), GEMMA_DECODER,
             SPECIAL + [token("\n" * n, special=False) for n in range(2, 6)]),
    pipeline("Yi", "pieces", replace_by(" ", "\u2581"), None, GEMMA_DECODER, SPECIAL + [token("<fim>", normalized=True, special=False)]),
    pipeline("characters without bytes", "pieces", LLAMA_NORMAL, None, LLAMA_DECODER, byte_fallback=False),
    pipeline("T5", "unigram", kind("NFKC"), METASPACE, PIECES, SPECIAL + [token("<extra_id_%d>" % i, rstrip=True) for i in range(3)]),
    pipeline("XLM-R", "unigram", steps("normalizer", replace_by(" {2,}", " ", "Regex"), NFC),
             steps("pre_tokenizer", kind("WhitespaceSplit"), METASPACE), PIECES, SPECIAL + [token("<mask>", lstrip=True)]),
    pipeline("ALBERT", "unigram", steps("normalizer", replace_by("``", '"'), replace_by("''", '"'), kind("NFKD"), kind("StripAccents"),
                                        kind("Lowercase")), METASPACE, PIECES, SPECIAL + [token("[CLS]"), token("[SEP]", normalized=True)]),
    pipeline("Pegasus", "unigram", steps("normalizer", kind("Nmt"), kind("NFKC"), replace_by(" {2,}", " ", "Regex")), METASPACE, PIECES),
    pipeline("XLM-R, sentencepiece's rules", "unigram", steps("normalizer", RULES, replace_by(" {2,}", " ", "Regex")), METASPACE, PIECES),
    pipeline("T5, sentencepiece's rules", "unigram", RULES, dict(METASPACE, prepend_scheme="first"), PIECES),
    pipeline("mT5", "unigram bytes", kind("Strip", strip_left=False, strip_right=True), dict(METASPACE, prepend_scheme="first"),
             GEMMA_DECODER),
    pipeline("DeBERTa 3", "unigram", steps("normalizer", kind("Strip", strip_left=True, strip_right=True), kind("NFD")),
             steps("pre_tokenizer", kind("Punctuation", behavior="Isolated"), dict(METASPACE, prepend_scheme="never"),
                   kind("Digits", individual_digits=True)), PIECES),
    pipeline("BERT uncased", "word pieces", BERT, kind("BertPreTokenizer"), WORDS, BERTS),
    pipeline("BERT cased", "word pieces", dict(BERT, lowercase=False), kind("BertPreTokenizer"), WORDS, BERTS),
    pipeline("DistilBERT multilingual", "word pieces", dict(BERT, lowercase=False, strip_accents=True, handle_chinese_chars=False),
             kind("BertPreTokenizer"), dict(WORDS, cleanup=False), BERTS),
    pipeline("ELECTRA", "word pieces", dict(BERT, clean_text=False, strip_accents=False), kind("BertPreTokenizer"), WORDS,
             BERTS + [token("King", single_word=True, special=False, normalized=True)], max_input_chars_per_word=12),
    pipeline("word pieces at white space", "word pieces", steps("normalizer", kind("NFD"), kind("StripAccents")), kind("Whitespace"), WORDS, BERTS),
    pipeline("OpenAI GPT", "gpt", BERT, kind("BertPreTokenizer"), kind("BPEDecoder", suffix="</w>"), [token("<unk>")]),
    pipeline("continued pieces", "continued", None, kind("BertPreTokenizer"), WORDS, [token("<unk>")]),
    pipeline("words", "words", None, kind("Whitespace"), None, [token("[UNK]")]),
    pipeline("small words", "words", kind("Lowercase"), steps("pre_tokenizer", kind("WhitespaceSplit"),
             kind("Punctuation", behavior="MergedWithPrevious")), None, [token("[UNK]")]),
    pipeline("words between commas", "words", None, kind("CharDelimiterSplit", delimiter=","), None, [token("[UNK]")]),
]


def nasty_texts():
    """200 texts of everything that tokenizers have got wrong; the same in each run."""
    import random
    rnd = random.Random(20240611)
    words = text[:4000].split(" ")
    special = ["<|endoftext|>", "<s>", "</s>", "<mask>", "[MASK]", "[CLS]", "<|end|>", "<tool_call>", "<think>", "[INST]", "<0x41>", "<unk>",
               "<extra_id_1>", "<PRE>", "<fim>", "word", "King", "##ing", "</w>", "<|im_start|>", "<|user|>", "\u2581", "\u2581\u2581a"]
    marks = ["\u0301", "\u0300", "\u0327", "\u0338", "\u0345", "\u05b0", "\u3099", "\U0001d165", "\u0344", "\u0f73", "\u0f71", "\u1ab0", "\u0334"]
    odd = ["\x00", "\x01", "\x1c", "\x7f", "\x85", "\xa0", "\xad", "\u1680", "\u2003", "\u200b", "\u200c", "\u200d", "\u2028", "\u202f", "\u2060",
           "\u3000", "\ufeff", "\ufffd", "\ufdd0", "\U000e0041", "\U0010ffff", "\ue000", "\u0378", "\u180e"]
    scripts = ["\u4e2d", "\u6587", "\u65e5\u672c", "\u3072", "\u30ab", "\uff76\uff9e", "\ud55c\uad6d", "\u1112\u1161\u11ab", "\u1112", "\u0436", "\u0416", "\u03c2",
               "\u03a3", "\u0130", "\u0131", "\u01c4", "\u01c5", "\u1e9e", "\xdf", "\ufb01", "\ufb03", "\u212b", "\u2126", "\xb5", "\xaa", "\u0627", "\u0644\u0644",
               "\ufdfa", "\u05e9\u05c1", "\u0e01\u0e33", "\u0915\u094d\u0937", "\u0958", "\u0b94", "\u0b92\u0bd7", "\uf900", "\U0002f800", "\U00013430", "\ua9c0"]
    digits = ["1", "12", "123", "1234567", "\xbd", "\xb2", "\u0663", "\u2167", "\U00011de0", "\uff11", "\u3289", "0x1F", "3.14"]
    faces = ["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "#\ufe0f\u20e3"]
    space = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n ", "\t\t\t", "    ", "\r", "\x0b", "\x0c"]
    short = ["'s", "'LL", "'re", "'\u017f", "don't", "I'm", "`", "``", "''", "_", "-", "--", "...", "\u2026", "\u3002", "(", ")", "[", "]", "{}", "//", "\\", ",", "!", "?!",
             "\xbf", "\xab", "@", "#", "$", "%", "&", "~", "\u2014", "\xd7", "\u20ac"]
    out = ["", " ", "   ", "\n", "\r\n\r\n", "a", "\x00", "\u0301", "e\u0301", "\u0301e", "word", " word ", "sword words word", "<s>", " <mask> a <mask>b",
           "\u212b\u0301\u0327", "\u1112\u1161\u11ab\u1112\u1161", "\u0f71\u0f72\u0f74\u0f73", "\u2581", " \u2581 a", "King Kings king King,", text[:600], MULTI]
    while len(out) < 190:
        pools = [words, words, special, marks, odd, scripts, digits, faces, space, space, short]
        if rnd.random() < 0.3:
            pools = rnd.sample(pools, 3) + [space]
        one = ""
        for _ in range(rnd.choice([2, 5, 12, 30])):
            one += rnd.choice(rnd.choice(pools)) if rnd.random() < 0.93 else chr(rnd.choice(
                [rnd.randrange(0x80, 0x800), rnd.randrange(0x800, 0xd800), rnd.randrange(0xe000, 0x10000), rnd.randrange(0x10000, 0x1fb00)]))
            if rnd.random() < 0.45:
                one += rnd.choice(space[:3])
        out.append(one)
    out += [rnd.choice(p) * n for p, n in ((["ab"], 700), ([" "], 900), (["\u0301"], 500), (["\u4e2d"], 300), (["1"], 400), (["a \n"], 300), (["'s"], 200),
                                           (["\U0001F600"], 150), (["<s>"], 60), (["\u0301\u0327"], 200))]
    return out


def digest(data):
    """FNV-1a of 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return "%08x" % value


bases, nasty = trained(), nasty_texts()
with open(out + "/tokenizers/texts", "wb") as file: # each: its bytes, a newline, the text, a newline
    for each in nasty:
        file.write(b"%d\n%s\n" % (len(each.encode()), each.encode()))
for name, model in bases.items():
    save("tokenizers/%s.json" % name.replace(" ", "_"), model)
results = []
for each in PIPELINES:
    vocab = bases[each["model"]]["vocab"]
    numbers = vocab if isinstance(vocab, dict) else {entry[0]: i for i, entry in enumerate(vocab)}
    free = max(numbers.values())
    for added in each["added_tokens"] :
        if added["content"] not in numbers:
            free += 1
        added["id"] = numbers.get(added["content"], free)
    parts = {k: each[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "decoder")}
    parts["added_tokens"] = [dict(a) for a in each["added_tokens"]]
    tokenizer = Tokenizer.from_str(json.dumps(dict(parts, version="1.0", truncation=None, padding=None, post_processor=None,
                                                   model=dict(bases[each["model"]], **each["options"]))))
    digests = []
    for one in nasty:
        ids = tokenizer.encode(one, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False) if ids else ""
        digests.append(digest(b"".join(i.to_bytes(4, "little") for i in ids)) + digest(decoded.encode()))
    replaced, plain = [], json.dumps(bases[each["model"]], ensure_ascii=False)
    for key, value in each["options"].items():
        pair = ["%s: %s" % (json.dumps(key), json.dumps(v)) for v in (bases[each["model"]][key], value)]
        assert plain.count(pair[0]) == 1, pair
        replaced.append(pair)
    results.append(dict(name=each["name"], model=each["model"].replace(" ", "_") + ".json", replace=replaced,
                        parts=json.dumps(parts, ensure_ascii=False)[1:-1], digests=digests))
with open(out + "/tokenizers/pipelines.json", "w", encoding="utf-8") as file:
    file.write("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in results) + "\n]\n")
