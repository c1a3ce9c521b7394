#!/usr/bin/env python3
"""Tokens per second of `weft generate` and of transformers, in turns.

    generate.py build/weft [--rounds 7] [--tokens 96] [--prompt 128]
                [--threads 2] [--layers 12] [--hidden 768] [--heads 12]
                [--family gpt2|llama] [--precision f32|bf16] [--compile]

A GPT-2 or a llama (with a quarter of the heads for keys, at least one) with
random weights, of the given size and a vocabulary of 256 bytes, is written once
and read by both.  Both continue one prompt with the
likeliest tokens and a cache of keys and values.  The time is that of the
prompt and of the tokens, without loading.  Prints one JSON object: medians of
tokens per second, the ratio of each round, and how many tokens are equal (near
ties of random weights end equality early).  With --compile, transformers runs
its model through torch.compile with a static cache; what is compiled before
the first round does not count.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time

import hf  # noqa: F401  (offline, before transformers)
import torch
import transformers


def write(args, directory):
    torch.manual_seed(args.seed)
    room = args.prompt + args.tokens + 1
    if args.family == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=256, n_positions=max(room, 1024), n_embd=args.hidden,
            n_layer=args.layers, n_head=args.heads, bos_token_id=None,
            eos_token_id=None))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=256, max_position_embeddings=max(room, 1024),
            hidden_size=args.hidden, intermediate_size=args.hidden * 11 // 4,
            num_hidden_layers=args.layers, num_attention_heads=args.heads,
            num_key_value_heads=max(args.heads // 4, 1), bos_token_id=None,
            eos_token_id=None))
    model.save_pretrained(directory)


def weft_round(args, directory, prompt):
    run = subprocess.run(
        [args.weft, "generate", directory, "--prompt", prompt, "--tokens",
         str(args.tokens), "--temperature", "0", "--threads",
         str(args.threads), "--precision", args.precision, "--json"], capture_output=True, check=True)
    said = json.loads(run.stdout)
    if said["tokens"] != args.tokens:
        raise SystemExit(f"weft made {said['tokens']} tokens")
    return said["prompt_seconds"] + said["seconds"], said["text"].encode()


def transformers_round(args, model, prompt):
    ids = torch.tensor([list(prompt.encode())])
    begin = time.perf_counter()
    static = {"cache_implementation": "static"} if args.compile else {}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids),
                             do_sample=False, use_cache=True,
                             min_new_tokens=args.tokens,
                             max_new_tokens=args.tokens, pad_token_id=0,
                             **static)
    return time.perf_counter() - begin, bytes(out[0, ids.shape[1]:].tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weft")
    for name, value in (("rounds", 7), ("tokens", 96), ("prompt", 128),
                        ("threads", 2), ("layers", 12), ("hidden", 768),
                        ("heads", 12), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = random.Random(args.seed)
    prompt = "".join(chr(source.randrange(97, 123))
                     for _ in range(args.prompt))
    weft, peer, equal = [], [], 0
    with tempfile.TemporaryDirectory() as directory:
        write(args, directory)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32
            if args.precision == "f32" else torch.bfloat16).eval()
        if args.compile:
            model.forward = torch.compile(model.forward)
        for _ in range(3 if args.compile else 1):  # warm-up
            transformers_round(args, model, prompt)
        for _ in range(args.rounds):
            seconds, text = weft_round(args, directory, prompt)
            weft.append(args.tokens / seconds)
            seconds, tokens = transformers_round(args, model, prompt)
            peer.append(args.tokens / seconds)
            shown = tokens.decode(errors="replace").encode()
            equal = next((i for i, (a, b) in enumerate(zip(text, shown))
                          if a != b), min(len(text), len(shown)))
    print(json.dumps({
        "weft": round(statistics.median(weft), 2),
        "transformers": round(statistics.median(peer), 2),
        "ratios": [round(a / b, 3) for a, b in zip(weft, peer)],
        "ratio": round(statistics.median(
            a / b for a, b in zip(weft, peer)), 3),
        "model": f"{args.family} {args.layers} x {args.hidden}",
        "precision": args.precision, "compiled": args.compile,
        "equal_bytes": equal, "torch": torch.__version__,
        "transformers_version": transformers.__version__}))


if __name__ == "__main__":
    main()
