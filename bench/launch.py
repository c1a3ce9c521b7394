#!/usr/bin/env python3
"""How soon a launched job has made its first step, and the memory of its ranks.

    bench/launch.py [--weft build/release/weft] [--ranks 64] [--rounds 5] [--resume]

Starts ``weft launch -n RANKS -- weft train`` of a tiny model, data parallel over
all ranks, and takes the time from the start of the launcher to the end of step
one, which the training says on its standard output.  A little later, while it
trains, the memory of the ranks is read: resident (which counts shared pages for
each rank) and proportional.  Prints each round and the medians.

With --resume the job goes on from a checkpoint that half as many ranks have
written under another layout: data parallel there, tensor parallel by two with
sharded optimizer states here.  The time is then to the end of the first step
after it.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

JOB = """model: {family: gpt2, layers: 2, hidden: 64, heads: 2, context: 32, vocab: 256}
data: {format: text, path: text.txt}
train: {steps: 200, batch: %d}
"""


def memory_of_ranks(weft):
    """Largest (resident, proportional) in MiB of all processes that train."""
    largest = [0.0, 0.0]
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[:2] != [weft.encode(), b"train"]:
                continue
            for line in (folder / "smaps_rollup").read_text().splitlines():
                name, *rest = line.split()
                if name in ("Rss:", "Pss:"):
                    k = name == "Pss:"
                    largest[k] = max(largest[k], int(rest[0]) / 1024)
        except (OSError, ProcessLookupError):
            continue
    return largest


SPLIT = ["parallel.mesh={dp: %d, tp: 2}", "parallel.optimizer.level=2",
         'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}, '
         '{match: "h.*.mlp.c_proj:linear", split: k=tp}]']


def write_checkpoint(weft, ranks, folder):
    subprocess.run([weft, "launch", "-n", str(ranks // 2), "--", weft, "train", "job.yaml", "train.steps=4",
                    "checkpoint.dir=saved"], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def one_round(weft, ranks, folder, resume):
    words = []
    if resume:
        shutil.rmtree(pathlib.Path(folder, "run"), ignore_errors=True)
        shutil.copytree(pathlib.Path(folder, "saved"), pathlib.Path(folder, "run"))
        words = [word % (ranks // 2) if "%d" in word else word for word in SPLIT]
        words += ["checkpoint.dir=run", "train.steps=9"]
    start = time.monotonic()
    with subprocess.Popen([weft, "launch", "-n", str(ranks), "--", weft, "train", "job.yaml", "--json", *words],
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        first, memory = None, [0.0, 0.0]
        for line in run.stdout:
            if not line.startswith("{"):
                continue
            step = json.loads(line).get("step")
            if step == (5 if resume else 1) and first is None:
                first = time.monotonic() - start
            elif step == (7 if resume else 3):
                memory = memory_of_ranks(weft)
    if run.returncode != 0 or first is None:
        sys.exit(f"the job ended with {run.returncode}; its logs are in {folder}")
    return first, memory[0], memory[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    weft = os.path.abspath(options.weft)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "text.txt").write_text("to be or not to be, that is the question. " * 3000)
        pathlib.Path(folder, "job.yaml").write_text(JOB % options.ranks)
        if options.resume:
            write_checkpoint(weft, options.ranks, folder)
        for _ in range(options.rounds):
            results.append(one_round(weft, options.ranks, folder, options.resume))
            print("to the end of the first step %.2f s, resident %.1f MiB, proportional %.1f MiB" % results[-1], flush=True)
    print("medians: %.2f s, %.1f MiB, %.1f MiB" % tuple(statistics.median(x) for x in zip(*results)))


if __name__ == "__main__":
    main()
