"""A model that starts on the meta device takes a rank no more memory than its part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.slow]
LARGEST = 32064 * 1024 * 4
"""Bytes of the largest weight, which each rank draws whole to take its part."""


def test_each_of_four_ranks_holds_a_quarter(tmp_path: Path) -> None:
    """Parameters and states of AdamW, as the system counts a process's memory; then a step."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.starting_program", "data=4"],
            cwd=ROOT,
            env=rank_environment(rank, 4, str(tmp_path / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [process.communicate(timeout=500) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, [err for _, err in said]
    reports = [json.loads(out) for out, _ in said]
    for each in reports:
        quarter = each["whole"] / 4
        assert each["held"] < 1.1 * quarter
        assert each["most"] < 1.1 * quarter + 2 * LARGEST
        assert each["after"] < 1.15 * (quarter + each["said"]["arena"])
    assert len({each["loss"] for each in reports}) == 1
