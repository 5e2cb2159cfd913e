"""Whether anything is slower than eager: 256 small functions and models, four ways of calling.

Targets (exit status 1 when a row misses one): no row below 0.9 of eager's speed, as the median of
pairs of blocks, unless less than 5 us are lost.

The ways are `irc.compile` and `torch.compile(backend="irc")`, each without gradients and with a
backward pass. What Dynamo's own entry takes is no backend's doing: under `torch.compile` a row's
peer is the slower of eager and `backend="eager"`, which compiles nothing (the column `dynamo`).

All contenders of a case run in one process on the same pool of threads, block after block in turns;
a row that misses is measured again with more and longer blocks before it counts. On a machine that
others use, `--computed` counts the seconds of the calling thread alone. `--inductor` adds a column
of torch.compile. Each case's results are compared with eager's, gradients too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.contenders import Contender, answer
from tests.benchmarks.floor_cases import CASES, FAMILY, QUICK

TARGET = 0.9
LEAST_S = 5e-6
"""What a row may lose however short it is."""
WAYS = ("irc.compile", "irc.compile grad", "irc backend", "irc backend grad")
EAGER, DYNAMO, INDUCTOR = "eager", "dynamo", "inductor"
TOLERANCE, ROUNDING = 2e-3, 1e-4
Row = dict[str, Any]


class Floor(Contender):
    """A worker that measures one case after the other (``case ROUNDS SECONDS NAME``)."""

    script = __file__


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases, fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--only", metavar="GLOB,..", help="cases or families by name, as in 'lstm*'"
    )
    parser.add_argument("--inductor", action="store_true", help="a column of torch.compile too")
    parser.add_argument(
        "--computed",
        action="store_true",
        help="what the calling thread computes, not what passes: one thread, on a busy machine",
    )
    parser.add_argument("--threads", type=int, default=2, help="of each contender's kernels")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each contender")
    args = parser.parse_args()
    globs = args.only.split(",") if args.only else ["*"]
    cases = [
        case for case in (QUICK if args.quick else CASES)
        if any(fnmatchcase(case, g) or fnmatchcase(FAMILY[case], g) for g in globs)
    ]  # fmt: skip
    if not cases:
        parser.error(f"no case or family is called {args.only}")
    rounds, seconds = (5, 0.003) if args.quick else (args.rounds, 0.004)
    rows: list[Row] = []
    print(
        f"{'case':<28}{'way':<18}{'eager us':>10}{'dynamo us':>10}"
        + (f"{'ind. us':>10}" if args.inductor else "")
        + f"{'irc us':>10}{'speed':>8}{'error':>9}"
    )
    name = ("inductor" if args.inductor else "floor") + (" computed" if args.computed else "")
    with Worker(name, 1 if args.computed else args.threads) as worker:
        for case in cases:
            case_rows = worker.ask(f"case {rounds} {seconds} {case}")
            if any(is_slow(row) for row in case_rows):
                case_rows = worker.ask(f"again {3 * rounds} {2 * seconds} {case}")
            rows += case_rows
            show(case_rows, inductor=args.inductor)
    if args.json:
        Path(args.json).write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))
    return _verdict(rows)


class Worker:
    """The worker, started again where a case ends it."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._process: Floor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.close()

    def ask(self, command: str) -> list[Row]:
        """Return the rows of a case."""
        if self._process is None:
            self._process = Floor(self._name, "worker", self._threads)
        try:
            return self._process.ask(command)
        except (RuntimeError, BrokenPipeError) as error:
            self._process.close()
            self._process = None
            case = command.split(maxsplit=3)[3]
            return [{"case": case, "way": "-", "problem": str(error)}]


def is_slow(row: Row) -> bool:
    if "problem" in row:
        return False
    return row["speed"] < TARGET and row["lost"] > LEAST_S


def show(rows: Sequence[Row], *, inductor: bool) -> None:
    for row in rows:
        start = f"{row['case']:<28}{row['way']:<18}"
        if "problem" in row:
            print(start + row["problem"], flush=True)
            continue
        others = (DYNAMO, INDUCTOR) if inductor else (DYNAMO,)
        print(
            start
            + f"{row['eager'] * 1e6:>10.1f}"
            + "".join(f"{row[n] * 1e6:>10.1f}" if n in row else f"{'-':>10}" for n in others)
            + f"{row['irc'] * 1e6:>10.1f}{row['speed']:>8.2f}{row['error']:>9.1e}"
            + ("  SLOW" if is_slow(row) else ""),
            flush=True,
        )


def _verdict(rows: Sequence[Row]) -> int:
    timed = [row for row in rows if "problem" not in row]
    slow = sorted((row for row in timed if is_slow(row)), key=lambda row: row["speed"])
    missed = [f"{row['case']} ({row['way']}) {row['speed']:.2f}" for row in slow]
    missed += [f"{r['case']} is wrong" for r in timed if not r["error"] < TOLERANCE]
    missed += [f"{r['case']} ({r['way']}): {r['problem']}" for r in rows if "problem" in r]
    geomean = exp(sum(log(row["speed"]) for row in timed) / max(len(timed), 1))
    print(
        f"floor: {len(timed) - len(slow)} of {len(timed)} rows of {len({r['case'] for r in rows})}"
        f" cases reach {TARGET} of eager or lose less than {LEAST_S * 1e6:.0f} us,"
        f" geometric mean {geomean:.2f} of eager: "
        + (f"MISSED {'; '.join(missed)}" if missed else "all met")
    )
    return 1 if missed else 0


# The worker.


def _worker(name: str) -> None:
    import torch

    warnings.simplefilter("ignore")
    if name.endswith("computed"):
        _Way.clock = time.thread_time
    ready: dict[str, list[_Way]] = {}
    answer("ready")
    for line in sys.stdin:
        command, rounds, seconds, case = line.strip().split(maxsplit=3)
        if command == "case":
            ready.clear()
            torch.compiler.reset()
            ready[case] = _ways(case, inductor=name.startswith(INDUCTOR))
        answer([way.measured(int(rounds), float(seconds)) for way in ready[case]])


def _ways(case: str, *, inductor: bool) -> list[_Way]:
    return [
        _Way(case, way, inductor=inductor)
        for way in WAYS
        if CASES[case].trains or not way.endswith("grad")
    ]


class _Way:
    """One way of calling a case: what runs it, for each contender.

    Every contender has inputs and a module of its own: some write to them.
    """

    clock: Callable[[], float] = time.perf_counter

    def __init__(self, case: str, way: str, *, inductor: bool) -> None:
        import torch

        import irc

        self.case, self.way = case, way
        self._trains = way.endswith("grad")
        compilers: dict[str, Callable[[Any], Any]] = {EAGER: lambda fn: fn}
        if way.startswith("irc.compile"):
            compilers["irc"] = irc.compile
        else:
            compilers["irc"] = lambda fn: torch.compile(fn, backend="irc")
            compilers[DYNAMO] = lambda fn: torch.compile(fn, backend="eager")
        if inductor:
            compilers[INDUCTOR] = torch.compile
        self._runs: dict[str, Callable[[], Any]] = {}
        self.problem = ""
        for name, compiler in compilers.items():
            torch.manual_seed(0)
            fn, inputs = CASES[case].make()
            try:
                self._runs[name] = self._run_of(compiler(fn), fn, inputs)
            except Exception as error:  # a row of the table says it
                if name == "irc":
                    self.problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        self.error = self._error()

    def _run_of(self, run: Any, fn: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        import torch

        if not self._trains:

            def infer() -> Any:
                with torch.no_grad():
                    return run(*inputs)

            return infer
        leaves = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
        wanted = [x for x in leaves if x.requires_grad]
        if isinstance(fn, torch.nn.Module):
            wanted += [p for p in fn.parameters() if p.requires_grad]
        seeds: list[Any] = []

        def train() -> Any:
            outputs = [y for y in _leaves(run(*leaves)) if y.requires_grad]
            if not seeds:
                # Of ones, much of what comes back through a norm would be rounding alone.
                generator = torch.Generator().manual_seed(0)
                seeds.extend(torch.randn(y.shape, generator=generator).to(y.dtype) for y in outputs)
            return (*outputs, *torch.autograd.grad(outputs, wanted, seeds, allow_unused=True))

        return train

    def _error(self) -> float:
        if self.problem or "random" in self.case or "dropout train" in self.case:
            return 0.0
        wanted, got = (_leaves(self._runs[name]()) for name in (EAGER, "irc"))
        # Zeros but for rounding, as the gradient of a key's bias, are held against the others.
        least = ROUNDING * max((_size(each) for each in wanted), default=0.0)
        pairs = zip(wanted, got, strict=True)
        return max((_distance(a, b, least) for a, b in pairs), default=0.0)

    def measured(self, rounds: int, seconds: float) -> Row:
        """Return the row: seconds of a call of each, and eager's over irc's, pair by pair."""
        row: Row = {"case": self.case, "way": self.way}
        if self.problem:
            return {**row, "problem": self.problem}
        blocks = {name: _calls(run, seconds) for name, run in self._runs.items()}
        times: dict[str, list[float]] = {name: [] for name in self._runs}
        for turn in range(rounds):
            names = list(self._runs)
            for name in names if turn % 2 else reversed(names):
                times[name].append(_block(self._runs[name], blocks[name]))
        peers = times[EAGER]
        if DYNAMO in times:
            peers = [max(pair) for pair in zip(peers, times[DYNAMO], strict=True)]
        pairs = list(zip(peers, times["irc"], strict=True))
        row |= {name: median(samples) for name, samples in times.items()}
        row["speed"] = median(a / b for a, b in pairs)
        row["lost"] = median(b - a for a, b in pairs)
        return {**row, "error": self.error}


def _calls(run: Callable[[], Any], seconds: float) -> int:
    once = min(_block(run, 1) for _ in range(3))
    return max(1, min(1000, int(seconds / once)))


def _block(run: Callable[[], Any], calls: int) -> float:
    clock = _Way.clock
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls


def _leaves(value: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _size(x: Any) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0


def _distance(a: Any, b: Any, least: float) -> float:
    import torch

    if not a.numel():
        return 0.0
    kind = torch.complex128 if a.is_complex() else torch.float64
    return _size(a.detach().to(kind) - b.detach().to(kind)) / max(_size(a), least, 1e-30)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] == "worker":
        _worker(sys.argv[1])
        sys.exit(0)
    sys.exit(main())
