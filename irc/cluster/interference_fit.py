"""Fitting a device's table of interference to measured times."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from irc.cluster.fields import invalid
from irc.cluster.interference import KINDS, MOST, Interference
from irc.errors import IrcError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.float64]"

TOGETHER = "together"
MOST_MS = 1e9

ROUNDS = 60
STEP = 1e-4
"""By which a parameter is moved to see what follows."""
LEAST_DAMPING = 1e-9
"""With less, factors that no point tells apart make the equations singular."""


@dataclass(frozen=True)
class Point:
    """A measurement.

    Attributes:
        alone: seconds of each kind of work by itself.
        together: seconds until the last of them ended, all begun at the same time.
    """

    alone: Mapping[str, float]
    together: float


def points_of(path: str) -> list[Point]:
    """Read measurements from a CSV file: a column for each kind, in milliseconds, and `together`.

    Raises:
        IrcError: ``file-missing``; ``cluster-invalid`` with the line that cannot be read.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise IrcError("file-missing", f"cannot read '{path}': {reason}") from error
    points: list[Point] = []
    for number, row in enumerate(rows, 2):
        try:
            points.append(_point(row))
        except (TypeError, ValueError) as error:
            raise invalid(f"{path}:{number}", str(error)) from error
    counts = Counter(frozenset(point.alone) for point in points if len(point.alone) > 1)
    if not counts:
        raise invalid(path, "no line has two kinds of work, and their time together")
    for kinds, count in counts.items():
        if count < len(kinds):
            named = " + ".join(kind for kind in KINDS if kind in kinds)
            raise invalid(
                path, f"{named}: {count} measurements for {len(kinds)} factors; more are needed"
            )
    return points


def _point(row: Mapping[str | None, str]) -> Point:
    if None in row:
        raise ValueError("a value too many: there is no column for it")
    if unknown := [key for key in row if key not in (*KINDS, TOGETHER)]:
        raise ValueError(f"column '{unknown[0]}'; there may be {', '.join((*KINDS, TOGETHER))}")
    ms = {str(key): float(text or 0) for key, text in row.items()}
    together = ms.pop(TOGETHER, 0.0)
    if not all(0 <= value < MOST_MS for value in (*ms.values(), together)) or not together:
        raise ValueError("times are positive, and there is one in column 'together'")
    return Point({key: value / 1e3 for key, value in ms.items() if value}, together / 1e3)


def fitted(points: Sequence[Point]) -> Interference:
    """Return the table whose predictions are nearest to what was measured.

    Each factor is 1 + u^2, and the u are those of the least squares of log(predicted / measured),
    by Levenberg and Marquardt's method (Marquardt 1963). A set of kinds that no point has at any
    time gets no row.

    Args:
        points: some with every set of kinds that is to have a row; those of one kind say nothing.

    >>> truth = Interference.of([{"compute": 1.25, "link": 2.0}])
    >>> sizes = [{"compute": c, "link": n} for c in (1.0, 2.0, 5.0) for n in (0.3, 1.0, 4.0)]
    >>> table = fitted([Point(alone, truth.seconds(alone)) for alone in sizes])
    >>> {kind: round(1 / rate, 3) for kind, rate in table.rates(["compute", "link"]).items()}
    {'compute': 1.25, 'link': 2.0}
    """
    kinds = [kind for kind in KINDS if any(point.alone.get(kind) for point in points)]
    several = [p for p in points if sum(seconds > 0 for seconds in p.alone.values()) > 1]
    alone = np.array([[p.alone.get(kind, 0.0) for kind in kinds] for p in several])
    together = np.array([p.together for p in several])
    sets = _sets_of(alone)
    cells = [(row, column) for row in sets for column in range(len(kinds)) if row >> column & 1]
    if not cells:
        return Interference()

    def factors(u: Numbers) -> Numbers:
        table = np.ones((1 << len(kinds), len(kinds)))
        for (row, column), value in zip(cells, u, strict=True):
            table[row, column] = min(1.0 + value * value, MOST)
        return table

    def gaps(u: Numbers) -> Numbers:
        return np.log(together_of(alone, factors(u)) / together)

    best = factors(_least_squares(gaps, np.full(len(cells), 0.5)))
    return Interference.of(
        {kinds[i]: round(float(best[row, i]), 4) for i in range(len(kinds)) if row >> i & 1}
        for row in sets
    )


def together_of(alone: Numbers, factors: Numbers) -> Numbers:
    """Return when the last of some kinds ends, by point: `Interference.seconds` of many at once.

    Of a set that has no factors, each kind runs as alone: `fitted` has some for all that it meets.

    Args:
        alone: seconds [points, kinds].
        factors: by set of kinds, as bits, and kind: [2 ** kinds, kinds].
    """
    left, now, bits = alone.copy(), np.zeros(len(alone)), _bits(alone)
    for _ in range(alone.shape[1]):
        slow = factors[(left > 0) @ bits]
        ends = np.where(left > 0, left * slow, np.inf)
        step = np.min(ends, axis=1)
        step[np.isinf(step)] = 0.0
        now += step
        ended = ends <= step[:, None] * (1 + 1e-12)
        left = np.where(ended | (left <= 0), 0.0, left - step[:, None] / slow)
    return now


def _bits(alone: Numbers) -> NDArray[np.int64]:
    return np.array([1 << i for i in range(alone.shape[1])], np.int64)


def _sets_of(alone: Numbers) -> list[int]:
    """Return the sets of two kinds and more that run at some time in some point, as bits."""
    rows: list[int] = ((alone > 0) @ _bits(alone)).tolist() if len(alone) else []
    whole = set(rows)
    sets: set[int] = set()
    for row in whole:
        own = [i for i in range(alone.shape[1]) if row >> i & 1]
        for count in range(2, len(own) + 1):
            sets |= {sum(1 << i for i in part) for part in combinations(own, count)}
    return sorted(sets)


def _least_squares(gaps: Callable[[Numbers], Numbers], u: Numbers) -> Numbers:
    damping, own = 1e-2, gaps(u)
    for _ in range(ROUNDS):
        jacobian = np.stack(
            [(gaps(u + STEP * unit) - own) / STEP for unit in np.eye(len(u))], axis=1
        )
        normal, slope = jacobian.T @ jacobian, jacobian.T @ own
        scale = np.diag(np.diag(normal) + 1e-9)
        while damping < 1e9:
            tried = u - np.linalg.solve(normal + damping * scale, slope)
            there = gaps(tried)
            if there @ there < own @ own:
                u, own, damping = tried, there, max(damping / 3, LEAST_DAMPING)
                break
            damping *= 3
        else:
            break
    return u
