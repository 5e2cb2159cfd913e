"""Channels between four processes: slices of any dtype, placement and mesh arrive as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.programs import rank_environment

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def test_values_arrive(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.moving_program"],
            cwd=Path(__file__).parents[2],
            env=rank_environment(rank, 4, str(tmp_path / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [process.communicate(timeout=250) for process in ranks]
    assert [out.strip() for out, _ in said] == ["150"] * 4, [err for _, err in said]
