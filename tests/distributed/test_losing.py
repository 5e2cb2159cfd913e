"""Of four machines one is lost for good: the others go on with the losses of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.distributed.losing_program"
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(300)]


def run(case: str, folder: Path) -> tuple[list[str], dict[int, float]]:
    """Return what four launchers say the run goes on from, and the losses of their steps."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    waits = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=4"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IRC_CACHE_DIR": f"{folder}/cache"}
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node",
             "1", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint",
             f"localhost:{port}", "--rdzv-conf", f"{waits},is_host={int(number == 0)}", "-m",
             PROGRAM, case, f"{folder}/run"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    said = [launcher.communicate(timeout=250) for launcher in launchers]
    assert sum(launcher.returncode == 0 for launcher in launchers) == 3, said[0][1][-4000:]
    return read("".join(out for out, _ in said))


def read(text: str) -> tuple[list[str], dict[int, float]]:
    """Return what is said, and the losses; of a step that was made again the later."""
    lines = text.splitlines()
    losses = {int(line.split()[0]): float(line.split()[1]) for line in lines if line[0] != "#"}
    return [line[2:] for line in lines if line.startswith("# ")], losses


def alone(case: str, folder: Path) -> dict[int, float]:
    words = [sys.executable, "-m", PROGRAM, case, f"{folder}/alone"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return read(done.stdout)[1]


@pytest.mark.parametrize("case", ["tensor", "pipe", "eager"])
def test_what_is_left_has_all(tmp_path: Path, case: str) -> None:
    said, losses = run(case, tmp_path)
    assert said[1:] == ["goes on behind step 3, from the memory of ranks 0, 1, 2"]
    assert losses == pytest.approx(alone(case, tmp_path), rel=1e-12)


def test_what_is_left_lacks_a_part(tmp_path: Path) -> None:
    said, losses = run("zero", tmp_path)
    assert said[1] == f"goes on behind step 2, from '{tmp_path}/run/step-2'"
    assert said[2].startswith(
        "of step 3, which ranks 0, 1, 2 kept, no rank that is left has 'optim"
    )
    assert losses == pytest.approx(alone("zero", tmp_path), rel=1e-12)
