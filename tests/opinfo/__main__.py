"""Tries PyTorch's operators: ``python -m tests.opinfo [--only NAME] [--backward] [--json FILE]``.

Exits with 1 where an entry fails, or where torch's capture leaves one that is not known to be left.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.opinfo import report
from tests.opinfo.entries import entries, shard, tenth
from tests.opinfo.trial import FAILING, Outcome, try_entry
from tests.opinfo.workers import results


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    found.add_argument("--only", action="append", help="an entry, or the beginning of names with *")
    found.add_argument("--tenth", action="store_true", help="a seeded tenth of the entries")
    found.add_argument("--after", default="", help="only entries after this name")
    found.add_argument("--shard", default="0/1", help="i/n: every n-th entry, from the i-th")
    found.add_argument("--samples", type=int, help="samples of an entry, seeded; default all")
    found.add_argument("--backward", action="store_true", help="gradients too")
    found.add_argument("--through", choices=("torch.compile", "irc.compile"),
                       default="torch.compile")  # fmt: skip
    found.add_argument("--seconds", type=float, default=300, help="that a sample may take")
    found.add_argument("--workers", type=int, default=1, help="entries at a time")
    found.add_argument("--json", type=Path, help="writes all outcomes there")
    found.add_argument("--bad", action="store_true", help="print only what is not native")
    return found


def main() -> int:
    """Run."""
    options = parser().parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = _chosen(options)
    work = partial(_work, options=options)
    # Children inherit what this loads, and what is the same for every compilation.
    list(_work("add", argparse.Namespace(**{**vars(options), "samples": 1})))
    table: dict[str, list[Any]] = {}
    for name, found, error in results(
        names, work, seconds=options.seconds, workers=options.workers
    ):
        table[name] = found if not error else [*found, Outcome(FAILING, error).as_dict()]
        if not options.bad or report.verdict(table[name]) != "native":
            print(report.line(name, table[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
    what = f"{options.through} {'backward' if options.backward else 'forward'}"
    wrong = report.unexpected(table, what)
    print("".join(f"{line}\n" for line in wrong) + report.summary(table, what))
    return int(bool(wrong))


def _chosen(options: argparse.Namespace) -> list[str]:
    names = tenth() if options.tenth else sorted(entries())
    if options.backward:
        names = [name for name in names if entries()[name].supports_autograd]
    if options.only:
        names = [n for n in names if any(_fits(n, each) for each in options.only)]
    names = [name for name in names if name > options.after]
    index, of = map(int, options.shard.split("/"))
    return shard(names, index, of)


def _fits(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def _work(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for outcome in try_entry(
        name, backward=options.backward, most=options.samples, through=options.through
    ):
        yield outcome.as_dict()


if __name__ == "__main__":
    sys.exit(main())
