#!/usr/bin/env python3
"""What the death of a process costs a training, and what being ready for it costs.

    bench/recovery.py [--weft build/release/weft] [--kills 200] [--layouts dp,tp] [--json FILE]
    bench/recovery.py --minutes 10 [--every 15]     one death every 15 s, in place of the kills
    bench/recovery.py --death two                    two ranks at once; also: again, saving, silent, launcher
    bench/recovery.py --ready 5                      only what being ready costs, in turns

Each layout trains a small model on 4 processes of one host.  An undisturbed run gives the digest of its last checkpoint.
Then runs go on while one of their ranks, drawn by chance, is killed (kill -9) at random instants, one kill a few steps
after the other; `weft launch --restart` starts it again.  A kill counts once the launcher has started a new process for
it while steps were left.  Reported for each layout: kills that met the training, the time from a kill to the end of the
next step (median, worst), completed steps that were made again (most), how often all read the last checkpoint, and
whether each run ended with the undisturbed digest.

`--death two` kills two ranks at once; `again` a rank, and any rank once the first one was started again; `saving` a rank
while a checkpoint is being written.  `silent` stops a rank (SIGSTOP), as a lost host would; the heartbeat time is then 3 s,
and the time includes it.  `launcher` kills `weft launch` itself: then all processes must end, and the same
command, given again, goes on from the last checkpoint.  Times are from the last kill.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

JOB = """model: {family: gpt2, layers: 2, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {format: text, path: text.txt}
train: {steps: 100, batch: 8, clip: 1, seed: 5}
device: {threads: 1}
checkpoint: {every: 20, keep: 2}
recovery: {enabled: true, buddy: 1}
"""
LEVEL = ["parallel.devices=4", "parallel.optimizer.threshold=0"]
SPLITS = ("parallel.strategies=[{match: 'h.*.attn.c_attn', split: {n1: tp}}, {match: 'h.*.attn', split: {heads: tp}}, "
          "{match: 'h.*.attn.c_proj', split: {k: tp}}, {match: 'h.*.mlp.c_fc', split: {n0: tp}}, "
          "{match: 'h.*.mlp.c_proj', split: {k: tp}}]")
LAYOUTS = {
    "dp": ["parallel.devices=4"],
    "dp + level 1": LEVEL + ["parallel.optimizer.level=1"],
    "dp + level 2": LEVEL + ["parallel.optimizer.level=2"],
    "dp + level 3": LEVEL + ["parallel.optimizer.level=3"],
    "dp + level 1 x 2": LEVEL + ["parallel.optimizer.level=1", "parallel.optimizer.shard_size=2"],
    "tp": ["parallel.mesh={tp: 4}", "parallel.mode=semi", SPLITS],
    "pp 1f1b": ["model.layers=4", "parallel.pipeline.stages=4", "parallel.pipeline.microbatches=4",
                "parallel.pipeline.schedule=1f1b"],
    "dp x tp": ["parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi", SPLITS],
}
RANKS = 4
MARK = "WEFT_BENCH_RECOVERY"


def process_of(rank, mark):
    """The process that has the rank now; None: there is none."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"train" not in (folder / "cmdline").read_bytes().split(b"\0"):
                continue
            words = (folder / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in words and f"WEFT_RANK={rank}".encode() in words:
                return int(folder.name)
        except OSError:
            continue
    return None


class Run:
    """A training under weft launch, whose steps and notes are read as they come."""

    def __init__(self, weft, folder, name, words, steps, restarts, extra=()):
        self.mark = f"{os.getpid()}-{name}"
        self.name, self.folder, self.steps_wanted = name, folder, steps
        self.steps, self.started, self.returns = [], [], []
        self.changed = threading.Condition()
        self.ended = False
        self.errors = []
        launch = [weft, "launch", "-n", str(RANKS), "--restart", str(restarts)] if restarts else \
            [weft, "launch", "-n", str(RANKS)]
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            launch + ["--logs", f"logs-{name}", "--env", f"{MARK}={self.mark}", *extra, "--", weft, "train", "job.yaml",
                      "--json", f"train.steps={steps}", f"checkpoint.dir={name}", *words],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.readers = [threading.Thread(target=self.read_steps), threading.Thread(target=self.read_notes)]
        for reader in self.readers:
            reader.start()

    def read_steps(self):
        for line in self.process.stdout:
            found = re.search(r'"step": (\d+)', line)
            if not found or "validation" in line:
                continue
            with self.changed:
                self.steps.append((int(found[1]), time.monotonic()))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def read_notes(self):
        for line in self.process.stderr:
            self.errors.append(line)
            with self.changed:
                if "is started again" in line:
                    self.started.append(time.monotonic())
                found = re.search(r"state from (.*)\); the run goes on after step (\d+)", line)
                if found:
                    self.returns.append((int(found[2]), time.monotonic(), found[1] != "memory"))
                self.changed.notify_all()

    def last_step(self):
        return self.steps[-1][0] if self.steps else 0

    def wait_for_step(self, step):
        with self.changed:
            self.changed.wait_for(lambda: self.ended or self.last_step() >= step, timeout=300)
            return not self.ended and self.last_step() >= step

    def end(self):
        self.process.wait(timeout=600)
        for reader in self.readers:
            reader.join()
        return self.process.returncode

    def digest(self, weft):
        return subprocess.run([weft, "checkpoint", "digest", self.name], cwd=self.folder, capture_output=True, text=True,
                              check=False).stdout


def calm_run(weft, folder, words, steps, name="calm", restarts=1):
    run = Run(weft, folder, name, words, steps, restarts)
    if run.end() != 0:
        sys.exit("the undisturbed run fails:\n" + "".join(run.errors))
    times = [t for _, t in run.steps]
    return run, statistics.median(b - a for a, b in zip(times, times[1:]))


def kill(run, ranks, how=signal.SIGKILL):
    """Kills the processes of ranks now.  None: one of them has none."""
    processes = [process_of(rank, run.mark) for rank in ranks]
    if None in processes:
        return None
    try:
        for process in processes:
            os.kill(process, how)
    except ProcessLookupError:
        return None
    return time.monotonic()


def is_saving(run):
    return any((run.folder / run.name).glob(".tmp-step-*"))


def strike(run, dice, death):
    """Kills one rank or more.  Returns when the last one was killed and how many, None: they do not live."""
    ranks = dice.sample(range(RANKS), 2 if death == "two" else 1)
    if death == "saving":
        until = time.monotonic() + 20
        while not is_saving(run) and not run.ended and time.monotonic() < until:
            time.sleep(0.0002)
    with run.changed:
        starts = len(run.started)
    killed = kill(run, ranks, signal.SIGSTOP if death == "silent" else signal.SIGKILL)
    if death != "again" or killed is None:
        return killed and (killed, len(ranks))
    with run.changed:
        run.changed.wait_for(lambda: run.ended or len(run.started) > starts, timeout=120)
    time.sleep(dice.random() * 0.5)
    killed = kill(run, [dice.randrange(RANKS)])
    return killed and (killed, 2)


def kill_one(run, dice, death="one"):
    """Kills ranks now.  Returns what became of it, None: the kill did not meet the training."""
    with run.changed:
        before, starts = run.last_step(), len(run.started)
    struck = strike(run, dice, death)
    if not struck:
        return None
    killed, count = struck

    def mended():
        """The end of the repair behind the last new process."""
        if len(run.started) < starts + count:
            return None
        return next((r for r in run.returns if r[1] > run.started[starts + count - 1]), None)

    with run.changed:
        run.changed.wait_for(lambda: run.ended or mended(), timeout=120)
        if not mended():
            return None
        on_after, _, disk = mended()
        # Before the kill, a run that reads a file may have made this step already.
        def times():
            return [t for s, t in run.steps if s == on_after + 1 and t > killed]

        run.changed.wait_for(lambda: run.ended or times(), timeout=120)
        if not times():
            return None
        after = times()[0]
    return {"s": after - killed, "disk": disk, "repeated": max(0, before - on_after)}


def processes_of(mark):
    """The processes of a job that live: its ranks, and what they have started."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def launcher_dies(options, weft, folder, words, step_s, right, dice, name):
    """The launcher is killed at random instants: the job ends, and goes on when it is started again."""
    met, same, runs, ends, ended = [], 0, 0, [], []
    while len(met) < options.kills and runs < 4 * options.kills + 4:
        runs += 1
        run = Run(weft, folder, f"{name}-l{runs}", words, options.steps, 1)
        lives = run.wait_for_step(2 + dice.randrange(max(1, options.steps - 10)))
        time.sleep(dice.random() * step_s)
        killed = time.monotonic()
        run.process.kill()
        while processes_of(run.mark) and time.monotonic() - killed < 120:
            time.sleep(0.01)
        left, ended_s = processes_of(run.mark), time.monotonic() - killed
        run.end()
        again = Run(weft, folder, run.name, words, options.steps, 1)
        again.wait_for_step(1)
        after = time.monotonic()
        code = again.end()
        if lives and again.steps and not left:
            repeated = max(0, run.last_step() - again.steps[0][0] + 1)
            met.append({"s": after - killed, "disk": True, "repeated": repeated})
            ended.append(ended_s)
        good = code == 0 and not left and again.digest(weft) == right
        same += good
        if not good:
            ends.append(f"exit code {code}, {len(left)} processes left: " + "".join(again.errors[-3:]))
        subprocess.run(["rm", "-rf", str(folder / run.name)], check=False)
    if ended:
        print(f"the ranks ended after {statistics.median(ended):.2f} s (median), {max(ended):.2f} s (most)", flush=True)
    return met, same, runs, ends


def disturbed(options, weft, folder, words, step_s, right, dice, name):
    """Runs until so many kills have met the training."""
    steps, kills = options.steps, options.kills
    met, same, runs, ends, number = [], 0, 0, [], 0
    while len(met) < kills and number < 4 * kills + 4:
        number += 1
        extra = ("--heartbeat", "3") if options.death == "silent" else ()
        run = Run(weft, folder, f"{name}-{number}", words, steps, 1000, extra)
        at, here = 2, []
        while len(met) + len(here) < kills and run.wait_for_step(at):
            time.sleep(dice.random() * step_s * 3)
            result = kill_one(run, dice, options.death)
            if result:
                here.append(result)
            at = run.last_step() + 2
        code = run.end()
        if not here:
            continue
        runs += 1
        met += here
        good = code == 0 and run.digest(weft) == right
        same += good
        if not good:
            ends.append(f"exit code {code}: " + "".join(run.errors[-3:]))
        subprocess.run(["rm", "-rf", str(folder / run.name)], check=False)
    return met, same, runs, ends


def one_layout(options, weft, folder, name, dice):
    words, steps = LAYOUTS[name], options.steps
    if options.death == "saving":
        words = words + ["checkpoint.every=1"]
    short = re.sub(r"\W+", "-", name)
    calm, step_s = calm_run(weft, folder, words, steps, f"calm-{short}")
    right = calm.digest(weft)
    how = launcher_dies if options.death == "launcher" else disturbed
    met, same, runs, ends = how(options, weft, folder, words, step_s, right, dice, short)
    if not met:
        return {"layout": name, "kills": 0}
    times = [x["s"] for x in met]
    again = [x["repeated"] for x in met if not x["disk"]]
    return {"layout": name, "death": options.death, "kills": len(met), "runs": runs, "equal": same,
            "step_s": round(step_s, 4), "median_s": round(statistics.median(times), 3),
            "worst_s": round(max(times), 3), "repeated": max(again, default=None),
            "disk": sum(x["disk"] for x in met), "ends": ends}


def steady(options, weft, folder, name, dice):
    """One death every few seconds: the part of an undisturbed run's steps that are made."""
    words, seconds = LAYOUTS[name], options.minutes * 60
    short = re.sub(r"\W+", "-", name)
    _, step_s = calm_run(weft, folder, words, options.steps, f"calm-{short}")
    wanted = max(options.steps, int(seconds / step_s * 1.2))
    run = Run(weft, folder, f"steady-{short}", words + ["checkpoint.every=0"], wanted, 100000)
    run.wait_for_step(1)
    begun, first, kills = time.monotonic(), run.last_step(), 0
    while time.monotonic() - begun < seconds and not run.ended:
        time.sleep(options.every)
        kills += kill_one(run, dice) is not None
    made, spent = run.last_step() - first, time.monotonic() - begun
    run.process.terminate()
    run.end()
    return {"layout": name, "minutes": options.minutes, "every_s": options.every, "kills": kills, "steps": made,
            "undisturbed": round(spent / step_s), "part": round(made * step_s / spent, 3)}


def ready(options, weft, folder, name):
    """A step with recovery on against one with clipping only, in turns."""
    words, times = LAYOUTS[name], ([], [])
    for turn in range(2 * options.ready):
        on = turn % 2
        _, step_s = calm_run(weft, folder, words + [f"recovery.enabled={'true' if on else 'false'}", "checkpoint.every=0"],
                             options.steps, f"ready-{turn}", restarts=on)
        times[on].append(step_s)
        subprocess.run(["rm", "-rf", str(folder / f"ready-{turn}")], check=False)
    off_s, on_s = (statistics.median(t) for t in times)
    return {"layout": name, "turns": options.ready, "clipping_s": round(off_s, 5), "recovery_s": round(on_s, 5),
            "cost": round(on_s / off_s - 1, 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--kills", type=int, default=200, help="for each layout, that meet the training")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="separated by commas")
    parser.add_argument("--death", default="one", choices=["one", "two", "again", "saving", "silent", "launcher"])
    parser.add_argument("--steps", type=int, default=200, help="of a run")
    parser.add_argument("--minutes", type=float, default=0, help="one death after the other, for so long")
    parser.add_argument("--every", type=float, default=15, help="seconds between two of them")
    parser.add_argument("--ready", type=int, default=0, help="turns: what being ready costs")
    parser.add_argument("--hidden", type=int, default=64, help="of the model: larger steps")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", help="a file to which a line for each layout is added")
    options = parser.parse_args()
    weft, dice = os.path.abspath(options.weft), random.Random(options.seed)
    names = [n.strip() for n in options.layouts.split(",")]
    if set(names) - set(LAYOUTS) and options.layouts != ",".join(LAYOUTS):
        sys.exit("layouts are: " + ", ".join(LAYOUTS))
    names = list(LAYOUTS) if options.layouts == ",".join(LAYOUTS) else names
    print(f"seed {options.seed}", flush=True)
    failed = False
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "text.txt").write_text("to be or not to be, that is the question. " * 3000)
        (folder / "job.yaml").write_text(JOB.replace("hidden: 64", f"hidden: {options.hidden}"))
        for name in names:
            if options.ready:
                result = ready(options, weft, folder, name)
            elif options.minutes:
                result = steady(options, weft, folder, name, dice)
            else:
                result = one_layout(options, weft, folder, name, dice)
                failed |= result.get("equal", 0) < result.get("runs", 1)
            line = json.dumps(result)
            print(line, flush=True)
            if options.json:
                with open(options.json, "a", encoding="utf-8") as out:
                    out.write(line + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
