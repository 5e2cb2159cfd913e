"""Compiles malformed files: ``python -m tests.malformed [--count N] [--seed S] [--large]``.

Files are made from seeds, until N of them are malformed: refused by onnx's own checker, or by irc.
Each must end in one message, exit status 2 or 3, 5 s and 1 GiB at most, and leave nothing outside
its output folder. With ``--large`` the files are well-formed instead, and large at small sizes.
Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.malformed.trial import Outcome, clear, make, try_file
from tests.malformed.warm import warm
from tests.models.large_trials import LARGE


def main() -> int:
    """Run."""
    options = _parser().parse_args()
    warm()
    files = _large() if options.large else map(make, count(options.seed))
    found: list[Outcome] = []
    for name, data in files:
        room = Path(tempfile.mkdtemp(prefix="malformed-"))
        outcome = try_file(name, data, room)
        clear(room)
        found.append(outcome)
        if outcome.faults or options.verbose:
            print(f"{outcome.name}: {'; '.join(outcome.faults) or 'ok'}\n{outcome.message}")
        if not options.large and sum(each.malformed for each in found) >= options.count:
            break
    return report(found)


def _large() -> Iterator[tuple[str, bytes]]:
    return ((name, made().SerializeToString()) for name, made in LARGE.items())


def report(found: list[Outcome]) -> int:
    """Print a line of figures; 1 where there are faults."""
    malformed = [outcome for outcome in found if outcome.malformed]
    codes = Counter(outcome.message.partition("]")[0].rpartition("[")[2] for outcome in malformed)
    print("  ".join(f"{code or 'accepted'} {n}" for code, n in codes.most_common()))
    faulty = sum(bool(outcome.faults) for outcome in found)
    print(
        f"{len(malformed)} malformed files of {len(found)} made, {faulty} with faults, at most "
        f"{max(o.seconds for o in found):.1f} s and {max(o.peak_bytes for o in found) >> 20} MiB"
    )
    return int(faulty > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.malformed", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="of malformed files")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--large", action="store_true", help="what is large at small sizes")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    return parser


if __name__ == "__main__":
    sys.exit(main())
