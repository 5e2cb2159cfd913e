"""Optimisers on two processes, most not compiled: the numbers of one, in any layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
CLOSE = 1e-11
"""Of float64."""
WHOLE = 3296
"""Bytes of all parameters."""
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def run(folder: Path, mesh: str, *cases: str, world: int = 2) -> list[dict[str, Any]]:
    """Run cases in some processes; return what each of them says."""
    words = ["-m", "tests.distributed.optimizing_program", str(folder), mesh, *cases]
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=rank_environment(rank, world, str(folder / f"store-{mesh}")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=500) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, [err for _, err in said]
    return [json.loads(out) for out, _ in said]


def check(errors: dict[str, Any]) -> None:
    """Hold losses, parameters and states against those of one process."""
    for name, each in errors.items():
        for one in each.values() if name.startswith("states") else [each]:
            assert max(one[key] for key in ("losses", "model", "states")) < CLOSE, name


@pytest.mark.slow
def test_on_parts_and_on_whole_tensors(tmp_path: Path) -> None:
    """One that works element by element, and one that looks at norms; rank 0 warns once."""
    first, second = run(tmp_path, "data=2", "radam/zero1", "normed/zero3", "states/lion/zero1")
    for each in (first, second):
        check(each)
        assert each["normed/zero3"]["bytes"]["parameters"] < 0.8 * WHOLE
        # Of RAdam two states and the gradient, half of each.
        assert each["radam/zero1"]["bytes"]["states"] == 3 * WHOLE // 2
    assert [len(first[name]["said"]) for name in ("radam/zero1", "normed/zero3")] == [1, 1]
    assert "on the parts" in first["radam/zero1"]["said"][0]
    assert "whole tensors" in first["normed/zero3"]["said"][0]
    assert second["radam/zero1"]["said"] == second["normed/zero3"]["said"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "world"), [("pipe=2", 2), ("pipe=2,data=2", 4)])
def test_in_stages(tmp_path: Path, mesh: str, world: int) -> None:
    """Each stage moves its own; states are saved and go on on all ranks."""
    names = ("radam", "muon", "states/frozen", "states/muon", "states/radam")
    for each in run(tmp_path, mesh, *(f"{name}/searched" for name in names), world=world):
        check(each)
        assert each["radam/searched"]["bytes"]["parameters"] < 0.8 * WHOLE


@pytest.mark.slow
def test_all_ranks_end_where_an_optimiser_fails_on_one(tmp_path: Path) -> None:
    for each in run(tmp_path, "data=2", "failing/zero1"):
        said = str(each["failing/zero1"])
        assert "Failing.step() failed on rank 1: ValueError: no step here" in said, each
        assert "Failing.step() failed in an earlier step" in said, each


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [("data=2", ("data", "zero1", "zero3", "searched")), ("tensor=2", ("tensor",))],
)
def test_every_optimiser_in_every_layout(
    tmp_path: Path, mesh: str, layouts: tuple[str, ...]
) -> None:
    names = ("radam", "rprop", "dampening", "adagrad", "lion", "adafactor", "signs", "normed")
    cases = [f"{name}/{layout}" for name in names for layout in layouts]
    cases += [f"{name}/{layouts[-1]}/micro" for name in ("radam", "adafactor", "normed")]
    cases += [f"states/{name}/{layouts[-1]}" for name in ("radam", "adagrad", "adafactor")]
    for each in run(tmp_path, mesh, *cases):
        check(each)
