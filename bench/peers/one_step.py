#!/usr/bin/env python3
"""Random models: one step of `weft train` against PyTorch in f64.

    one_step.py build/weft [--models 50] [--seed 1]

Loss, gradient norm and updated weights of a step of SGD, with and without
accumulation, clipping and the loss that balances experts.  The exit code is
1 where one of them is off by more than 1e-4 of its size.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import random_models
import torch
from torch.nn import functional as F
from transformers.models.mixtral import modeling_mixtral as mixtral

RATE, CONTEXT = 0.5, 16


def reference(model, tokens, rows, clip):
    """Loss and norm; the model's weights are those after the step."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    balanced = model.config.model_type == "mixtral"
    more = {"output_router_logits": True} if balanced else {}
    result = model(input_ids=ids[:-1].view(rows, CONTEXT), use_cache=False,
                   **more)
    loss = F.cross_entropy(result.logits.flatten(0, 1), ids[1:])
    if balanced:
        config = model.config
        loss = loss + config.router_aux_loss_coef * \
            mixtral.load_balancing_loss_func(
                result.router_logits, config.num_local_experts,
                config.num_experts_per_tok)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e30)
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(RATE * weight.grad)
    return loss.item(), norm.item()


def compare(weft, seed, where):
    source, model_at, run_at = random.Random(seed), f"{where}/m", f"{where}/r"
    about = random_models.save(seed, model_at)
    rows, clip = source.choice([1, 2, 4]), source.choice([0, 0.3, 100])
    # the balance of a batch is not the mean of its parts'
    parts = 1 if about["family"] == "mixtral" else \
        source.choice([n for n in (1, 2, 4) if rows % n == 0])
    tokens = np.random.default_rng(seed).integers(
        0, about["vocab"], rows * CONTEXT + 1).astype(np.int32)
    np.save(f"{where}/tokens.npy", tokens)
    about.update(rows=rows, clip=clip, parts=parts)
    run = subprocess.run(
        [weft, "train", f"model.from={model_at}", "data.format=npy",
         f"data.path={where}/tokens.npy", "data.validation=0",
         f"model.context={CONTEXT}", "train.steps=1", f"train.batch={rows}",
         f"train.accumulate={parts}", f"train.clip={clip}",
         "train.optimizer.name=sgd", f"train.optimizer.lr={RATE}",
         "train.schedule=constant", f"checkpoint.dir={run_at}", "--json"],
        capture_output=True, text=True)
    if run.returncode:
        return {**about, "error": run.stderr, "worst": float("inf")}
    step = json.loads(run.stdout.splitlines()[0])
    model = random_models.load(model_at)
    stepped = random_models.load(f"{run_at}/step-000000000001").state_dict()
    loss, norm = reference(model, tokens, rows, clip)
    off = size = 0.0
    for name, weight in model.named_parameters():
        off += (weight - stepped[name]).pow(2).sum().item()
        size += (RATE * weight.grad).pow(2).sum().item()
    about.update(
        loss=abs(step["loss"] - loss) / loss, update=(off / size) ** 0.5,
        norm=abs(step.get("gradient_norm", norm) - norm) / norm)
    about["worst"] = max(about[key] for key in ("loss", "update", "norm"))
    return about


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("weft")
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.weft = os.path.abspath(args.weft)
    torch.set_num_threads(1)
    bad, worst = 0, 0.0
    for seed in range(args.seed, args.seed + args.models):
        with tempfile.TemporaryDirectory() as where:
            result = compare(args.weft, seed, where)
        worst = max(worst, result["worst"])
        if result["worst"] > 1e-4:
            bad += 1
            print(json.dumps(result), flush=True)
    print(json.dumps({"models": args.models, "different": bad,
                      "worst": worst}))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
