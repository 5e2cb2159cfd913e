"""Prices against published measurements: collectives, what runs at a time, kernels, training runs.

    python -m tests.benchmarks.published [--quick | --parts | --most N] [--jobs N] [--known FILE]
                                         [--json FILE]

Targets (exit status 1 when one is missed):
  collectives     of 64 KiB and more: at least 90 % of the points within 15 %
  interference    mean error on points that the fit has not seen: A100 8 %, L4 12 %
  shipped         mean error of the tables of the presets on all points: the same
  kernels         median error of products, of attention and its gradients, and of layers as the
                  sums of their kernels, each: 10 %, on all points and on those held out
  training runs   median error 5 %, of nine in ten at most 12 %, rank correlation within each table
                  of five rows and more 0.9; what other planners chose (Aceso, Mist): each 8 %
  given times     runs with a vocabulary in slices whose stages' times are published: each 3 %

Every other point is fitted, the rest predicted; of products only the peaks of the 40 GB A100, V100
and L4 are, and of layers nothing. "at peak" is the error where every shape reaches the peak and a
causal mask saves nothing. "longest" and "sum" are the mean errors where nothing slows anything
down, and where only one thing runs at a time. Sources: tests/cost/published_*.json.

Every training run whose row is complete enough is predicted: its model is captured, its
configuration pinned, its step simulated (`tests.benchmarks.published_predict`); why others stay out
is printed. Nothing is fitted to them: "scaled" says what one factor would change that makes the
median of all other sources right. A run takes 3 to 50 s of a core, all of them more than half an
hour: ``--most`` takes some of each table, ``--quick`` one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from irc.cluster import interference_tables
from irc.cluster.interference_fit import Point, fitted
from tests.benchmarks.published_training import report
from tests.cost.published import COLLECTIVES, kernel_ratios, ratios, together

LEAST_BYTES = 64 * 2**10
CLOSE, LEAST_PART = 0.15, 0.9
KERNEL_LIMIT = 0.1
LIMITS = {"A100": 0.08, "L4": 0.12, "V100": None}
DEVICES = {"A100": "a100", "L4": "l4", "V100": "v100-sxm2-32"}


def error(points: Sequence[Point], predicted: Callable[[Point], float]) -> float:
    """Return the mean relative error."""
    return mean(abs(predicted(point) / point.together - 1) for point in points)


def interference(name: str) -> dict[str, float]:
    """Return the figures of a device."""
    points = together(DEVICES[name])
    table, shipped = fitted(points[::2]), getattr(interference_tables, name)
    unseen = points[1::2]
    return {
        "points": len(points),
        "unseen": error(unseen, lambda p: table.seconds(p.alone)),
        "shipped": error(points, lambda p: shipped.seconds(p.alone)),
        "longest": error(unseen, lambda p: max(p.alone.values())),
        "sum": error(unseen, lambda p: sum(p.alone.values())),
    }


def collectives() -> dict[str, dict[str, float]]:
    """Return by cluster how many points there are, how many are close, and the median error."""
    figures: dict[str, dict[str, float]] = {}
    for name in (*dict.fromkeys(row["cluster"] for row in COLLECTIVES), "all"):
        rows = (row for row in COLLECTIVES if name in (row["cluster"], "all"))
        errors = [abs(ratio - 1) for row in rows for ratio in ratios(row, LEAST_BYTES)]
        close = sum(each <= CLOSE for each in errors) / len(errors)
        figures[name] = {"points": len(errors), "close": close, "median": median(errors)}
    return figures


def kernels() -> dict[str, dict[str, float]]:
    """Return by kind how many points there are, and the median errors."""
    plain = kernel_ratios(shaped=False)
    return {
        kind: {
            "points": len(ratios),
            "median": _median_error(ratios),
            "held out": _median_error(ratios[1::2]),
            "at peak": _median_error(plain[kind]),
        }
        for kind, ratios in kernel_ratios().items()
    }


def _median_error(ratios: Sequence[float]) -> float:
    return median(abs(ratio - 1) for ratio in ratios)


def main() -> int:
    """Print the tables; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one training run of each table")
    parser.add_argument("--parts", action="store_true", help="no training runs: it takes seconds")
    parser.add_argument("--most", metavar="N", type=int, help="so many training runs of each table "
                        "at most, evenly spread")  # fmt: skip
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes that predict")
    parser.add_argument("--known", metavar="FILE", help="go on with the predictions in a file that "
                        "an earlier run of the same irc has written")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    figures: dict[str, Any] = {"collectives": collectives(), "interference": {}}
    print(f"{'collectives':<14}{'points':>8}{'within 15 %':>13}{'median error':>14}")
    for name, row in figures["collectives"].items():
        print(f"{name:<14}{row['points']:>8}{row['close']:>13.0%}{row['median']:>14.1%}")
    heads = ("points", "unseen", "limit", "shipped", "longest", "sum")
    print(f"\n{'interference':<14}{''.join(f'{head:>9}' for head in heads)}")
    missed: list[str] = []
    part = figures["collectives"]["all"]["close"]
    if part < LEAST_PART:
        missed.append(f"collectives {part:.0%}")
    for name, limit in LIMITS.items():
        row = figures["interference"][name] = interference(name)
        shown = "-" if limit is None else f"{limit:.0%}"
        cells = [f"{row['points']}", f"{row['unseen']:.1%}", shown]
        cells += [f"{row[key]:.1%}" for key in ("shipped", "longest", "sum")]
        print(f"{name:<14}{''.join(f'{cell:>9}' for cell in cells)}")
        if limit is not None and max(row["unseen"], row["shipped"]) > limit:
            missed.append(f"interference of {name}")
    figures["kernels"] = kernels()
    columns = ("points", "median", "held out", "limit", "at peak")
    print(f"\n{'kernels':<14}{''.join(f'{head:>10}' for head in columns)}")
    for kind, row in figures["kernels"].items():
        cells = [f"{row['points']}", *(f"{row[key]:.1%}" for key in ("median", "held out"))]
        cells += [f"{KERNEL_LIMIT:.0%}", f"{row['at peak']:.1%}"]
        print(f"{kind:<14}{''.join(f'{cell:>10}' for cell in cells)}")
        if max(row["median"], row["held out"]) > KERNEL_LIMIT:
            missed.append(f"kernels: {kind}")
    if not args.parts:
        known = Path(args.known) if args.known else None
        most = 1 if args.quick else args.most
        figures["training"], more = report(most=most, jobs=args.jobs, known=known)
        missed += more
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    unseen = ", ".join(f"{n} {r['unseen']:.1%}" for n, r in figures["interference"].items())
    medians = ", ".join(f"{kind} {r['median']:.1%}" for kind, r in figures["kernels"].items())
    said = f"MISSED {', '.join(missed)}" if missed else "all met"
    limits = ", ".join("-" if limit is None else f"{limit:.0%}" for limit in LIMITS.values())
    print(
        f"published: collectives {part:.0%} ({LEAST_PART:.0%}),"
        f" interference {unseen} ({limits}), kernels {medians} ({KERNEL_LIMIT:.0%}): {said}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
