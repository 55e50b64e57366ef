# SPDX-License-Identifier: Apache-2.0
"""Tokens/s with Moor beside tokens/s without, on one machine.

Of two servers the one that started later was up to 18% faster, whichever it was. So there are four, started with, without, without,
with: what depends on the place cancels out, and two servers of one kind show how much of a difference is noise.
"""
import contextlib
import math
import statistics
from dataclasses import dataclass

from . import load

KINDS = ("with", "without", "without", "with")


@dataclass
class Ratio:
    """Median over the rounds, and the rounds' range."""
    median: float
    low: float
    high: float
    rounds: int

    def __str__(self):
        return f"{self.median:.3f} (rounds {self.low:.3f} to {self.high:.3f})"


def balanced(bases, others):
    """Geometric mean of `others` over that of `bases`, round by round: lists of tokens/s, one a server, one entry a round."""
    if not bases or not bases[0] or len({len(s) for s in [*bases, *others]}) != 1 or len(bases) != len(others):
        raise ValueError(f"unbalanced rounds: {[len(s) for s in bases]} and {[len(s) for s in others]}")
    ratios = sorted(math.exp(statistics.fmean(map(math.log, o)) - statistics.fmean(map(math.log, b)))
                    for b, o in zip(zip(*bases), zip(*others)))
    return Ratio(statistics.median(ratios), ratios[0], ratios[-1], len(ratios))


@dataclass
class Outcome:
    speeds: list          # of KINDS, tokens/s a round
    metrics: dict         # of the first server with Moor, after the last round

    @property
    def ratio(self):
        """With Moor over without."""
        a, b, c, d = self.speeds
        return balanced([b, c], [a, d])

    @property
    def noise(self):
        """The later two servers over the earlier two, one of each kind in both: 1 if the place did not matter."""
        a, b, c, d = self.speeds
        return balanced([a, b], [d, c])


@contextlib.contextmanager
def _frozen(server):
    """Up, and stopped while others start."""
    with server:
        server.freeze()
        try:
            yield server
        finally:
            server.thaw()


def measure(make, jobs, rounds, threads=8):
    """`make(name, with_moor)` gives a Server that is not started, `jobs(round, name)` the work."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_frozen(make(f"overhead-{i}-{kind}", kind == "with"))) for i, kind in enumerate(KINDS)]
        load.interleaved(servers, jobs, 1, threads)  # warm
        speeds = load.interleaved(servers, jobs, rounds, threads)
        return Outcome([speeds[s.name] for s in servers], servers[0].client().metrics())
