#!/usr/bin/env python3
"""What a training pays when its world changes its size, and whether its losses stay.

    bench/elastic.py [--weft build/release/weft] [--changes 50] [--seed N] [--json FILE]

A small model trains on 4 processes of one host, with recovery.elastic.  At random instants a process, drawn by chance, is
killed (kill -9), or `weft launch --add` starts one or two more, so that the world has 2 to 4 ranks.  The state moves from
memory to memory.  The run ends after the last change.  Reported: changes, changes that read the disk (a region died with
its ranks), the time from a kill, or from the start of the added processes, to the next step (median, worst), steps that
were made again or left out, and the largest relative difference of a loss from that of one device.  The last two show that
each sample was consumed once, and in the same order: a step's loss is that of its samples.  The learning rate is low: with
1e-4, undisturbed runs of 2 and of 4 devices already differ from one device by 1e-5 after some 450 steps.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

JOB = """model: {family: gpt2, layers: 2, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {format: text, path: text.txt}
train: {batch: 12, seed: 5, eval_every: 1000000, optimizer: {lr: 1e-5}, schedule: {name: constant}}
device: {threads: 1}
"""
MARK = "WEFT_BENCH_ELASTIC"
MOST, LEAST = 4, 2


def processes(mark):
    """The processes that train now."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if b"train" in words and b"launch" not in words and marked:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def losses(path):
    """[(step, loss)] in the order in which the run wrote them."""
    out = []
    try:
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "loss" in entry:
                out.append((entry["step"], entry["loss"]))
    except OSError:
        pass
    return out


class Run:
    def __init__(self, weft, folder, steps, mark):
        self.weft, self.folder, self.mark = weft, folder, mark
        self.log = folder / "train.log"
        self.stop = folder / "stop"
        self.words = [weft, "train", "job.yaml", f"train.steps={steps}", "recovery.enabled=true", "recovery.elastic=true",
                      f"recovery.min={LEAST}", f"parallel.mesh={{dp: {MOST}}}", f"train.log={self.log}",
                      f"checkpoint.stop_file={self.stop}", "checkpoint.dir=run"]
        self.output = open(folder / "launch.out", "w")
        self.main = self.launch(["-n", str(MOST), "--logs", "logs-0"])
        self.added = []

    def launch(self, options):
        command = [self.weft, "launch", *options, "--env", f"{MARK}={self.mark}", "--", *self.words]
        return subprocess.Popen(command, cwd=self.folder, stdout=self.output, stderr=subprocess.STDOUT)

    def step(self):
        made = losses(self.log)
        return made[-1][0] if made else 0

    def said(self, ranks):
        """How often some rank 0 has said that the run goes on with so many ranks, and how often from the disk."""
        text = "".join(path.read_text(errors="replace") for path in self.folder.glob("logs-*/*.log"))
        lines = [line for line in text.splitlines() if f"the run goes on with {ranks} ranks" in line]
        return len(lines), sum("last checkpoint" in line for line in lines)

    def place(self):
        """The scheduler's address and the secret's file."""
        for process in processes(self.mark):
            try:
                words = pathlib.Path(f"/proc/{process}/environ").read_text().split("\0")
            except OSError:
                continue
            values = dict(word.split("=", 1) for word in words if "=" in word)
            if "WEFT_SCHEDULER" in values:
                return values["WEFT_SCHEDULER"], values["WEFT_SECRET_FILE"]
        sys.exit("no process of the run is there")

    def add(self, count):
        scheduler, secret = self.place()
        self.added.append(self.launch(["--add", "--scheduler", scheduler, "--secret", secret, "-n", str(count),
                                       "--logs", f"logs-{len(self.added) + 1}"]))


def wait_until(what, run, seconds=120):
    end = time.monotonic() + seconds
    while not what():
        if run.main.poll() is not None:
            sys.exit(f"the job has ended: {(run.folder / 'launch.out').read_text()[-3000:]}")
        if time.monotonic() > end:
            sys.exit(f"nothing for {seconds} s: {(run.folder / 'launch.out').read_text()[-3000:]}")
        time.sleep(0.005)


def change(run, size, chance):
    """One change. Returns the new size, what it was, its seconds, and whether it read the disk."""
    grows = size == LEAST or (size < MOST and chance.random() < 0.5)
    count = chance.randint(1, MOST - size) if grows else 1
    victims = processes(run.mark)
    target = size + count if grows else size - 1
    before, disk_before = run.said(target)
    begun = time.monotonic()
    if grows:
        run.add(count)
    else:
        os.kill(chance.choice(victims), signal.SIGKILL)
    wait_until(lambda: run.said(target)[0] > before, run)
    at = run.step()
    wait_until(lambda: run.step() > at, run)
    return target, "grow" if grows else "shrink", time.monotonic() - begun, run.said(target)[1] > disk_before


def compare(run, weft, folder):
    made = losses(run.log)
    last = made[-1][0]
    subprocess.run([weft, "train", "job.yaml", f"train.steps={last}", f"train.log={folder / 'one.log'}"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)
    one = dict(losses(folder / "one.log"))
    again = sum(step <= before for (before, _), (step, _) in zip(made, made[1:]))
    left_out = sum(step > before + 1 for (before, _), (step, _) in zip(made, made[1:]))
    worst = max(abs(loss - one[step]) / one[step] for step, loss in made)
    return {"steps": last, "again": again, "left_out": left_out, "worst_difference": worst}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--json")
    options = parser.parse_args()
    weft = str(pathlib.Path(options.weft).resolve())
    chance = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "job.yaml").write_text(JOB)
        (folder / "text.txt").write_text("".join(f"weft {i} runs over and under warp {i * 7 % 13}\n" for i in range(4000)))
        run = Run(weft, folder, 1000000, f"{os.getpid()}-{options.seed}")
        wait_until(lambda: run.step() >= 10, run)
        size, seconds, disk = MOST, {"shrink": [], "grow": []}, 0
        for number in range(options.changes):
            time.sleep(chance.uniform(0.02, 0.6))
            was = size
            size, what, took, from_disk = change(run, size, chance)
            seconds[what].append(took)
            disk += from_disk
            print(f"  {number + 1}: {was} to {size} ranks in {took:.2f} s, step {run.step()}", flush=True)
        run.stop.write_text('{"GracefulExit": 1}')
        code = run.main.wait(120)
        codes = [process.wait(120) for process in run.added]
        result = {"changes": options.changes, "from_disk": disk, "code": code, "seed": options.seed,
                  **compare(run, weft, folder)}
        for what, all_of in seconds.items():
            if all_of:
                result[f"{what}_median_s"], result[f"{what}_worst_s"] = statistics.median(all_of), max(all_of)
        bad = code != 0 or any(c not in (0, 75) for c in codes)
        print(f"{options.changes} changes of 2 to 4 ranks, {disk} from the disk; exit code {code}, of launchers that added "
              f"{sorted(set(codes))}")
        for what, all_of in seconds.items():
            if all_of:
                print(f"{what}: {len(all_of)}, median {statistics.median(all_of):.2f} s, worst {max(all_of):.2f} s")
        print(f"{result['steps']} steps, {result['again']} made again, {result['left_out']} left out; losses differ from one "
              f"device's by {result['worst_difference']:.2g} at most")
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(result) + "\n")
        bad = bad or result["left_out"] or (result["again"] and not disk) or result["worst_difference"] > 1e-5
        return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
