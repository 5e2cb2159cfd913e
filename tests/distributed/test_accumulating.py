"""Gradients that several backward passes add up, on several processes: those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.test_loop import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

CASES = ("of_input", "returned_between", "of_parameters", "of_some", "kinds", "whole_before",
         "emptied")  # fmt: skip


@pytest.mark.parametrize(
    "mesh",
    [
        "data=2/ddp",
        pytest.param("data=2/fsdp", marks=pytest.mark.slow),
        pytest.param("tensor=2/tp", marks=pytest.mark.slow),
        pytest.param("data=2", marks=pytest.mark.slow),
        pytest.param("data=2,tensor=2/ddp", marks=pytest.mark.slow),
        pytest.param("data=2,tensor=2/fsdp+tp", marks=pytest.mark.slow),
    ],
)
def test_passes_that_add_up(tmp_path: Path, mesh: str) -> None:
    """What is returned, pending, summed or left out does not change what the others give."""
    world = 4 if "," in mesh else 2
    program = "tests.distributed.accumulating_program"
    for each in run_ranks(tmp_path, world, program, mesh, "float64", *CASES):
        assert {name: error for name, error in each.items() if not error < 1e-11} == {}
