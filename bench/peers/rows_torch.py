#!/usr/bin/env python3
"""Time training steps of one table of embeddings in PyTorch on the CPU.

One step is: EmbeddingBag (sum, sparse gradient) of the ids of a batch, the
mean square of the sums, backward, SparseAdam.  Ids follow Zipf's law with
exponent 1.05, with shuffled row numbers, as in bench/rows.c.  Drawing ids is
not timed.  See stepper.py for the output and for the interactive protocol.
"""

import time

import stepper


def arguments():
    parser = stepper.base_parser(__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10000000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--ids", type=int, default=26)
    parser.add_argument("--cpu", action="store_true",
                        help="processor seconds of steps in place of seconds")
    parser.set_defaults(threads=1, steps=30, warmup=30)
    return parser.parse_args()


ARGS = arguments()
torch = stepper.prepare(ARGS)
import numpy  # noqa: E402


class Steps:
    """The table, its optimizer, and the law of the ids."""

    def __init__(self):
        weights = numpy.arange(1, ARGS.rows + 1, dtype=numpy.float64) ** -1.05
        self.share = numpy.cumsum(weights)
        self.share /= self.share[-1]
        self.random = numpy.random.default_rng(ARGS.seed)
        self.bag = torch.nn.EmbeddingBag(ARGS.rows, ARGS.dim, mode="sum",
                                         sparse=True)
        with torch.no_grad():
            self.bag.weight.normal_(0, 0.01)
        self.optimizer = torch.optim.SparseAdam(self.bag.parameters(), lr=0.01)

    def draw(self):
        ranks = numpy.searchsorted(
            self.share, self.random.random(ARGS.batch * ARGS.ids))
        rows = ranks.astype(numpy.uint64) * numpy.uint64(2654435761)
        rows %= numpy.uint64(ARGS.rows)
        self.rows = torch.from_numpy(rows.astype(numpy.int64)).view(
            ARGS.batch, ARGS.ids)

    def run(self):
        sums = self.bag(self.rows)
        loss = (sums * sums).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def main():
    steps = Steps()
    stepper.drive(ARGS, steps.run, ARGS.batch, "samples_per_second",
                  {"rows": ARGS.rows, "dim": ARGS.dim, "ids": ARGS.ids},
                  steps.draw,
                  time.process_time if ARGS.cpu else time.perf_counter)


if __name__ == "__main__":
    main()
