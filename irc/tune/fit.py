"""Fits measured curves of collectives to ``launch + steps (latency + bytes / speed)``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from irc.cluster.links import Collective, Fit

FASTEST = 1e15
"""Bytes a second where a curve does not rise with the size."""


REWEIGHTED = 8


class Point(NamedTuple):
    """One measured collective: its ranks, the bytes that a rank holds in full, and its seconds."""

    ranks: int
    num_bytes: int
    seconds: float


def fit_collective(kind: Collective, points: Sequence[Point], cores: int = 0) -> Fit:
    """Return the line of least relative error; no coefficient is negative, so it never falls.

    Twice too long and half as long weigh the same, or one sample that was disturbed would pull the
    line down: errors are taken relative to the mean of what was measured and what the line says, by
    reweighting. Where all points have the same ranks, launch and latency cannot be told apart.

    Args:
        kind: of all points.
        points: what was measured.
        cores: of the host that all ranks are on: where they are more, a step takes as many times as
            long as ranks share a core. 0: each rank has its own processor.

    >>> points = [
    ...     Point(p, n, 1e-4 + (p - 1) * (1e-5 + n / p / 1e9)) for p in (2, 4) for n in (8, 8000)
    ... ]
    >>> fit = fit_collective("all_gather", points)
    >>> f"{fit.launch_s * 1e6:.1f} us + {fit.latency_s * 1e6:.1f} us, {fit.bytes_per_s:.2g} B/s"
    '100.0 us + 10.0 us, 1e+09 B/s'
    """
    rounds = 2 if kind == "all_reduce" else 1
    crowded = [max(1.0, point.ranks / cores) if cores else 1.0 for point in points]
    steps = crowded * np.array([rounds * (point.ranks - 1) for point in points], dtype=np.float64)
    sent = steps * [point.num_bytes / point.ranks for point in points]
    rows = np.stack([np.ones_like(steps), steps, sent], axis=1)
    seconds = np.array([point.seconds for point in points])
    weights = 1 / seconds
    coefficients = np.zeros(3)
    for _ in range(REWEIGHTED):
        coefficients = non_negative(rows * weights[:, None], seconds * weights)
        weights = 1 / np.sqrt(seconds * np.maximum(rows @ coefficients, 1e-9))
    launch, latency, per_byte = map(float, coefficients)
    return Fit(launch, latency, 1 / per_byte if per_byte > 1 / FASTEST else FASTEST, cores)


def non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares under ``x >= 0``, exactly, by trying every set of non-zero unknowns.

    Of equally good solutions, the one with the fewest unknowns. For three unknowns, eight sets.
    """
    count = rows.shape[1]
    best, error = np.zeros(count), float(np.sum(wanted**2))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            columns = rows[:, chosen]
            # Columns of other units by ten orders of magnitude would look dependent.
            scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
            solution, rank = _least_squares(columns / scale, wanted)
            if rank < size or bool((solution < 0).any()):
                continue
            left = float(np.sum((columns / scale @ solution - wanted) ** 2))
            if left < error * (1 - 1e-9):
                error = left
                best = np.zeros(count)
                best[list(chosen)] = solution / scale
    return best


def _least_squares(
    rows: NDArray[np.float64], wanted: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    solved: tuple[Any, ...] = np.linalg.lstsq(rows, wanted, rcond=None)
    return solved[0], int(solved[2])
