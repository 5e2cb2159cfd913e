"""A rank that is gone, stopped or elsewhere ends the run on all others, by its name, soon."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from irc.dialects.placement import Mesh
from irc.runtime.watch import TIMEOUT_VARIABLE
from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200)]

LIMIT_S = 3
"""How long a rank may be stopped here."""
SOON_S = 30


def run(folder: Path, mesh: str, way: str, case: str) -> list[tuple[int, str, float]]:
    """Return exit status, errors and seconds since step 3 of the ranks that were not the cause."""
    world = Mesh.parse(mesh).num_ranks
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.failing_program", mesh, way, case],
            cwd=ROOT,
            env={**rank_environment(r, world, f"{folder}/store"), TIMEOUT_VARIABLE: f"{LIMIT_S}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world)
    ]
    try:
        last = ranks[-1]
        assert last.stdout is not None
        assert last.stdout.readline() == "step 3\n", last.communicate()[1]
        begun = time.monotonic()
        endings = []
        for rank in ranks[:-1]:
            _, said = rank.communicate(timeout=2 * SOON_S)
            endings.append((rank.returncode, said, time.monotonic() - begun))
        if case == "diverges":
            endings.append((last.wait(timeout=SOON_S), last.communicate()[1], 0.0))
        return endings
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def check(folder: Path, mesh: str, way: str, case: str) -> None:
    """Every other rank ends soon; the first that says why names the rank and the user's line."""
    endings = run(folder, mesh, way, case)
    last = Mesh.parse(mesh).num_ranks - 1
    for status, said, seconds in endings:
        assert status == 1, said
        assert seconds < SOON_S, said
    every = "\n".join(said for _, said, _ in endings)
    if case == "diverges":
        for _, said, _ in endings:
            assert "error[ranks-diverged]" in said, said
            assert f"rank{'s' * (last > 1)} 0" in said
            assert f"rank {last}: " in said
            assert ": run(x, y)  # the line of the user" in said
            assert (": other()" if way == "step" else "barrier") in said
        return
    assert "error[rank-lost]" in every
    became = "is stopped" if case == "stopped" else "is gone"
    assert f"rank {last} {became}" in every, every
    assert "the comparison of what ranks are given, failing_program.py:" in every, every


@pytest.mark.parametrize("case", ["stopped", pytest.param("diverges", marks=pytest.mark.slow)])
def test_a_rank_that_does_not_go_on_is_named(tmp_path: Path, case: str) -> None:
    check(tmp_path, "data=2", "step", case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "way", "case"),
    [
        ("data=2", "step", "killed"),
        ("data=2", "step", "raises"),
        ("data=2", "step", "ends"),
        ("data=2", "loop", "killed"),
        ("data=2,pipe=2", "step", "killed"),
    ],
)
def test_ranks_that_do_not_go_on(tmp_path: Path, mesh: str, way: str, case: str) -> None:
    check(tmp_path, mesh, way, case)
