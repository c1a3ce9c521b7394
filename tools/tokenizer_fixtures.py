#!/usr/bin/env python3
"""Trains the small tokenizers of tests/data with Hugging Face tokenizers and records what they encode and
decode, as the expectation of tests/tokenizer/test_tokenizer.c.

Usage: tools/tokenizer_fixtures.py TEXT DIRECTORY      (made with tokenizers 0.23.3 from tinyshakespeare.txt)
"""
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
