#!/usr/bin/env python3
"""How long the read plan of one rank takes for a model of the size of Llama 2 70B: bench/read_plan.py --weft build/weft

Slices of 64 ranks (dp 8 x tp 8, weights divided over dp as well) are read by 128 (dp 8 x tp 16). The files have headers and
holes, so they take little space on the disk. Prints the seconds of `weft checkpoint reshard --list`, its peak memory, and how
many files the rank needs."""
import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import tempfile
import time

HIDDEN, LAYERS, FFN, VOCAB, KEYS = 8192, 80, 28672, 32000, 1024


def tensors():
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    rows = {"self_attn.q_proj": HIDDEN, "self_attn.k_proj": KEYS, "self_attn.v_proj": KEYS, "mlp.gate_proj": FFN, "mlp.up_proj": FFN}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part, count in rows.items():
            yield f"{name}{part}.weight", [count, HIDDEN]
        yield f"{name}self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield f"{name}mlp.down_proj.weight", [HIDDEN, FFN]
        yield f"{name}input_layernorm.weight", [HIDDEN]
        yield f"{name}post_attention_layernorm.weight", [HIDDEN]


def layout(name, shape, dp, tp):
    """The item of a strategy file."""
    by_columns = "o_proj" in name or "down_proj" in name
    divided = len(shape) == 2 and not by_columns and shape[0] % (dp * tp) == 0
    split = [-1] if len(shape) == 1 else [-1, 0] if by_columns else [0, -1]
    return {"dev_matrix": [dp, tp], "tensor_map": split, "tensor_shape": shape, "field": 0,
            "opt_weight_shard_step": tp if divided else 0, "opt_weight_shard_size": dp if divided else 0}


def write_strategy(path, dp, tp):
    items = {name: layout(name, shape, dp, tp) for name, shape in tensors()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"current_stage": 0, "parallel_strategy_item": {}, "parallel_layout_item": items}, file)


def write_slices(folder, dp, tp):
    header, end = {}, 0
    for name, shape in tensors():
        item = layout(name, shape, dp, tp)
        own = [n // tp if axis == 0 else n for n, axis in zip(shape, item["tensor_map"])]
        own[0] //= item["opt_weight_shard_size"] or 1
        count = 2
        for n in own:
            count *= n
        header[name] = {"dtype": "BF16", "shape": own, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    for rank in range(dp * tp):
        os.makedirs(f"{folder}/rank_{rank}")
        with open(f"{folder}/rank_{rank}/checkpoint_{rank}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        write_strategy(f"{work}/a.json", 8, 8)
        write_strategy(f"{work}/b.json", 8, 16)
        write_slices(f"{work}/slices", 8, 8)
        seconds, files = [], 0
        for turn in range(args.rounds):
            start = time.monotonic()
            listed = subprocess.run([args.weft, "checkpoint", "reshard", f"{work}/slices", "--from", f"{work}/a.json",
                                     "--to", f"{work}/b.json", "--list", str(turn * 13 % 128)],
                                    check=True, capture_output=True, text=True)
            seconds.append(time.monotonic() - start)
            files = len(listed.stdout.splitlines())
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(json.dumps({"parameters": round(sum(a * (b or [1])[0] for _, (a, *b) in tensors()) / 1e9, 2), "ranks": [64, 128],
                          "median_s": round(statistics.median(seconds), 3), "worst_s": round(max(seconds), 3),
                          "files": files, "peak_mib": peak // 1024}))


if __name__ == "__main__":
    main()
