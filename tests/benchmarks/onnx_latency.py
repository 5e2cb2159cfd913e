"""ONNX files on one CPU device, 2 threads: irc's session against ONNX Runtime's.

    python -m tests.benchmarks.onnx_latency [--models A,B] [--quick] [--json FILE]

Target (exit status 1 when it is missed): no file slower than in ONNX Runtime with all of its
optimisations, and results within 1e-4 of the largest element. The files: those of packages of the
index, with real weights (`tests/models.txt`), and small exports of Hugging Face architectures.

Each session has a process of its own; the other is stopped while one runs. Calls are timed in
blocks that take turns; "speed" is the median, over pairs of neighbouring blocks, of ONNX Runtime's
time over irc's. "load" is the seconds of making the session and of the first call, without
imports and with empty caches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# As a worker this is a script, and its own folder comes first.
sys.path[0] = str(ROOT)

from tests.benchmarks.contenders import Contender  # noqa: E402
from tests.benchmarks.onnx_cases import CASES, prepare  # noqa: E402

NAMES = ("onnxruntime", "irc.onnx")
QUICK = ("ocr-direction", "voice", "bert")
CLOSE = 1e-4


class Session(Contender):
    """A worker that runs a file in one of the two sessions."""

    script = str(Path(__file__).with_name("onnx_worker.py"))


def measure(model: Path, feeds: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the figures of both sessions, and how far apart their results are."""
    setup = json.dumps([str(model), str(feeds)])
    running: dict[str, Session] = {}
    try:
        running = {name: Session(name, setup) for name in NAMES}
        figures: dict[str, Any] = {
            name: {**worker.ask("cold"), "calls": []} for name, worker in running.items()
        }
        with TemporaryDirectory() as folder:
            paths = [f"{folder}/{i}.npz" for i in range(2)]
            for path, worker in zip(paths, running.values(), strict=True):
                worker.ask(f"save {path}")
            figures["error"] = difference(*paths)
        for index in range(rounds):
            # Neither is always the first to find the machine as the other left it.
            for name in NAMES if index % 2 else NAMES[::-1]:
                once = median(running[name].ask("block 3"))
                calls = max(1, min(5000, int(seconds / once)))
                figures[name]["calls"].append(median(running[name].ask(f"block {calls}")))
        for name, worker in running.items():
            figures[name]["memory"] = worker.ask("memory")
        return figures
    finally:
        for worker in running.values():
            worker.close()


def difference(*paths: str) -> float:
    """Return the largest difference of two archives, relative to the largest element."""
    import numpy as np

    with np.load(paths[0]) as wanted, np.load(paths[1]) as outputs:
        assert wanted.files == outputs.files
        return max(
            float(np.abs(outputs[n].astype(float) - wanted[n]).max(initial=0))
            / max(1e-30, float(np.abs(wanted[n].astype(float)).max(initial=0)))
            for n in wanted.files
        )


def row(name: str, figures: dict[str, Any]) -> float:
    """Print a file's row; return how many times as fast as ONNX Runtime irc is."""
    theirs, mine = (figures[each] for each in NAMES)
    speed = median(a / b for a, b in zip(theirs["calls"], mine["calls"], strict=True))
    print(
        f"{name:<17}{median(theirs['calls']) * 1e3:>10.3f}{median(mine['calls']) * 1e3:>10.3f}"
        f"{speed:>8.2f}{theirs['load'] + theirs['first']:>8.2f}{mine['load'] + mine['first']:>8.2f}"
        f"{theirs['memory'] / 2**20:>7.0f}{mine['memory'] / 2**20:>7.0f}{figures['error']:>9.1e}"
        f"  {mine['how']}",
        flush=True,
    )
    return speed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a file is slower, or results differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.onnx_latency",
                                     description=__doc__)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="three files, few rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--models", metavar="A,B", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each session")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a block, about")
    parser.add_argument("--folder", metavar="DIR", help="where exports are kept for later runs")
    parser.add_argument("--prepare", action="store_true", help="only write the files")
    args = parser.parse_args(arguments)
    names = args.models.split(",") if args.models else QUICK if args.quick else CASES
    rounds, seconds = (3, 0.1) if args.quick else (args.rounds, args.seconds)
    every: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        folder = Path(args.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: prepare(name, folder) for name in names}
        if args.prepare:
            return 0
        print(f"{'':<17}{'onnxruntime':>11}{'irc':>9}{'':>8}{'load s':>11}{'':>5}{'MiB':>11}")
        for name, (model, feeds) in files.items():
            every[name] = measure(model, feeds, rounds=rounds, seconds=seconds)
            every[name]["speed"] = row(name, every[name])
    if args.json:
        Path(args.json).write_text(json.dumps(every, indent=1))
    return _verdict(every)


def _verdict(every: dict[str, Any]) -> int:
    missed = [f"{name} {each['speed']:.2f}" for name, each in every.items() if each["speed"] < 1.0]
    missed += [f"{name} differs by {each['error']:.1e}" for name, each in every.items()
               if not each["error"] <= CLOSE]  # fmt: skip
    slowest = min(each["speed"] for each in every.values())
    print(
        f"slowest {slowest:.2f} (target 1.00): "
        + (f"MISSED {'; '.join(missed)}" if missed else "all met")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
