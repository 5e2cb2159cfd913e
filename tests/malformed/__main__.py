"""Tries malformed files: ``python -m tests.malformed [--kinds onnx,plan] [--count N] [--seed S]``.

Files of each kind are made from seeds, until N of them are malformed: refused by onnx's own
checker, or by irc. Each must end in one registered error, exit status 2 or 3, 5 s and 1 GiB at
most, and leave nothing outside its output folder. With ``--large`` the files are well-formed
models instead, and large at small sizes. Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path

from tests.malformed.kinds import Bases
from tests.malformed.trial import Outcome, clear, try_file
from tests.malformed.warm import warm
from tests.models.large_trials import LARGE

KINDS = ("onnx", "plan", "cluster", "ir")


def main() -> int:
    """Run."""
    options = _parser().parse_args()
    if options.large:
        warm()
        trials = [
            partial(try_file, name, make().SerializeToString()) for name, make in LARGE.items()
        ]
        return report("large", _tried(trials, len(trials), options.verbose))
    bases = Bases()
    warm(*bases.warming)
    status = 0
    for kind in options.kinds.split(","):
        endless = (partial(bases.trials[kind], seed) for seed in count(options.seed))
        status |= report(kind, _tried(endless, options.count, options.verbose))
    bases.clear()
    return status


def _tried(trials: Iterable[Callable[[Path], Outcome]], count: int, verbose: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    malformed = 0
    for trial in trials:
        room = Path(tempfile.mkdtemp(prefix="malformed-"))
        outcome = trial(room)
        clear(room)
        outcomes.append(outcome)
        malformed += outcome.malformed
        if outcome.faults or verbose:
            print(f"{outcome.name}: {'; '.join(outcome.faults) or 'ok'}\n{outcome.message}")
        if malformed >= count:
            break
    return outcomes


def report(kind: str, outcomes: list[Outcome]) -> int:
    """Print the figures of a kind; 1 where there are faults."""
    malformed = [outcome for outcome in outcomes if outcome.malformed]
    codes = Counter(outcome.message.partition("]")[0].rpartition("[")[2] for outcome in malformed)
    print("  ".join(f"{code or 'accepted'} {n}" for code, n in codes.most_common()))
    failing = sum("its converter ends in" in outcome.message for outcome in outcomes)
    faulty = sum(bool(outcome.faults) for outcome in outcomes)
    print(
        f"{kind}: {len(malformed)} malformed files of {len(outcomes)} made, {faulty} with faults, "
        f"{failing} on which a converter fails, at most "
        f"{max(o.seconds for o in outcomes):.1f} s and "
        f"{max(o.peak_bytes for o in outcomes) >> 20} MiB",
        flush=True,
    )
    return int(faulty > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.malformed", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of files")
    parser.add_argument("--count", type=int, default=200, help="of malformed files of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--large", action="store_true", help="what is large at small sizes")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    return parser


if __name__ == "__main__":
    sys.exit(main())
