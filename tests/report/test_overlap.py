"""What `irc explain plan --overlap` says of when collectives run adds up to the predicted call."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from irc.cli import main
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.report.overlap import collectives, explain_overlap


def test_a_call_is_its_compute_and_what_is_bare(plans: dict[str, Path]) -> None:
    from irc.simulate.actions import Cores
    from irc.simulate.plan import Contention, predict, steps

    plan = load_plan(plans["grid"]).plan
    rows = collectives(plan)
    order = [step for _, step in steps(plan)]
    assert [row.start for row in rows] == [step for step in order if isinstance(step, Start)]
    assert all(0 <= row.begin_s <= row.end_s and row.bare_s >= 0 for row in rows)
    ended = max(row.end_s for row in rows)
    assert ended <= predict(plan, contention=Contention(Cores(1.0))).seconds
    for axis in plan.device_mesh.names:
        own = [row for row in rows if row.start.attrs["axis"] == axis]
        # A link carries one at a time.
        for row, following in pairwise(own):
            assert row.end_s <= following.begin_s + 1e-12


def test_the_report_names_the_worst_first(
    plans: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "plan", str(plans["grid"]), "--overlap", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["chunks"] == facts["rings"] == [] and facts["batch_slices"] is None
    rows = facts["collectives"]
    assert main(["explain", "plan", str(plans["grid"]), "--overlap"]) == 0
    said = capsys.readouterr().out
    worst = max(rows, key=lambda row: row["bare_s"])
    first = next(line for line in said.splitlines() if worst["loc"] in line)
    assert worst["id"] in first
    assert f"{len(rows)} collectives" in said or said.count("link ") == 2


def test_a_plan_of_one_rank_sends_nothing(plans: dict[str, Path]) -> None:
    one = next(path for path in plans.values() if load_plan(path).plan.device_mesh.num_ranks == 1)
    assert "no collectives" in explain_overlap(str(one))


def test_what_was_cut_is_told(tmp_path: Path) -> None:
    import torch

    from irc.exports import export_plan

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    out = tmp_path / "plan"
    export_plan(model, (torch.randn(8, 32),), mesh="tensor=2", layout="tp+sp", out=out,
                passes=["no-chunk-collectives", "chunk-collectives{degree=2}"])  # fmt: skip
    (line,) = [row for row in explain_overlap(str(out)).splitlines() if "as asked" in row]
    assert "reduce_scatter[tensor]" in line
