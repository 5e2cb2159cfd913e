"""Recurrent nets on one CPU device: ONNX files against ONNX Runtime, modules against eager.

    python -m tests.benchmarks.recurrent [--only A,B] [--quick] [--json FILE]

Targets (exit status 1 when a row misses one):

- no ONNX file slower than in ONNX Runtime with all of its optimisations on as many threads, by more
  than 5 % or 5 us, and results within 1e-3 of the largest element (a file in 8 bits: 5e-2);
- no LSTM, GRU or RNN of PyTorch, inference or training, below 0.95 of eager's speed, unless less
  than 5 us are lost.

The files are those of `tests.benchmarks.recurrent_cases`; one whose package is not installed is
named in the last line. They are timed as by `onnx_latency`, block after block in turns, each
session in a process of its own; times are the least of the blocks' medians, so that a busy machine
changes little. The modules are the family `recurrent` of `floor`, called in its four ways.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.floor import LEAST_S, TOLERANCE, Worker, show  # noqa: E402
from tests.benchmarks.floor_layers import RECURRENT  # noqa: E402
from tests.benchmarks.onnx_latency import NAMES, measure  # noqa: E402
from tests.benchmarks.recurrent_cases import CASES, prepare  # noqa: E402

TARGET = 0.95
CLOSE, CLOSE_BYTES = 1e-3, 5e-2
IN_BYTES = ("ddddocr old",)
QUICK = ("silero sequence", "LSTM small", "GRU medium", "lstm 64 4x20", "gru 64 4x20")
Row = dict[str, Any]


def files(names: Sequence[str], *, rounds: int, seconds: float) -> list[Row]:
    """Measure ONNX files in both sessions, print their rows and return them."""
    rows: list[Row] = []
    if names:
        print(f"{'ONNX file':<28}{'ort us':>10}{'irc us':>10}{'speed':>8}{'load s':>8}{'error':>9}")
    with TemporaryDirectory() as scratch:
        for name in names:
            row: Row = {"case": name, "way": "onnx"}
            rows.append(row)
            case = prepare(name, Path(scratch))
            if case is None:
                row["absent"] = True
                continue
            try:
                figures = measure(*case, rounds=rounds, seconds=seconds)
            except RuntimeError as error:  # a worker ended: a row of the table says it
                row["problem"] = str(error)
                print(f"{name:<28}{error}", flush=True)
                continue
            theirs, mine = (min(figures[each]["calls"]) for each in NAMES)
            load = figures["irc.onnx"]["load"] + figures["irc.onnx"]["first"]
            row |= {"peer": theirs, "irc": mine, "speed": theirs / mine, "lost": mine - theirs,
                    "load": load, "error": figures["error"]}  # fmt: skip
            print(
                f"{name:<28}{theirs * 1e6:>10.1f}{mine * 1e6:>10.1f}{row['speed']:>8.2f}"
                f"{load:>8.2f}{row['error']:>9.1e}  {figures['irc.onnx']['how']}"
                + ("  SLOW" if _slow(row) else ""),
                flush=True,
            )
    return rows


def modules(names: Sequence[str], *, rounds: int, seconds: float) -> list[Row]:
    """Measure modules in the four ways of `floor`, print their rows and return them."""
    rows: list[Row] = []
    if not names:
        return rows
    print(
        f"{'module':<28}{'way':<18}{'eager us':>10}{'dynamo us':>10}{'irc us':>10}{'speed':>8}"
        f"{'error':>9}"
    )
    with Worker("floor", 2) as worker:
        for name in names:
            measured = worker.ask(f"case {rounds} {seconds} {name}")
            if any(_slow(row) for row in measured):
                measured = worker.ask(f"again {3 * rounds} {2 * seconds} {name}")
            show(measured, inductor=False)
            rows += measured
    return rows


def _slow(row: Row) -> bool:
    return "speed" in row and row["speed"] < TARGET and row["lost"] > LEAST_S


def _wrong(row: Row) -> bool:
    if "speed" not in row:
        return False
    close = CLOSE if row["way"] == "onnx" else TOLERANCE
    return not row["error"] <= (CLOSE_BYTES if row["case"] in IN_BYTES else close)


def _verdict(rows: Sequence[Row]) -> int:
    timed = [row for row in rows if "speed" in row]
    slow = sorted((row for row in timed if _slow(row)), key=lambda row: row["speed"])
    missed = [f"{row['case']} ({row['way']}) {row['speed']:.2f}" for row in slow]
    missed += [f"{row['case']} differs by {row['error']:.1e}" for row in timed if _wrong(row)]
    missed += [f"{row['case']}: {row['problem']}" for row in rows if "problem" in row]
    absent = [row["case"] for row in rows if "absent" in row]
    least = min((row["speed"] for row in timed), default=0.0)
    print(
        f"recurrent: {len(timed) - len(slow)} of {len(timed)} rows reach {TARGET} of their peer's"
        f" speed or lose less than {LEAST_S * 1e6:.0f} us, slowest {least:.2f}"
        + (f", not installed: {', '.join(absent)}" if absent else "")
        + (f": MISSED {'; '.join(missed)}" if missed else ": all met")
    )
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recurrent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="GLOB,..", help="files and modules, as in 'GRU*,gru*'")
    parser.add_argument("--quick", action="store_true", help="five cases, few rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args(arguments)
    globs = args.only.split(",") if args.only else ["*"]
    names = [name for name in (QUICK if args.quick else (*CASES, *RECURRENT))
             if any(fnmatchcase(name, each) for each in globs)]  # fmt: skip
    if not names:
        parser.error(f"nothing is called {args.only!r}: {', '.join((*CASES, *RECURRENT))}")
    rounds = 3 if args.quick else 9
    rows = files([n for n in names if n in CASES], rounds=rounds, seconds=0.1)
    rows += modules([n for n in names if n in RECURRENT], rounds=rounds, seconds=0.004)
    if args.json:
        Path(args.json).write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1))
    return _verdict(rows)


if __name__ == "__main__":
    sys.exit(main())
