"""Predictions held against published training runs: tables, errors, and why rows stay out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from irc.errors import IrcError
from tests.benchmarks.published_runs import IncompleteError, Run, rows, run_of
from tests.benchmarks.published_times import given_times

MEDIAN, TENTH, RANK = 0.05, 0.12, 0.9
TIMES, PLANS = 0.03, 0.08
PLANNERS = ("aceso_mist", "mist25")
"""Sources whose runs are what another planner chose."""
LEAST_RANKED = 5
"""Tables of fewer rows have no correlation that says anything."""


@dataclass(frozen=True)
class Predicted:
    """A row, with what was measured and what irc says."""

    id: str
    source: str
    table: str
    measured_s: float
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return abs(self.ratio - 1)


def complete(most: int | None = None) -> tuple[list[Run], Counter[tuple[str, str]]]:
    """Return the runs that can be predicted, and how many rows stay out, by source and reason.

    Args:
        most: so many rows of each table, evenly spread; None: all.
    """
    runs: list[Run] = []
    out: Counter[tuple[str, str]] = Counter()
    for row in rows():
        try:
            runs.append(run_of(row))
        except IncompleteError as error:
            out[row["source"], str(error)] += 1
    tables: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        tables.setdefault((run.source, run.table), []).append(run)
    return [run for own in tables.values() for run in spread(own, most)], out


def spread(runs: Sequence[Run], most: int | None) -> list[Run]:
    """Return some of the runs, the first and the last among them; of one, the soonest simulated."""
    if most is None or len(runs) <= most:
        return list(runs)
    if most == 1:
        return [min(runs, key=lambda run: run.pipe * run.micro_batches)]
    return [runs[i * (len(runs) - 1) // (most - 1)] for i in range(most)]


def by_blocks(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the runs in groups that share the pieces of their model."""
    from tests.benchmarks.published_predict import block_key

    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(block_key(run), []).append(run)
    return list(groups.values())


def predicted(group: Sequence[Run]) -> list[tuple[Run, float | str]]:
    """Return the seconds of each run of a group, or the error that it has."""
    from tests.benchmarks.published_predict import Predictor

    predictor = Predictor()
    said: list[tuple[Run, float | str]] = []
    for run in group:
        try:
            said.append((run, predictor.step_s(run)))
        except IrcError as error:
            said.append((run, f"{error.code}: {error.message}"))
    return said


def predictions(
    runs: Sequence[Run], jobs: int, known: Path | None
) -> tuple[list[Predicted], list[tuple[str, str]]]:
    """Return what irc says of runs, and what it refuses.

    Args:
        runs: complete ones.
        jobs: processes.
        known: a file of predictions that an earlier run of the same irc has written, and that is
            written again with what is new; None: everything is predicted.
    """
    seconds: dict[str, float] = {}
    if known is not None and known.exists():
        seconds = json.loads(known.read_text(encoding="utf-8"))
    refused: list[tuple[str, str]] = []
    groups = by_blocks(run for run in runs if run.id not in seconds)
    for number, said in enumerate(_in_processes(predicted, groups, jobs)):
        for run, answer in said:
            if isinstance(answer, str):
                refused.append((run.id, answer))
            else:
                seconds[run.id] = answer
        if known is not None:
            known.write_text(json.dumps(seconds), encoding="utf-8")
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(groups)}", end="", file=sys.stderr, flush=True)
    own = [Predicted(r.id, r.source, r.table, r.step_s, seconds[r.id])
           for r in runs if r.id in seconds]  # fmt: skip
    return own, refused


def _in_processes(
    function: Callable[[Sequence[Run]], list[tuple[Run, float | str]]],
    groups: Sequence[Sequence[Run]],
    jobs: int,
) -> Iterable[list[tuple[Run, float | str]]]:
    if jobs < 2 or len(groups) < 2:
        yield from map(function, groups)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, groups)


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's: Pearson's of the ranks, ties at their mean.

    >>> rank_correlation([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)])
    0.5
    """
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    shared = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    spread = [sum((a - middle) ** 2 for a in own) for own in (first, second)]
    return shared / (spread[0] * spread[1]) ** 0.5 if all(spread) else 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(order)))}
    counts = Counter(order)
    return [first[value] + (counts[value] - 1) / 2 for value in values]


def figures_of(own: Sequence[Predicted]) -> dict[str, float]:
    """Return how many predictions there are, and how good they are."""
    errors = sorted(each.error for each in own)
    return {
        "rows": len(own),
        "median": median(errors),
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "bias": median(each.ratio for each in own) - 1,
        "rank": rank_correlation([(each.measured_s, each.predicted_s) for each in own]),
    }


def report(*, most: int | None, jobs: int, known: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Print the tables; return the figures, and which targets are missed."""
    runs, out = complete(most)
    own, refused = predictions(runs, jobs, known)
    missed: list[str] = []
    print(f"\n{'training runs':<62}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}{'rank':>7}")
    figures: dict[str, Any] = {}
    tables = list(dict.fromkeys((each.source, each.table) for each in own))
    for table in tables:
        rows_ = [each for each in own if (each.source, each.table) == table]
        figures[" ".join(table)] = row = figures_of(rows_)
        _print(" ".join(table), row)
        if len(rows_) >= LEAST_RANKED and row["rank"] < RANK:
            missed.append(f"rank correlation of {' '.join(table)} {row['rank']:.2f}")
    whole = [each for each in own if each.source not in PLANNERS]
    if whole:
        figures["all"] = row = figures_of(whole)
        _print("all but those of planners", row)
        if row["median"] > MEDIAN or row["p90"] > TENTH:
            missed.append(f"training runs {row['median']:.1%}, p90 {row['p90']:.1%}")
    plans = [each for each in own if each.source in PLANNERS]
    if plans and (worst := max(each.error for each in plans)) > PLANS:
        missed.append(f"plans of planners {worst:.1%}")
    figures["left out"] = _leave_one_out(whole)
    figures["times"] = _times(missed)
    print("\nrows that stay out")
    for (source, reason), count in sorted(out.items()):
        print(f"  {count:>4}  {source:<16}{reason}")
    for name, why in refused:
        print(f"     1  {name:<16}refused: {why}")
    figures["refused"] = dict(refused)
    figures["runs"] = {each.id: [each.measured_s, each.predicted_s] for each in own}
    return figures, missed


def _print(name: str, row: dict[str, float]) -> None:
    cells = (f"{row[key]:.1%}" for key in ("median", "p90"))
    print(
        f"{name:<62}{row['rows']:>6}{''.join(f'{c:>9}' for c in cells)}{row['bias']:>+9.1%}"
        f"{row['rank']:>7.2f}"
    )


def _leave_one_out(own: Sequence[Predicted]) -> dict[str, float]:
    """Print the errors of each source where all are scaled by what the other sources say."""
    figures: dict[str, float] = {}
    for source in dict.fromkeys(each.source for each in own):
        others = [each.ratio for each in own if each.source != source]
        if others:
            scale = median(others)
            mine = [abs(each.ratio / scale - 1) for each in own if each.source == source]
            figures[source] = median(mine)
    if figures:
        said = ", ".join(f"{name} {error:.1%}" for name, error in figures.items())
        print(f"median errors, scaled by the median of all other sources: {said}")
    return figures


def _times(missed: list[str]) -> dict[str, dict[str, float]]:
    """Print what the simulator says of stages whose times are given."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for row in rows():
        if (pair := given_times(row)) is not None:
            by_source.setdefault(row["source"], []).append(pair)
    figures: dict[str, dict[str, float]] = {}
    print(f"\n{'given the times of stages':<62}{'rows':>6}{'median':>9}{'worst':>9}{'bias':>9}")
    for source, pairs in by_source.items():
        ratios = [simulated / measured for simulated, measured in pairs]
        errors = [abs(ratio - 1) for ratio in ratios]
        row = {"rows": len(pairs), "median": median(errors), "worst": max(errors),
               "bias": median(ratios) - 1}  # fmt: skip
        figures[source] = row
        print(
            f"{source:<62}{row['rows']:>6}{row['median']:>9.1%}{row['worst']:>9.1%}"
            f"{row['bias']:>+9.1%}"
        )
        limit = {"vocabpar24": TIMES}.get(source)
        if limit is not None and row["worst"] > limit:
            missed.append(f"runs of {source} with given times {row['worst']:.1%}")
    return figures
