"""Planted miscompiles are caught: some of them here, all with ``-m slow``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.check import check_with
from tests.fuzz.directed import DIRECTED
from tests.fuzz.mutants import MUTANTS, in_threads, is_killed, killed_by
from tests.fuzz.scene_mutants import SCENE_MUTANTS, SceneMutant

HARMLESS = (
    "cpu: lanes of a reduction dropped",
    "cpu: offset of a slice forgotten",
    "cpu: operands of a subtraction swapped",
    "cpu: bfloat16 cut off",
    "cpu: a long sum keeps its last block only",
    "cpu: a sum starts from what memory holds",
    "plan: live ranges end too early",
    "plan: a scatter in place before the last reader",
)
"""Mutants that stay inside their memory: these need no process of their own."""


@pytest.mark.parametrize("name", HARMLESS)
def test_is_caught(name: str) -> None:
    (mutant,) = [m for m in MUTANTS if m.name == name]
    assert is_killed(text := killed_by(mutant)), text


@pytest.mark.parametrize("mutant", SCENE_MUTANTS, ids=lambda m: m.name)
def test_is_seen_by_callers(mutant: SceneMutant) -> None:
    assert is_killed(text := mutant.killed_by()), text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_are_caught() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.mutants"], cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    count = len(MUTANTS) + len(SCENE_MUTANTS)
    assert f"{count} of {count} planted miscompiles caught" in done.stdout


@pytest.mark.parametrize("name", ["crossed", "sums", "attention"])
def test_without_a_mutant_threads_agree(name: str) -> None:
    assert (failure := check_with(DIRECTED[name], in_threads)) is None, failure
