"""Runs Inductor's own CPU tests on irc: ``python -m tests.inductor_suite FOLDER [--dynamic]``.

FOLDER is a source tree of PyTorch (its release archive, or a distribution's source package), of
which ``test/inductor/test_torchinductor.py`` is read; none of its text is part of this project.
Each test runs twice if need be: with irc where it asks for Inductor, and, where that fails, with
the captured graph run as it is (the control). A test that the control fails on the same line is
about Inductor itself (it reads generated code, counts Inductor's kernels, wants its random stream)
or about another version of PyTorch; every other failure is irc's.

Exits with 1 where a test is irc's failure and ``expected.py`` does not know it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import unittest
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.inductor_suite import expected
from tests.inductor_suite.suite import load, run_test, test_names
from tests.opinfo.ways import Way
from tests.opinfo.workers import Task, results

MEMORY = 16 << 30
"""Bytes that a test may take: the largest adds two tensors of 4 GiB."""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(
        prog="python -m tests.inductor_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("folder", type=Path, help="a source tree of PyTorch")
    options.add_argument("--dynamic", action="store_true", help="the file of dynamic shapes")
    options.add_argument("--only", action="append", help="a test, or the beginning of names with *")
    options.add_argument("--shard", default="0/1", help="i/n: every n-th test, from the i-th")
    options.add_argument("--seconds", type=float, default=240, help="that a test may take")
    options.add_argument("--workers", type=int, default=1, help="tests at a time")
    options.add_argument("--json", type=Path, help="writes all outcomes there")
    return options


def main() -> int:
    """Run."""
    # What is tried is irc, also where torch is faster.
    os.environ["IRC_FIRST_TIMING"] = "off"
    options = parser().parse_args()
    suite = load(options.folder, dynamic=options.dynamic)
    names = test_names(suite)
    if options.only:
        names = [name for name in names if any(_fits(name, each) for each in options.only)]
    index, of = map(int, options.shard.split("/"))
    names = names[index::of]
    table: dict[str, dict[str, Any]] = {}
    batches = [[Task(name, Way())] for name in names]
    for task, outcomes, error in results(
        batches,
        partial(_work, suite),
        seconds=options.seconds,
        workers=options.workers,
        memory=MEMORY,
    ):
        name = task.name
        outcome = outcomes[-1] if outcomes else {"verdict": "failing", "reason": error}
        if error:
            outcome = {"verdict": "failing", "reason": error}
        if outcome["verdict"] == "failing" and (known := expected.reason(name)):
            outcome = {**outcome, "verdict": "expected", "known": known}
        table[name] = outcome
        if outcome["verdict"] not in ("ok", "skipped"):
            print(f"{name:70} {outcome['verdict']:9} {outcome.get('reason', '')}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
    counts = Counter(outcome["verdict"] for outcome in table.values())
    print(
        f"inductor suite{' dynamic' if options.dynamic else ''}: {len(table)} tests: "
        f"{counts['ok']} ok, {counts['skipped']} skipped by the suite, "
        f"{counts['control']} about Inductor or another PyTorch, "
        f"{counts['expected']} expected to differ, {counts['failing']} failing"
    )
    return int(counts["failing"] > 0)


def _work(suite: type[unittest.TestCase], task: Task) -> Iterator[dict[str, str]]:
    return run_test(suite, task.name)


def _fits(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


if __name__ == "__main__":
    sys.exit(main())
