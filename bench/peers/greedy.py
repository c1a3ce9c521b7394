#!/usr/bin/env python3
"""Random models: the likeliest tokens by `weft generate` and transformers.

    greedy.py build/weft [--models 50] [--seed 1]

Every model generates until its context is full.  A difference where the two
likeliest logits differ by less than 1e-4 is rounding.  The exit code is 1
where there is another.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile

import hf
import random_models
import torch


def reference(model, prompt, count):
    """The tokens, and by how much each was likelier than the next."""
    ids, margins = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            logits = hf.outputs(model, torch.tensor([ids]))[0, -1]
            best = logits.topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            ids.append(best.indices[0].item())
    return bytes(ids), margins


def compare(weft, seed, directory):
    about = random_models.save(seed, directory,
                               ("f32", "bf16", "f16", "f64"))
    model = random_models.load(directory)
    source = random.Random(seed)
    prompt = bytes(source.randrange(33, 127)
                   for _ in range(source.randint(1, about["context"] // 2)))
    count = about["context"] - len(prompt)
    want, margins = reference(model, prompt, count)
    run = subprocess.run(
        [weft, "generate", directory, "--prompt", prompt.decode(),
         "--tokens", str(count), "--temperature", "0"], capture_output=True)
    got = run.stdout[:len(want)]
    for at, (a, b) in enumerate(zip(got, want)):
        if a != b:
            margin = margins[at - len(prompt)] if at >= len(prompt) else None
            return {**about, "token": at, "margin": margin,
                    "rounding": margin is not None and margin < 1e-4}
    if run.returncode or len(got) < len(want):
        return {**about, "error": run.stderr.decode(), "rounding": False}
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weft")
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    for seed in range(args.seed, args.seed + args.models):
        with tempfile.TemporaryDirectory() as directory:
            difference = compare(args.weft, seed, directory)
        if difference:
            bad += not difference["rounding"]
            print(json.dumps(difference), flush=True)
    print(json.dumps({"models": args.models, "different": bad}))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
