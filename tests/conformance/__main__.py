"""Runs every case and writes the table: ``python -m tests.conformance``.

Exits with 1 where the outcomes are not those of `expected`, and then leaves the table as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.conformance.report import table
from tests.conformance.suite import cases, differences, outcome


def main() -> int:
    """Run the suite."""
    torch.set_num_threads(1)
    outcomes = [outcome(case) for case in cases()]
    if wrong := differences(outcomes):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    text = table(outcomes)
    Path(__file__).with_name("README.md").write_text(text, encoding="utf-8")
    passed = sum(1 for o in outcomes if not o.reason)
    seconds = sum(o.seconds for o in outcomes)
    print(f"{passed} of {len(outcomes)} cases pass, {seconds:.0f} s of process time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
