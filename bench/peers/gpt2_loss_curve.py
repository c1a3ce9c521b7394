#!/usr/bin/env python3
"""Train a Hugging Face model directory on given tokens; print the losses.

    gpt2_loss_curve.py DIR --tokens tokens.npy [--lr 3e-4] ...

tokens.npy is an integer array [steps, batch, seq + 1]: of every row, the
first seq ids go in and the last seq are the targets, at every position and
for every architecture (for bert too, whose attention looks both ways; the
exercise is the arithmetic).  All arithmetic is f32, or f64 to tell rounding
from error.  The loss of step k is taken before update k.  The optimizer is
AdamW, as PyTorch defines it: w -= lr * decay * w, then the Adam update.

Prints a JSON object; its member "losses" has one number for each step.
"""

import argparse
import json

import numpy as np

import hf
import torch
from torch.nn import functional as F


def groups(model, decay, which):
    """Parameter groups: --decay matrix spares positions and vectors."""
    named = list(model.named_parameters())
    if which == "all":
        return [{"params": [w for _, w in named], "weight_decay": decay}]
    matrices = [w for name, w in named if w.dim() >= 2 and "wpe" not in name]
    others = [w for name, w in named if w.dim() < 2 or "wpe" in name]
    return [{"params": matrices, "weight_decay": decay},
            {"params": others, "weight_decay": 0.0}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--steps", type=int,
                        help="stop after so many (default: all there are)")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.95))
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--decay", choices=("all", "matrix"),
                        default="matrix",
                        help="which tensors decay (default: all matrices but wpe)")
    parser.add_argument("--clip", type=float,
                        help="bound the gradient's global norm to this")
    parser.add_argument("--precision", choices=("f32", "f64"), default="f32")
    parser.add_argument("--attention", choices=("eager", "sdpa"),
                        default="eager")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", metavar="DIR",
                        help="write the trained model there")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    tokens = np.load(args.tokens)
    if tokens.ndim != 3 or tokens.shape[2] < 2:
        parser.error(f"tokens of shape {tokens.shape}: "
                     "want [steps, batch, seq + 1]")
    tokens = torch.from_numpy(tokens.astype(np.int64))[:args.steps]
    model, unexpected = hf.load(args.directory, args.precision,
                                args.attention)
    optimizer = torch.optim.AdamW(
        groups(model, args.weight_decay, args.decay), lr=args.lr,
        betas=tuple(args.betas), eps=args.eps)
    losses, norms = [], []
    for batch in tokens:
        logits = hf.outputs(model, batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        # The norm is that before any clipping.
        limit = float("inf") if args.clip is None else args.clip
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        norms.append(norm.item())
    if args.save:
        model.save_pretrained(args.save)
    print(json.dumps({
        "architecture": type(model).__name__, "losses": losses,
        "grad_norms": norms, "lr": args.lr, "betas": list(args.betas),
        "eps": args.eps, "weight_decay": args.weight_decay,
        "decay": args.decay, "clip": args.clip, "precision": args.precision,
        "unexpected_keys": unexpected}))


if __name__ == "__main__":
    main()
