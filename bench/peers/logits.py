#!/usr/bin/env python3
"""Write the logits of a Hugging Face model directory to an .npy file.

    logits.py DIR --ids 1,2,3 --out logits.npy
    logits.py DIR --ids-file ids.npy --out logits.npy

--ids gives one sequence; --ids-file an integer array [seq] or [batch, seq].
The output is f32 (f64 under --precision f64), [batch, seq, vocab].  A model
without a head gives its last hidden state instead.  Prints a JSON summary.
"""

import argparse
import json

import numpy as np

import hf
import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--ids", help="token ids, separated by commas")
    source.add_argument("--ids-file")
    parser.add_argument("--out", required=True)
    parser.add_argument("--precision", choices=("f32", "f64"), default="f32")
    parser.add_argument("--attention", choices=("eager", "sdpa"),
                        default="eager")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    if args.ids:
        ids = np.array([int(word) for word in args.ids.split(",")])
    else:
        ids = np.load(args.ids_file)
    ids = torch.from_numpy(np.atleast_2d(ids).astype(np.int64))
    model, unexpected = hf.load(args.directory, args.precision,
                                args.attention)
    with torch.no_grad():
        logits = hf.outputs(model, ids).numpy()
    with open(args.out, "wb") as file:
        np.save(file, logits)
    print(json.dumps({
        "architecture": type(model).__name__, "shape": list(logits.shape),
        "dtype": str(logits.dtype), "min": float(logits.min()),
        "max": float(logits.max()), "argmax_last":
            [int(row[-1].argmax()) for row in logits],
        "unexpected_keys": unexpected, "out": args.out}))


if __name__ == "__main__":
    main()
