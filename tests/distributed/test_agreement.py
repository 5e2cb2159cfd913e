"""Ranks that are given different batches or weights: an error on every rank, never a mixture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

INPUTS = "input-mismatch: rank 1 was given other inputs than rank 0"
"""What both ranks say of a call."""


def run(folder: Path, *cases: str) -> dict[str, list[str]]:
    """Run cases in two processes; return what both say."""
    words = ["-m", "tests.distributed.agreeing_program", "data=2", *cases]
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=rank_environment(rank, 2, str(folder / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=280) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], [err for _, err in said]
    first, second = (json.loads(out) for out, _ in said)
    assert first == second
    return first


def weight(name: str) -> str:
    return f"state-mismatch: '{name}' has other values on rank 1 than on rank 0"


def test_batches_and_weights_of_a_step(tmp_path: Path) -> None:
    found = run(tmp_path, "batches", "unchecked", "weights", "after_a_step")
    assert found["batches"] == [INPUTS, "", INPUTS, INPUTS, INPUTS, INPUTS, ""]
    assert found["unchecked"] == [INPUTS, "", ""]
    states = [weight("0.bias"), weight("0.bias"), weight("optimizer.exp_avg.2.bias")]
    assert found["weights"] == states
    *gone, again = found["after_a_step"]
    assert [text.partition(":")[0] for text in gone] == ["no-memory", "no-memory"]
    assert again == ""


def test_plain_forward_passes(tmp_path: Path) -> None:
    found = run(tmp_path, "forward", "entries")
    changed = weight("0.weight")
    assert found["forward"] == [
        *(weight("0.bias"), "", INPUTS, INPUTS),
        *(changed, "", changed, ""),
    ]
    assert found["entries"] == [weight("0.bias"), "", INPUTS, ""]
