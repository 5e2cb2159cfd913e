"""``mesh="auto"`` under a launcher: rank 0 searches, and all ranks run what it chose."""

# pyright: basic
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from irc.dialects.placement import Mesh
from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300), pytest.mark.slow]


def eager() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for _ in range(2):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_both_ranks_run_one_searched_plan(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.auto_program"],
            cwd=ROOT,
            env=rank_environment(rank, 2, str(tmp_path / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=250) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 2, [err for _, err in said]
    reports = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert reports[0] == reports[1]
    assert Mesh.parse(reports[0]["mesh"]).num_ranks == 2
    assert reports[0]["losses"] == pytest.approx(eager(), rel=1e-5)
    assert reports[0]["shape"] == [8, 64]
