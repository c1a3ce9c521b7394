"""What the timing scripts share: flags, clocks, and the step protocol.

A timing script builds one training step (a function without arguments that
does the whole step and returns its loss) and hands it to ``drive``.

Batch mode runs --steps steps and announces each as ``step K SECONDS``, on
stdout, or on stderr under --json; the last line of stdout is one JSON object.

Interactive mode (--interactive) prints ``ready``, then answers each line
``step`` on stdin with one step and its seconds; ``quit`` (or the end of
stdin) prints the JSON object and ends.  A harness can so alternate programs:
one that waits holds no processor.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time


def process_age():
    """Seconds since this process started.

    WEFT_T0 (seconds since the epoch, set by whoever starts the process) has
    the finer clock; without it the kernel's record of the start is used,
    which is good to one tick.
    """
    t0 = os.environ.get("WEFT_T0")
    if t0:
        return time.time() - float(t0)
    with open("/proc/self/stat") as stat:
        # Field 2 is in parentheses and may hold anything; count from its end.
        fields = stat.read().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def base_parser(description):
    """The flags every timing script takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--bf16-mode", choices=("autocast", "full"),
                        default="autocast",
                        help="autocast keeps f32 weights and optimizer state; "
                             "full holds everything in bf16")
    parser.add_argument("--mode", choices=("eager", "compile"),
                        default="eager")
    parser.add_argument("--max-autotune", action="store_true",
                        help="with --mode compile: let it search for kernels")
    parser.add_argument("--cold-cache", action="store_true",
                        help="with --mode compile: start from an empty "
                             "compilation cache")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2,
                        help="steps left out of the median (default 2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true",
                        help="nothing on stdout but the JSON object")
    parser.add_argument("--interactive", action="store_true")
    return parser


def prepare(args):
    """Settle threads and caches; call this before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["MKL_NUM_THREADS"] = str(args.threads)
    if args.cold_cache:
        # Held in args so that it lives, and is removed, with the process.
        args.cache = tempfile.TemporaryDirectory(prefix="peers-cache-")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = args.cache.name
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return torch


def compiled(torch, function, args):
    """The function as --mode wants it."""
    if args.mode == "eager":
        return function
    mode = "max-autotune" if args.max_autotune else None
    return torch.compile(function, dynamic=False, mode=mode)


def autocast(torch, args):
    """A fresh context for the forward pass."""
    wanted = args.precision == "bf16" and args.bf16_mode == "autocast"
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=wanted)


def fastest(make):
    """The fused form of an optimizer where this build has one for the CPU.

    ``make`` takes keyword arguments fused or foreach.  Returns the optimizer
    and the form's name.
    """
    for form in ("fused", "foreach"):
        try:
            return make(**{form: True}), form
        except (RuntimeError, TypeError, ValueError):
            continue
    return make(), "loop"


def drive(args, step, per_step, rate_name, facts, before=None,
          clock=time.perf_counter):
    """Run the steps as the flags say and print the JSON object.

    per_step is what one step consumes (tokens, images); rate_name names the
    rate in the result; facts are further members of the result.  before, if
    any, runs before each step and is not timed.
    """
    import torch

    seconds, losses = [], []
    first = None
    notes = sys.stderr if args.json else sys.stdout

    def one():
        nonlocal first
        if before:
            before()
        begin = clock()
        losses.append(float(step()))
        seconds.append(clock() - begin)
        if first is None:
            first = process_age()
        return seconds[-1]

    if args.interactive:
        print("ready", flush=True)
        for line in sys.stdin:
            word = line.strip()
            if word == "step":
                print(f"{one():.6f}", flush=True)
            elif word == "quit":
                break
            elif word:
                print(f"unknown command: {word}", file=sys.stderr, flush=True)
    else:
        for k in range(args.steps):
            print(f"step {k} {one():.6f}", file=notes, flush=True)

    steady = seconds[args.warmup:] or seconds
    median = statistics.median(steady) if steady else None
    result = {
        rate_name: per_step / median if median else None,
        "median_step_seconds": median,
        "min_step_seconds": min(steady) if steady else None,
        "step_seconds": seconds,
        "warmup": args.warmup,
        "first_step_seconds": first,
        "peak_rss_bytes":
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": losses,
        "mode": args.mode,
        "precision": args.precision,
        "bf16_mode": args.bf16_mode if args.precision == "bf16" else None,
        "cold_cache": args.cold_cache if args.mode == "compile" else None,
        "threads": args.threads,
        "versions": {"python": platform.python_version(),
                     "torch": torch.__version__},
        **facts,
    }
    print(json.dumps(result), flush=True)
