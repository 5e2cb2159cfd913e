"""Experts in pieces on real processes: rows of one piece travel while another is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irc.exports import export_plan
from irc.interpret.check import check_plan
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.report.overlap import explain_overlap
from irc.runtime.launch import run_plan
from tests.models.mixture import Mixture, travelling

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

PIECES = ["no-chunk-experts", "chunk-experts{degree=2}"]


@pytest.mark.parametrize("train", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_in_pieces_give_eagers_numbers(tmp_path: Path, train: bool) -> None:
    torch.manual_seed(0)
    model, x, out = Mixture(), torch.randn(16, 8), tmp_path / "plan"
    optimizer = "sgd" if train else None
    export_plan(model, (x,), mesh="expert=2", out=out, optimizer=optimizer, passes=PIECES,
                pins=travelling(model, x, optimizer=optimizer))  # fmt: skip
    starts = [a for a in load_plan(out).plan.actions if isinstance(a, Start)]
    moved = [start.op for start in starts if ".piece" in start.id]
    assert moved.count("comm.dispatch_rows") == (6 if train else 2)
    assert moved.count("comm.combine_rows") == (4 if train else 2)
    told = [row for row in explain_overlap(str(out)).splitlines() if "as asked" in row]
    assert len(told) == 1 + train and "experts[expert]" in told[0]
    report = run_plan(out)
    assert report.ok, report
    assert "agrees with eager" in str(check_plan(str(out)))
