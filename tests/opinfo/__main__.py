"""Tries PyTorch's operators: ``python -m tests.opinfo [--dtype NAME] [--backward] [--only NAME]``.

Tries its modules with ``--modules``, and with ``--refusals`` calls that eager refuses. Exits with
1 where one fails, or where torch's capture leaves one that is not known to be left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.opinfo import modules, refusals, report
from tests.opinfo.entries import names_of, part, shard
from tests.opinfo.trial import FAILING, Outcome, try_entry
from tests.opinfo.ways import COMPILER_NAMES, DTYPES, Way, ways
from tests.opinfo.workers import Task, results

WARM = ("add", "addmm", "sum")
"""Entries that are tried before any process parts, which inherits what is loaded then."""


@dataclass(frozen=True)
class Register:
    """What is tried: the dtypes, the names for a way, and the trial of one."""

    dtypes: tuple[str, ...]
    names: Callable[[Way], list[str]]
    tried: Callable[[str, Way, int | None], Iterator[Outcome]]


OPERATORS = Register(DTYPES, names_of, try_entry)
MODULES = Register(modules.DTYPES, modules.names_of, modules.try_module)
REFUSALS = Register(refusals.DTYPES, refusals.names_of, refusals.try_refusals)


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    say = options.add_argument
    say("--dtype", action="append", help="a dtype, some with commas, or all; default float32")
    say("--through", default="torch.compile", choices=(*COMPILER_NAMES, "all"))
    say("--backward", action="store_true", help="gradients, in place of the results alone")
    say("--forward", action="store_true", help="without gradients; with --backward both")
    say("--modules", action="store_true", help="torch's modules, in place of its operators")
    say("--refusals", action="store_true", help="calls that eager refuses, in place of samples")
    say("--only", action="append", help="an entry, or the beginning of names with *")
    say("--part", type=int, default=1, help="of a seeded choice of one entry in so many")
    say("--after", default="", help="only entries after this name")
    say("--shard", default="0/1", help="i/n: every n-th entry, from the i-th")
    say("--samples", type=int, help="samples of an entry, seeded; default all")
    say("--seconds", type=float, default=300, help="that a sample may take")
    say("--workers", type=int, default=1, help="entries at a time")
    say("--json", type=Path, help="writes all outcomes there")
    say("--bad", action="store_true", help="print only what is not native")
    return options


def main() -> int:
    """Run."""
    # What is tried is irc, also where torch is faster.
    os.environ["IRC_FIRST_TIMING"] = "off"
    options = parser().parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    register = MODULES if options.modules else REFUSALS if options.refusals else OPERATORS
    chosen = _ways(options, register)
    tables: dict[Way, report.Table] = {way: {} for way in chosen}
    for way in {replace(way, dtype="float32") for way in chosen}:
        for name in WARM:
            list(try_entry(name, way, 1))
    batches = _batches(options, chosen, register)
    work = partial(_work, register, options.samples)
    for task, outcomes, error in results(
        batches, work, seconds=options.seconds, workers=options.workers
    ):
        if error:
            outcomes = [*outcomes, Outcome(FAILING, error).as_dict()]
        tables[task.way][task.name] = outcomes
        if not options.bad or report.verdict(outcomes) in ("failing", "left"):
            where = f"{task.way}: " if len(chosen) > 1 else ""
            print(where + report.line(task.name, outcomes), flush=True)
    if options.json:
        text = json.dumps({str(w): t for w, t in tables.items()}, indent=1, sort_keys=True)
        options.json.write_text(text, encoding="utf-8")
    wrong = [line for way in chosen for line in report.unexpected(tables[way], way)]
    print("".join(f"{line}\n" for line in wrong), end="")
    for way in chosen:
        print(report.summary(tables[way], way))
    print(report.counts(tables))
    return int(bool(wrong))


def _ways(options: argparse.Namespace, register: Register) -> list[Way]:
    named = [each for text in options.dtype or ["float32"] for each in text.split(",")]
    if unknown := set(named) - {*register.dtypes, "all"}:
        known = ", ".join(register.dtypes)
        sys.exit(f"dtypes are {known} and all, not {', '.join(sorted(unknown))}")
    dtypes = register.dtypes if "all" in named else named
    through = COMPILER_NAMES if options.through == "all" else (options.through,)
    backward = [False] * (options.forward or not options.backward) + [True] * options.backward
    return ways(dtypes, through, backward)


def _batches(
    options: argparse.Namespace, chosen: Sequence[Way], register: Register
) -> list[list[Task]]:
    """Return the tasks, those of an entry together: one process tries it in all ways."""
    batches: dict[str, list[Task]] = {}
    for way in chosen:
        names = register.names(way)
        if options.part > 1:
            names = part(names, options.part)
        if options.only:
            names = [n for n in names if any(_fits(n, each) for each in options.only)]
        for name in names:
            if name > options.after:
                batches.setdefault(name, []).append(Task(name, way))
    index, of = map(int, options.shard.split("/"))
    return [batches[name] for name in shard(sorted(batches), index, of)]


def _fits(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def _work(register: Register, most: int | None, task: Task) -> Iterator[dict[str, Any]]:
    for outcome in register.tried(task.name, task.way, most):
        yield outcome.as_dict()


if __name__ == "__main__":
    sys.exit(main())
