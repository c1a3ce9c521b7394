"""Distributed checkpoints of torch and weft, each read by the other: $py bench/peers/dcp.py build/weft

Four processes write tensors, split in several ways, with torch's HuggingFaceStorageWriter: a file for each process, and
consolidated. weft must find the digest of the whole tensors in both, and write them whole. Then weft writes slices of three ranks
in this format, and torch's HuggingFaceStorageReader must load the same bits. Prints a line for each; exit code 1 if one
differs."""
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

PROCESSES = 4
PLACES = {"rows_columns.weight": [Shard(0), Shard(1)], "uneven.weight": [Replicate(), Shard(0)],
          "whole.bias": [Replicate(), Replicate()], "columns_rows.weight": [Shard(1), Shard(0)]}


def tensors():
    torch.manual_seed(1)
    return {"rows_columns.weight": torch.randn(63, 48), "uneven.weight": torch.randn(7, 5), "whole.bias": torch.randn(11),
            "columns_rows.weight": torch.randn(30, 8).bfloat16()}


def write(rank, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (2, PROCESSES // 2))
    state = {name: distribute_tensor(x, mesh, PLACES[name]) for name, x in tensors().items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=f"{folder}/sharded", save_distributed=True))
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=f"{folder}/consolidated", save_distributed=True,
                                                            enable_consolidation=True))
    dist.barrier()
    dist.destroy_process_group()


def same(what, good):
    print(f"{what}: {'the same' if good else 'DIFFERENT'}")
    return good


def main():
    weft = sys.argv[1]

    def run(*words):
        done = subprocess.run([weft, "checkpoint", *words], capture_output=True, text=True)
        if done.returncode > 1:
            sys.exit(done.stderr)
        return done.returncode == 0

    with tempfile.TemporaryDirectory() as work:
        whole = f"{work}/whole.safetensors"
        save_file(tensors(), whole)
        mp.spawn(write, (work, 20000 + os.getpid() % 20000), nprocs=PROCESSES)
        good = same("torch, a file for each process", run("diff", whole, f"{work}/sharded"))
        good &= same("torch, consolidated", run("diff", whole, f"{work}/consolidated"))
        good &= same("torch, made whole by weft", run("reshard", f"{work}/sharded", f"{work}/hf") and run("diff", whole, f"{work}/hf"))
        layout = {"rows_columns.weight": {"dev_matrix": [3], "tensor_map": [0, -1]},
                  "columns_rows.weight": {"dev_matrix": [3], "tensor_map": [0, -1]}}
        for item in layout.values():
            item.update(field=0, opt_weight_shard_step=0, opt_weight_shard_size=0)
        with open(f"{work}/three.json", "w", encoding="utf-8") as file:
            json.dump({"current_stage": 0, "parallel_strategy_item": {}, "parallel_layout_item": layout}, file)
        if not run("reshard", f"{work}/sharded", f"{work}/dcp", "--to", f"{work}/three.json", "--format", "dcp"):
            sys.exit("weft writes no distributed checkpoint")
        state = {name: torch.zeros_like(x) for name, x in tensors().items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(f"{work}/dcp"), no_dist=True)
        good &= same("weft, slices of three ranks, read by torch", all(torch.equal(x, state[name]) for name, x in tensors().items()))
        print("torch", torch.__version__)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
