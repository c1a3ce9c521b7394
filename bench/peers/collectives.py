#!/usr/bin/env python3
"""Two programs that measure collectives, in turn, and the ratio of their times.

    collectives.py [--rounds 5] 'COMMAND' 'OTHER COMMAND'

Each prints lines ``NAME BYTES SECONDS`` among others: bench/comm and
bench/peers/mpi_allreduce.c.  They run one after the other, as often as there
are rounds, so that a slow spell of the machine falls on both.  Prints, for
what both measure, the median over the rounds of either and their ratio, and
in brackets that of the fastest.
"""

import argparse
import shlex
import statistics
import subprocess
import sys


def measure(command, into):
    run = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"'{command}' ended with {run.returncode}")
    for line in run.stdout.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in ("all_reduce", "in_place", "all_gather"):
            into.setdefault((words[0], int(words[1])), []).append(float(words[2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("commands", nargs=2)
    options = parser.parse_args()
    times = ({}, {})
    for _ in range(options.rounds):
        for command, into in zip(options.commands, times):
            measure(command, into)
    print(f"{'':10} {'bytes':>9} {'first':>12} {'second':>12}  ratio (of fastest)")
    for key in sorted(times[0].keys() & times[1].keys()):
        a, b = times[0][key], times[1][key]
        first, second = statistics.median(a), statistics.median(b)
        print(
            f"{key[0]:10} {key[1]:9} {first * 1e6:9.2f} us {second * 1e6:9.2f} us"
            f"  {second / first:5.2f} ({min(b) / min(a):.2f})"
        )


if __name__ == "__main__":
    main()
