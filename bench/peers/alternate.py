#!/usr/bin/env python3
"""Drive several programs step by step, in turn, and compare their medians.

    alternate.py --rounds 6 NAME='COMMAND' [NAME='COMMAND' ...]

Every command has to speak the interactive protocol of stepper.py (with the
scripts here: --interactive): print ``ready``, answer ``step`` with the step's
seconds, and ``quit`` with one JSON object.  Only one of them works at any
moment, and they take turns, so that a slow spell of the machine falls on all
alike.  They are started one after another, each when the one before is warm.
Prints one JSON object: by name, the median and the seconds of the steps after
the warmup, and what the program itself reported.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time


class Peer:
    """One program under the harness's hand."""

    def __init__(self, name, command):
        self.name = name
        self.seconds = []
        environment = dict(os.environ, WEFT_T0=repr(time.time()))
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=environment)
        word = self.read()
        if word != "ready":
            raise SystemExit(f"{name}: said {word!r} and not 'ready'")

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: ended early, status "
                             f"{self.process.wait()}")
        return line.strip()

    def send(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def step(self):
        self.send("step")
        self.seconds.append(float(self.read()))

    def quit(self):
        self.send("quit")
        report = self.read()
        self.process.wait()
        return json.loads(report)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6,
                        help="steps of each program after the warmup")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("peers", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()

    peers = []
    for text in args.peers:
        name, equals, command = text.partition("=")
        if not equals:
            parser.error(f"not NAME=COMMAND: {text}")
        peer = Peer(name, command)
        for _ in range(args.warmup):
            peer.step()
        print(f"{name}: warm", file=sys.stderr, flush=True)
        peers.append(peer)
    for k in range(args.rounds):
        for peer in peers:
            peer.step()
        print(f"round {k}: " + "  ".join(
            f"{peer.name} {peer.seconds[-1]:.3f}" for peer in peers),
            file=sys.stderr, flush=True)
    result = {}
    for peer in peers:
        steady = peer.seconds[args.warmup:] or peer.seconds
        result[peer.name] = {
            "median_step_seconds": statistics.median(steady),
            "min_step_seconds": min(steady),
            "step_seconds": steady,
            "report": peer.quit(),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
