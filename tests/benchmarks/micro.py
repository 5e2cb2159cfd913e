"""Single kernels on one CPU device, against what the machine can do: irc and eager, by case.

Targets (exit status 1 when a row misses one and no reason is known), float32, 2 threads:
  every row        at least 80 % of its bound
The bound of a row is max(arithmetic / peak, time of the bytes): multiply-adds of matmuls against
the peak in registers, and the bytes of inputs, weights and results: what is written, and as much
reading, at the speed of a copy, the rest at the speed of reading. Peak, copying and reading are
measured in every round, right after irc's block. Odd sizes are rows of their own.

Each contender has a process of its own; the others are stopped while one runs. Calls are timed in
rounds, a block of each contender per round; the table has the medians of blocks and of bounds.
Where a row falls short for a reason that is known (:data:`REASONS`), the row says it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from fnmatch import fnmatchcase
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.contenders import Contender, answer
from tests.benchmarks.machine import Machine
from tests.benchmarks.micro_cases import CASES, QUICK

NAMES = ("eager", "irc.compile")
OURS = "irc.compile"
TARGET = 0.8
REASONS: dict[str, str] = {
    "gelu-bias*": "arithmetic: 40 vector instructions for 16 elements, as long in the cache",
    "softmax *x31": "arithmetic: two sums across lanes for two vectors, as long in the cache",
}
"""Why a row may fall short, by a glob on its name."""


class Kernels(Contender):
    """A worker that runs one case after the other (``case NAME``, ``block N``)."""

    script = __file__


def measure(
    names: tuple[str, ...], cases: list[str], machine: Machine, rounds: int, seconds: float
) -> dict[str, Any]:
    """Return the figures of each case and contender, and of the machine's rounds (``machine``).

    Args:
        names: contenders.
        cases: of :data:`CASES`.
        machine: what is measured beside them.
        rounds: blocks of each.
        seconds: how long a block takes, about.
    """
    workers = {name: Kernels(name, "micro") for name in names}
    figures: dict[str, Any] = {}
    try:
        for case in cases:
            rows = {name: {**worker.ask(f"case {case}"), "calls": []}
                    for name, worker in workers.items()}  # fmt: skip
            for _ in range(rounds):
                for name, worker in workers.items():
                    once = median(worker.ask("block 2"))
                    calls = max(2, min(500, int(seconds / once)))
                    rows[name]["calls"].append(median(worker.ask(f"block {calls}")))
                    if name == OURS:
                        machine.measure()
            figures[case] = {"machine": machine.rounds[-rounds:], "contenders": rows}
    finally:
        for worker in workers.values():
            worker.close()
    return figures


def bound_s(work: dict[str, float], peak: float, read: float, copy: float) -> float:
    """Return the least seconds of a case on a machine (see the top).

    >>> bound_s({"flops": 0, "in": 2e9, "out": 1e9}, peak=1e12, read=1e10, copy=2e10)
    0.2
    """
    paired = min(work["in"], work["out"])
    left = work["in"] + work["out"] - 2 * paired
    return max(work["flops"] / peak, 2 * paired / copy + left / read)


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four cases, fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--only", metavar="GLOB,..", help="cases by name, as in 'softmax*,linear 1x*'"
    )
    parser.add_argument("--inductor", action="store_true", help="a column of torch.compile too")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each contender")
    args = parser.parse_args()
    globs = args.only.split(",") if args.only else ["*"]
    cases = [c for c in (QUICK if args.quick else CASES) if any(fnmatchcase(c, g) for g in globs)]
    names = (*NAMES, "inductor") if args.inductor else NAMES
    rounds, seconds = (3, 0.1) if args.quick else (args.rounds, 0.15)
    machine = Machine()
    try:
        case_figures = measure(names, cases, machine, rounds, seconds)
    finally:
        machine.close()
    print(machine.describe())
    print(
        f"{'case':<28}{'bound ms':>9}"
        + "".join(f"{f'{n} ms':>16}" for n in names)
        + f"{'of bound':>10}{'speed':>7}{'error':>9}"
    )
    rows = {case: _row(case, **case_figures[case]) for case in cases}
    if args.json:
        figures = {"cores": os.cpu_count(), "cases": case_figures}
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return _verdict(rows)


def _row(
    case: str, machine: list[dict[str, float]], contenders: dict[str, Any]
) -> dict[str, float]:
    """Print a row; return its share of the bound, its speed against the best peer, its error."""
    calls = {name: median(row["calls"]) for name, row in contenders.items()}
    ours, own = calls[OURS], contenders[OURS]
    bound = median(bound_s(own["work"], **rates) for rates in machine)
    share, speed = bound / ours, min(v for n, v in calls.items() if n != OURS) / ours
    reason = next((text for glob, text in REASONS.items() if fnmatchcase(case, glob)), "")
    print(
        f"{case:<28}{bound * 1e3:>9.3f}"
        + "".join(f"{v * 1e3:>16.3f}" for v in calls.values())
        + f"{share:>10.0%}{speed:>7.2f}{own['error']:>9.1e}"
        + (f"  {reason}" if share < TARGET and reason else "")
    )
    return {"share": share, "speed": speed, "error": own["error"], "known": bool(reason)}


def _verdict(rows: dict[str, dict[str, float]]) -> int:
    short = {case: row for case, row in rows.items() if row["share"] < TARGET}
    missed = [f"{case} {row['share']:.0%}" for case, row in short.items() if not row["known"]]
    missed += [f"{case} is wrong" for case, row in rows.items() if not row["error"] < 1e-4]
    geomean = exp(sum(log(row["speed"]) for row in rows.values()) / max(len(rows), 1))
    print(
        f"micro: {len(rows) - len(short)} of {len(rows)} rows reach {TARGET:.0%} of their bound,"
        f" {sum(bool(row['known']) for row in short.values())} fall short for a known reason,"
        f" geometric mean {geomean:.2f} of the best peer: "
        + (f"MISSED {'; '.join(missed)}" if missed else "all met")
    )
    return 1 if missed else 0


def _worker(name: str) -> None:
    import torch

    from tests.benchmarks.runners import RUNNERS, import_for

    import_for(name)
    run: Any = None
    inputs: tuple[Any, ...] = ()
    answer("ready")
    with torch.no_grad():
        for line in sys.stdin:
            command, _, rest = line.strip().partition(" ")
            if command == "case":
                module, inputs = CASES[rest].make()
                torch.compiler.reset()
                run = RUNNERS[name](module, inputs)
                answer(_figures(rest, run, module, inputs))
            elif command == "block":
                times: list[float] = []
                for _ in range(int(rest)):
                    start = time.perf_counter()
                    run(*inputs)
                    times.append(time.perf_counter() - start)
                answer(times)


def _figures(case: str, run: Any, module: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Return the error against eager, and the work that cannot be avoided."""
    wanted, got = module(*inputs), run(*inputs)
    pairs = list(zip(_tuple(wanted), _tuple(got), strict=True))
    error = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    read = sum(x.nbytes for x in (*inputs, *module.parameters()))
    written = sum(a.nbytes for a, _ in pairs)
    return {"error": error, "work": {"flops": CASES[case].flops, "in": read, "out": written}}


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] == "micro":
        _worker(sys.argv[1])
        sys.exit(0)
    sys.exit(main())
