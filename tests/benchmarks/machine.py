"""The machine as a contender: what it can do, measured beside what it did.

On a shared host clocks and neighbours change within seconds: a peak from before a model says little
about the calls minutes later. So peak and bandwidth are blocks of every round, in a process of
their own, and a share is the median bound of the rounds over the median call.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.contenders import Contender, answer
from tests.benchmarks.limits import bandwidth, peak_flops


class Machine(Contender):
    """A worker that measures one round: ``{"peak": FLOP/s, "read": B/s, "copy": B/s}``.

    Args:
        dtype: whose multiply-adds the peak is of, ``f32`` or ``bf16``.
        threads: threads that are measured together.
    """

    script = __file__

    def __init__(self, dtype: str = "f32", threads: int = 2) -> None:
        super().__init__("machine", dtype, threads)
        self.rounds: list[dict[str, float]] = []

    def measure(self) -> None:
        """Measure a round: the best of a few runs of each."""
        self.rounds.append(self.ask("round"))

    def describe(self) -> str:
        """Return the medians of the rounds, and of the peak the range.

        Raises:
            statistics.StatisticsError: nothing has been measured.
        """
        peak, read, copy = (median(r[k] for r in self.rounds) for k in ("peak", "read", "copy"))
        peaks = sorted(r["peak"] for r in self.rounds)
        return (
            f"peak {peak / 1e9:.0f} GF/s ({peaks[0] / 1e9:.0f} to {peaks[-1] / 1e9:.0f}), reads"
            f" {read / 1e9:.1f} and copies {copy / 1e9:.1f} GB/s"
        )


def _worker(dtype: str) -> None:
    answer("ready")
    for _ in sys.stdin:
        read, copy = bandwidth(2)
        answer({"peak": peak_flops(2, dtype), "read": read, "copy": copy})


if __name__ == "__main__":
    _worker(sys.argv[2])
