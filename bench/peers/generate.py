#!/usr/bin/env python3
"""Tokens per second of `weft generate` and of transformers, in turns.

    generate.py build/weft [--rounds 7] [--tokens 96] [--prompt 128]
                [--threads 2] [--layers 12] [--hidden 768] [--heads 12]
                [--family gpt2|llama] [--precision f32|bf16]
                [--vocabulary 256] [--compile] [--freeze] [--rates]

A GPT-2 or a llama (with a quarter of the heads for keys, at least one) with
random weights, of the given size, is written once and read by both.  A
vocabulary of 256 means bytes; a larger one (GPT-2 has 50257) adds tokens that
no text is split into, and so the work of a full output layer.  Both continue one prompt with the
likeliest tokens and a cache of keys and values.  The time is that of the
prompt and of the tokens, without loading.  Prints one JSON object: medians of
tokens per second, the ratio of each round, and how many tokens are equal (near
ties of random weights end equality early).  With --compile, transformers runs
its model through torch.compile with a static cache; what is compiled before
the first round does not count.  With --freeze the compiler may treat weights
as constants and lay them out anew, in f32 for oneMKL's packed products.
--rates adds the rate in GB/s at which PyTorch sums the weights of a layer, and
that at which it multiplies them with one row: the bound of its tokens.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time

import hf  # noqa: F401  (offline, before transformers)
import tokenizers
import torch
import transformers


def write(args, directory):
    torch.manual_seed(args.seed)
    room = args.prompt + args.tokens + 1
    if args.family == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=args.vocabulary, n_positions=max(room, 1024), n_embd=args.hidden,
            n_layer=args.layers, n_head=args.heads, bos_token_id=None,
            eos_token_id=None))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=args.vocabulary, max_position_embeddings=max(room, 1024),
            hidden_size=args.hidden, intermediate_size=args.hidden * 11 // 4,
            num_hidden_layers=args.layers, num_attention_heads=args.heads,
            num_key_value_heads=max(args.heads // 4, 1), bos_token_id=None,
            eos_token_id=None))
    model.save_pretrained(directory)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {c: i for i, c in enumerate(alphabet)}
    words.update((f"<{i}>", i) for i in range(256, args.vocabulary))
    made = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(directory + "/tokenizer.json")
    return made


def weft_round(args, directory, prompt):
    run = subprocess.run(
        [args.weft, "generate", directory, "--prompt", prompt, "--tokens",
         str(args.tokens), "--temperature", "0", "--threads",
         str(args.threads), "--precision", args.precision, "--json"], capture_output=True, check=True)
    said = json.loads(run.stdout)
    if said["tokens"] != args.tokens:
        raise SystemExit(f"weft made {said['tokens']} tokens")
    return said["prompt_seconds"] + said["seconds"], said["text"].encode()


def transformers_round(args, model, made, prompt):
    ids = torch.tensor([made.encode(prompt).ids])
    begin = time.perf_counter()
    static = {"cache_implementation": "static"} if args.compile else {}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids),
                             do_sample=False, use_cache=True,
                             min_new_tokens=args.tokens,
                             max_new_tokens=args.tokens, pad_token_id=0,
                             **static)
    seconds = time.perf_counter() - begin
    return seconds, made.decode(out[0, ids.shape[1]:].tolist()).encode()


def rates(args):
    dtype = torch.float32 if args.precision == "f32" else torch.bfloat16
    shape = (4 * args.hidden, args.hidden)
    copies = max(1, 1_000_000_000 // (shape[0] * shape[1] * dtype.itemsize))
    weights = [torch.ones(shape, dtype=dtype) for _ in range(copies)]
    row = torch.ones(1, args.hidden, dtype=dtype)
    size = copies * weights[0].nbytes

    def rate(work):
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            for weight in weights:
                work(weight)
            times.append(time.perf_counter() - begin)
        return round(size / statistics.median(times) / 1e9, 1)

    # Words of 32 bits: a sum of bf16 converts, and measures that.
    return {"read_gb_s": rate(lambda w: w.view(torch.int32).max()),
            "products_gb_s": rate(
                lambda w: torch.nn.functional.linear(row, w))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weft")
    for name, value in (("rounds", 7), ("tokens", 96), ("prompt", 128),
                        ("threads", 2), ("layers", 12), ("hidden", 768),
                        ("heads", 12), ("seed", 1), ("vocabulary", 256)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--rates", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = random.Random(args.seed)
    prompt = "".join(chr(source.randrange(97, 123))
                     for _ in range(args.prompt))
    weft, peer, equal = [], [], 0
    with tempfile.TemporaryDirectory() as directory:
        made = write(args, directory)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32
            if args.precision == "f32" else torch.bfloat16).eval()
        torch._inductor.config.freezing = args.freeze
        if args.compile:
            model.forward = torch.compile(model.forward)
        for _ in range(3 if args.compile else 1):  # warm-up
            transformers_round(args, model, made, prompt)
        for _ in range(args.rounds):
            seconds, text = weft_round(args, directory, prompt)
            weft.append(args.tokens / seconds)
            seconds, shown = transformers_round(args, model, made, prompt)
            peer.append(args.tokens / seconds)
            equal = next((i for i, (a, b) in enumerate(zip(text, shown))
                          if a != b), min(len(text), len(shown)))
    print(json.dumps({
        "weft": round(statistics.median(weft), 2),
        "transformers": round(statistics.median(peer), 2),
        "ratios": [round(a / b, 3) for a, b in zip(weft, peer)],
        "ratio": round(statistics.median(
            a / b for a, b in zip(weft, peer)), 3),
        "model": f"{args.family} {args.layers} x {args.hidden}",
        "vocabulary": args.vocabulary, "precision": args.precision,
        "compiled": args.compile, "frozen": args.freeze,
        "equal_bytes": equal, "torch": torch.__version__,
        "transformers_version": transformers.__version__,
        **(rates(args) if args.rates else {})}))


if __name__ == "__main__":
    main()
