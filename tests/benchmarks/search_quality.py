"""irc's own plans against what people tuned by hand, and against other planners' plans.

    python -m tests.benchmarks.search_quality [--quick] [--only TEXT] [--most N] [--every]
                                              [--explain] [--jobs N] [--known FILE] [--json FILE]

Targets (exit status 1 when one is missed), for the same model, cluster, batch and memory:
  every configuration that was tuned by hand    irc's plan takes no longer, as simulated
  Mist's and Aceso's plans                      the same
  what an expert would call wrong               in no plan: matrices or sequences divided over
                                                nodes, a batch that no micro-batches have, stages
                                                without a layer, heads that do not divide

The rows are those of ``tests/cost/published_runs.json`` that say what ran, and the configurations
of Llama 3's paper; of one model, cluster and batch the fastest that was run is held against the
plan, with ``--every`` all that were. The search is not told of them. Both sides have irc's own
kernels, prices and simulator, the precision and the optimiser of the row, and all of a device's
memory; "*" marks what was stated where irc counts more than that (what was moved to the host counts
too): both may then hold as much. "gain" is the stated step over the plan's. "pieces" marks steps
that were put together from pieces of the model on both sides: no configuration says of stages that
they compute different layers again. "bf16 for fp8" and the like say what stands in on both sides.

Behind the table, for Megatron's configurations and those of Llama 3 (with ``--explain`` for all),
the difference is explained line by line: what each decision is worth, in seconds of a step.

A case has a process of its own, which takes half a minute to three minutes of two cores, and all of
them hours: ``--most`` takes some of each table, evenly spread, ``--known`` goes on where an earlier
run of the same irc ended, ``--quick`` is one case of two devices (70 s of a core).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.search_cases import OF_PLANNERS, Case, cases  # noqa: E402

QUICK = "mist25-001"
"""A case of two devices."""
ROUNDING = 1e-9
"""Steps of one plan, simulated twice, are alike to so much."""
Figures: TypeAlias = dict[str, Any]


def chosen_cases(*, only: str, most: int | None, quick: bool) -> list[Case]:
    """Return the cases that are asked for.

    Args:
        only: a text that the case, its source or its table has.
        most: so many of each table, evenly spread, the first and the last among them.
        quick: one case alone.
    """
    every = cases()
    if quick:
        return [case for case in every if case.name == QUICK]
    named = [case for case in every if only.lower() in _words(case)]
    if most is None:
        return named
    tables: dict[tuple[str, str], list[Case]] = {}
    for case in named:
        tables.setdefault((case.run.source, case.run.table), []).append(case)
    return [case for own in tables.values() for case in spread(own, most)]


def _words(case: Case) -> str:
    return f"{case} {case.run.source} {case.run.table}".lower()


def spread(own: Sequence[Case], most: int) -> list[Case]:
    """Return so many cases at most, the first and the last among them; of one, the first."""
    if len(own) <= most:
        return list(own)
    return [own[i * (len(own) - 1) // max(1, most - 1)] for i in range(most)]


def run_case(name: str, *, explains: bool, every: bool) -> Figures:
    """Search a case in this process."""
    from tests.benchmarks.search_judged import answered

    case = next(case for case in cases() if case.name == name)
    return asdict(answered(case, explains=explains, every=every))


def in_process(case: Case, *, explains: bool, every: bool) -> Figures:
    """Search a case in a process of its own; what ends it otherwise is an error of the case."""
    words = json.dumps({"name": case.name, "explains": explains, "every": every})
    command = [sys.executable, __file__, "--case", words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    last = (ended.stderr.strip().splitlines() or ["nothing was said"])[-1]
    return {"error": f"ended with {ended.returncode}: {last}"}


def answers(
    own: Sequence[Case], jobs: int, known: Path | None, *, explains: bool, every: bool
) -> Iterator[tuple[Case, Figures]]:
    """Yield the figures of cases in order; what a file has is not searched again."""
    figures: dict[str, Figures] = {}
    if known is not None and known.exists():
        figures = json.loads(known.read_text(encoding="utf-8"))

    def answer(case: Case) -> Figures:
        if case.name in figures:
            return figures[case.name]
        return in_process(case, explains=explains or case.is_explained, every=every)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for case, said in zip(own, pool.map(answer, own), strict=True):
            figures[case.name] = said
            if known is not None:
                known.write_text(json.dumps(figures), encoding="utf-8")
            yield case, said


def gain(said: Figures) -> float:
    """Return the step of what was stated over that of what was chosen."""
    return said["stated_s"] / said["chosen_s"]


def missed_by(case: Case, said: Figures) -> list[str]:
    """Return the targets that a case misses."""
    if error := said.get("error"):
        return [f"{case.name}: {error}"]
    missed: list[str] = []
    if gain(said) < 1 - ROUNDING:
        missed.append(f"{case.name}: {1 / gain(said) - 1:.1%} slower")
    if said["wrong"]:
        missed.append(f"{case.name}: {said['wrong']}")
    return missed


def geometric_mean(own: Sequence[float]) -> float:
    """Return the geometric mean; 1 of nothing.

    >>> geometric_mean([2.0, 8.0])
    4.0
    """
    return exp(sum(map(log, own)) / len(own)) if own else 1.0


def head() -> str:
    """Return the head of the table."""
    return (
        f"{'case':<54}{'stated s':>10}{'irc s':>10}{'gain':>7}{'GB':>7}{'irc GB':>8}"
        f"{'search s':>10}  {'wrong':<8}  stated -> chosen"
    )


def row(case: Case, said: Figures) -> str:
    """Return the line of a case."""
    if error := said.get("error"):
        return f"{case!s:<54}{'':>52}  {'':<8}  {said.get('stated', '')}: {error}"
    stars = "" if said["fits"] else "*"
    notes = [*case.stated[0].notes, *(["pieces"] if said["by_pieces"] else [])]
    told = f"  ({', '.join(notes)})" if notes else ""
    return (
        f"{case!s:<54}{said['stated_s']:>10.4g}{said['chosen_s']:>10.4g}{gain(said):>7.3f}"
        f"{said['stated_gb']:>6.1f}{stars or ' '}{said['chosen_gb']:>8.1f}{said['search_s']:>10.0f}"
        f"  {said['wrong'] or 'nothing':<8}  {said['stated']} -> {said['chosen']}{told}"
    )


def explained(case: Case, said: Figures) -> Iterator[str]:
    """Yield the lines of a difference, decision by decision."""
    if not said.get("lines"):
        return
    yield (
        f"\n{case}: {said['stated']}, {said['stated_s']:.4g} s"
        f" -> {said['chosen']}, {said['chosen_s']:.4g} s"
    )
    yield f"  {'step s':>10}{'compute':>10}{'waiting':>10}{'bare':>10}{'GB':>7}  decision"
    for line in said["lines"]:
        cells = (line[key] for key in ("step_s", "compute_s", "bubble_s", "exposed_s"))
        yield (
            f"  {''.join(f'{cell:>+10.4f}' for cell in cells)}{line['num_gb']:>7.1f}"
            f"  {line['what']}: {line['before']} -> {line['after']}"
        )


def last_line(figures: Sequence[tuple[Case, Figures]], missed: Sequence[str]) -> str:
    """Return the line of figures: how many cases, gains of hands and planners, what is missed."""
    parts: list[str] = []
    for name, is_planner in (("tuned by hand", False), ("of planners", True)):
        own = [
            gain(said)
            for case, said in figures
            if not said.get("error") and (case.run.source in OF_PLANNERS) == is_planner
        ]
        if own:
            parts.append(
                f"{len(own)} {name}: gain {geometric_mean(own):.3f} in the geometric mean,"
                f" {min(own):.3f} at least"
            )
    verdict = f"MISSED {'; '.join(missed)}" if missed else "all met"
    return f"search quality: {'; '.join(parts) or 'no case'}: {verdict}"


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one case of two devices")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose line, source or "
                        "table has the text")  # fmt: skip
    parser.add_argument("--most", metavar="N", type=int, help="so many cases of each table at most")
    parser.add_argument("--every", action="store_true", help="all that was run of a case, not the "
                        "fastest alone")  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="every difference, line by line")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="cases at a time")
    parser.add_argument("--known", metavar="FILE", help="go on with the figures in a file that an "
                        "earlier run of the same irc has written")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(**json.loads(args.case))))
        return 0
    own = chosen_cases(only=args.only, most=args.most, quick=args.quick)
    known = Path(args.known) if args.known else None
    figures: list[tuple[Case, Figures]] = []
    print(head())
    for case, said in answers(own, args.jobs, known, explains=args.explain, every=args.every):
        print(row(case, said), flush=True)
        figures.append((case, said))
    for case, said in figures:
        for line in explained(case, said):
            print(line)
    missed = [each for case, said in figures for each in missed_by(case, said)]
    if not figures:
        missed.append("no case is named so")
    if args.json:
        data = {"missed": missed, "figures": {case.name: said for case, said in figures}}
        Path(args.json).write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(last_line(figures, missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
