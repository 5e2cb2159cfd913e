"""Experts in pieces on real processes: rows of one piece travel while another is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from irc.dialects.flow import ExternOp, id_of
from irc.dialects.text import context
from irc.exports import export_plan
from irc.frontends.torch.capture import capture
from irc.interpret.check import check_plan
from irc.passes.canonicalize import CanonicalizePass
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.report.overlap import explain_overlap
from irc.runtime.launch import run_plan
from irc.train import training_program

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

PIECES = ["no-chunk-experts", "chunk-experts{degree=2}"]


class Mixture(nn.Module):
    """A router and its experts, between two layers; the mean of the squares."""

    def __init__(self, width: int = 8, inner: int = 12, count: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, 2, inner, width) * 0.3)
        self.down = nn.Parameter(torch.randn(count, width, inner) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        weights, index = self.router(x).softmax(-1).topk(2, -1)
        y = torch.ops.irc.experts(x, index, weights, self.up, self.down, "silu", len(self.up))
        return self.last(x + y).square().mean()


def pins(model: nn.Module, x: torch.Tensor, *, train: bool) -> str:
    """Pins that let the tokens of the layer travel, forward and backward."""
    program = capture(model, (x,)).program
    if train:
        program = training_program(program)
    CanonicalizePass().apply(context(), program.module)
    lines: list[str] = []
    for op in program.module.walk():
        if isinstance(op, ExternOp) and "irc::experts" in str(op.properties):
            given, made = (
                ", ".join(["[expert = S(0)]"] * len(side)) for side in (op.inputs, op.outputs)
            )
            lines.append(f"pin op *{id_of(op)} = {given} -> {made}")
    assert len(lines) == 1 + train
    return "\n".join(lines)


@pytest.mark.parametrize("train", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_in_pieces_give_eagers_numbers(tmp_path: Path, train: bool) -> None:
    torch.manual_seed(0)
    model, x, out = Mixture(), torch.randn(16, 8), tmp_path / "plan"
    export_plan(model, (x,), mesh="expert=2", out=out, pins=pins(model, x, train=train),
                optimizer="sgd" if train else None, passes=PIECES)  # fmt: skip
    starts = [a for a in load_plan(out).plan.actions if isinstance(a, Start)]
    moved = [start.op for start in starts if ".piece" in start.id]
    assert moved.count("comm.dispatch_rows") == (6 if train else 2)
    assert moved.count("comm.combine_rows") == (4 if train else 2)
    told = [row for row in explain_overlap(str(out)).splitlines() if "as asked" in row]
    assert len(told) == 1 + train and "experts[expert]" in told[0]
    report = run_plan(out)
    assert report.ok, report
    assert "agrees with eager" in check_plan(str(out))
