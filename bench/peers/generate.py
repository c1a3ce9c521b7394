#!/usr/bin/env python3
"""Tokens per second of `weft generate` and of transformers, in turns.

    generate.py build/weft [--rounds 7] [--tokens 96] [--prompt 128]
                [--threads 2] [--layers 12] [--hidden 768] [--heads 12]

A GPT-2 with random weights in f32, of the given size and a vocabulary of 256
bytes, is written once and read by both.  Both continue one prompt with the
likeliest tokens and a cache of keys and values.  The time is that of the
prompt and of the tokens, without loading.  Prints one JSON object: medians of
tokens per second, the ratio of each round, and how many tokens are equal (near
ties of random weights end equality early).
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
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_positions=1024, n_embd=args.hidden,
        n_layer=args.layers, n_head=args.heads, bos_token_id=None,
        eos_token_id=None))
    model.save_pretrained(directory)


def weft_round(args, directory, prompt):
    run = subprocess.run(
        [args.weft, "generate", directory, "--prompt", prompt, "--tokens",
         str(args.tokens), "--temperature", "0", "--threads",
         str(args.threads), "--json"], capture_output=True, check=True)
    said = json.loads(run.stdout)
    if said["tokens"] != args.tokens:
        raise SystemExit(f"weft made {said['tokens']} tokens")
    return said["prompt_seconds"] + said["seconds"], said["text"].encode()


def transformers_round(args, model, prompt):
    ids = torch.tensor([list(prompt.encode())])
    begin = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids),
                             do_sample=False, use_cache=True,
                             min_new_tokens=args.tokens,
                             max_new_tokens=args.tokens, pad_token_id=0)
    return time.perf_counter() - begin, bytes(out[0, ids.shape[1]:].tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weft")
    for name, value in (("rounds", 7), ("tokens", 96), ("prompt", 128),
                        ("threads", 2), ("layers", 12), ("hidden", 768),
                        ("heads", 12), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = random.Random(args.seed)
    prompt = "".join(chr(source.randrange(97, 123))
                     for _ in range(args.prompt))
    weft, peer, equal = [], [], 0
    with tempfile.TemporaryDirectory() as directory:
        write(args, directory)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True).eval()
        transformers_round(args, model, prompt)  # warm-up
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
        "equal_bytes": equal, "torch": torch.__version__,
        "transformers_version": transformers.__version__}))


if __name__ == "__main__":
    main()
