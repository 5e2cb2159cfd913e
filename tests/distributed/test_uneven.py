"""Sizes that the ranks of an axis do not share equally, trained as on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_loop import check, run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def run(folder: Path, mesh: str, dtype: str, *cases: str) -> list[dict[str, Any]]:
    """Run cases in as many processes as the mesh, one axis, has ranks."""
    world = int(mesh.partition("/")[0].partition("=")[2])
    words = ["tests.distributed.uneven_program", mesh, dtype, str(folder / "saved"), *cases]
    return run_ranks(folder, world, *words)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_loop_stores_rows_in_uneven_parts(tmp_path: Path, world: int, dtype: str) -> None:
    """As FSDP does: ceil-sized chunks, DTensors that torch saves and loads."""
    cases = ("mlp", "outer_loss", "accumulated", "saved", "stored")
    for rank, each in enumerate(run(tmp_path, f"data={world}/fsdp", dtype, *cases)):
        for case in cases[:-1]:
            check(each[case], dtype)
        lengths = {"up": 35, "norm": 35, "down": 11}
        for name, (rows, gradients, alike) in each["stored"].items():
            size = -(-lengths[name.partition(".")[0]] // world)
            wanted = min(size, max(lengths[name.partition(".")[0]] - rank * size, 0))
            assert (rows, gradients, alike) == (wanted, wanted, True), name


@pytest.mark.slow
@pytest.mark.parametrize("case", ["step", "states"])
def test_a_step_stores_and_saves_rows_in_uneven_parts(tmp_path: Path, case: str) -> None:
    """On three ranks, then on two, on one and in plain torch; ``states`` divides these alone."""
    for rank, each in enumerate(run(tmp_path, "data=3", "float64", case)):
        far = each[case]
        rows = far.pop("rows")
        assert rows["up.weight"] == rows["norm.bias"] == ((12, 12, 11)[rank], 35)[case == "states"]
        assert rows["down.weight"] == ((4, 4, 3)[rank], 11)[case == "states"]
        check(far, "float64")
    for mesh in ("data=2", "data=1"):
        for each in run(tmp_path, mesh, "float64", "loaded"):
            assert max(each["loaded"].values()) < 1e-10
