"""Compiles files that are malformed: ``python -m tests.malformed [--count N] [--seed S]``.

Files are made from seeds, until N of them are malformed: refused by onnx's own checker, or by irc.
Each must end in one message, exit status 2 or 3, 5 s and 1 GiB at most, and leave nothing outside
its output folder. Exits with 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.malformed.trial import Outcome, clear, make, try_file
from tests.malformed.warm import warm


def main() -> int:
    """Run."""
    options = _parser().parse_args()
    warm()
    found: list[Outcome] = []
    seed = options.seed
    while sum(outcome.malformed for outcome in found) < options.count:
        room = Path(tempfile.mkdtemp(prefix="malformed-"))
        outcome = try_file(*make(seed), room)
        clear(room)
        found.append(outcome)
        seed += 1
        if outcome.faults or options.verbose:
            print(f"{outcome.name}: {'; '.join(outcome.faults) or 'ok'}\n{outcome.message}")
    return report(found)


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
    parser.add_argument("--verbose", action="store_true", help="print every message")
    return parser


if __name__ == "__main__":
    sys.exit(main())
