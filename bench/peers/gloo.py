#!/usr/bin/env python3
"""The collectives of bench/comm between processes, by gloo as PyTorch has it.

    gloo.py [--processes 2] [rounds [bytes]]

All-reduces in place (the only ones it has) and all-gathers of f32, 8 bytes to
64 MiB in all, timed and printed as in mpi_allreduce.c: the fastest of the
rounds, each of as many calls in a row.  Every process has a core of its own
where there are enough, and one thread.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [8, 64, 512, 1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def fastest(rounds, repeats, call):
    best = 1e9
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def measure(size, rounds, rank, parts):
    repeats = (16 << 20) // (size + 16384) + 1
    whole = torch.zeros(size // 4)
    calls = {"in_place": lambda: dist.all_reduce(whole)}
    if size // 4 % parts == 0:
        part = torch.zeros(size // 4 // parts)
        calls["all_gather"] = lambda: dist.all_gather_into_tensor(whole, part)
    for name, call in calls.items():
        seconds = fastest(rounds, repeats, call)
        if rank == 0:
            print(f"{name} {size} {seconds:.9f}", flush=True)


def run(rank, options, port):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= options.processes:
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=options.processes)
    for size in [options.bytes] if options.bytes else SIZES:
        measure(size, options.rounds, rank, options.processes)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("rounds", type=int, nargs="?", default=40)
    parser.add_argument("bytes", type=int, nargs="?", default=0)
    options = parser.parse_args()
    port = 20000 + os.getpid() % 20000
    mp.spawn(run, (options, port), nprocs=options.processes)


if __name__ == "__main__":
    main()
