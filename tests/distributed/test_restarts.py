"""Torchrun starts a run again whose rank was killed: it goes on with the same losses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


def run(folder: Path, mesh: str, killed_at: int, world: int, *more: str) -> list[tuple[int, float]]:
    """Return numbers and losses of the steps that were made."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    program = ["--nproc-per-node", f"{world}", "-m", "tests.distributed.restarting_program"]
    arguments = [mesh, f"{folder}", f"{killed_at}", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IRC_CACHE_DIR": f"{folder.parent}/cache"}
    done = subprocess.run(
        [*words, *program, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    return [(int(number), float(loss)) for number, loss in lines]


@pytest.mark.parametrize(("mesh", "world"), [("data=2", 2)])
def test_a_run_that_is_started_again(tmp_path: Path, mesh: str, world: int) -> None:
    wanted = run(tmp_path / "whole", mesh, 0, world)
    steps = run(tmp_path / "broken", mesh, 7, world)
    # Killed behind step 7, and gone on from the checkpoint of step 6.
    assert [number for number, _ in steps] == [*range(1, 8), *range(7, 12)]
    assert dict(steps) == dict(wanted)
    assert dict(steps[:7]) == dict(wanted[:7])


def test_what_ranks_kept_in_memory(tmp_path: Path) -> None:
    wanted = run(tmp_path / "whole", "data=2", 0, 2)
    steps = run(tmp_path / "broken", "data=2", 7, 2, "keep")
    assert steps == wanted  # each step once, the eighth behind the seventh
    left = Path("/dev/shm") / f"irc-{os.getuid()}"
    assert not left.exists() or not [*left.glob("*/*/*-*.data")]
