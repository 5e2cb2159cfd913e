"""Timing on a machine that does other things as well: many short samples, and their median."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_s(
    run: Callable[[], object], *, budget_s: float = 0.2, least: int = 3, most: int = 200
) -> float:
    """Return the median seconds of a call, after one that does not count.

    Args:
        run: what to time; it may be called ``most`` + 1 times.
        budget_s: when to stop, once ``least`` samples are there.
        least: samples to take in any case.
        most: samples to stop at.

    >>> median_s(lambda: None, budget_s=0.0) < 1e-3
    True
    """
    run()
    samples: list[float] = []
    end = time.perf_counter() + budget_s
    while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return median(samples)


def quiet_s(run: Callable[[], object], *, budget_s: float = 0.2, batches: int = 5) -> float:
    """Return the least of several medians: what the machine can do while nothing else runs.

    One median is robust against a few disturbed samples, not against a neighbour that computes for
    a second; one minimum would be the luckiest sample.

    >>> quiet_s(lambda: None, budget_s=0.0) < 1e-3
    True
    """
    return min(median_s(run, budget_s=budget_s / batches) for _ in range(batches))
