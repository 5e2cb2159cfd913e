"""Collectives in pieces on real processes: rows travel through gloo while ranks compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irc.exports import export_plan
from irc.interpret.check import check_plan
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.runtime.launch import run_plan
from tests.models.gpt import GPT, GPTConfig

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


CUT = ["no-chunk-collectives", "chunk-collectives{degree=2}"]


def pieces(plan: Path) -> set[str]:
    """Which collectives of a plan are pieces."""
    starts = [a for a in load_plan(plan).plan.actions if isinstance(a, Start)]
    return {start.op for start in starts if ".piece" in start.id}


def test_two_processes_in_pieces_give_eagers_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    out = tmp_path / "plan"
    export_plan(model, (torch.randn(8, 32),), mesh="tensor=2", layout="tp+sp", out=out, passes=CUT)
    assert "comm.reduce_scatter" in pieces(out)
    assert run_plan(out).ok


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_in_pieces_gives_eagers_numbers(tmp_path: Path, ranks: int) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=1, hidden=64, heads=4, vocab=128, block=32))
    tokens = torch.randint(0, 128, (8, 32))
    out = tmp_path / "plan"
    export_plan(model, (tokens, tokens), optimizer="adamw", mesh=f"tensor={ranks}",
                layout="tp+sp", out=out, passes=CUT)  # fmt: skip
    assert pieces(out) >= {"comm.all_gather", "comm.reduce_scatter"}
    assert run_plan(out).ok
    assert "every stage agrees with eager" in str(check_plan(str(out)))
