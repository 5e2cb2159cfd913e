"""Parts with room behind them: also where they were moved, or loaded, without it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.exports import export_plan
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.plan.load import load_plan
from irc.plan.schema import Plan
from irc.runtime.local_weights import LocalWeights
from irc.runtime.parts import Parts
from irc.runtime.rooms import room_of
from tests.passes.test_pad_parameters import Words
from tests.search.test_samples import Net

MESH = Mesh.parse("data=2")
WHOLES = {"up.weight": (11, 7), "up.bias": (11,), "down.weight": (5, 11), "down.bias": (5,)}


@cache
def uneven_plan() -> Plan:
    """Return a plan of two ranks that do not share rows equally."""
    program = capture(Net(), (torch.zeros(6, 7), torch.zeros(6, dtype=torch.int64)), {}).program
    options = Options(mesh=MESH, cluster="demo-gpus", pins='"*.*" = [data = S(0)]')
    plan = make_plan(program, options, keep_ir=False).plan
    assert all(plan.buffers[index].rows for index in plan.weights)
    return plan


def uneven_parts(rank: int) -> dict[str, torch.Tensor]:
    """Return what a rank holds."""
    parts = Parts(MESH, rank)
    parts.adopt(uneven_plan(), {name: torch.randn(shape) for name, shape in WHOLES.items()})
    return parts.local


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_is_the_front_of_what_a_plan_reads(rank: int) -> None:
    own = uneven_parts(rank)
    weights = LocalWeights(uneven_plan(), own)
    assert not weights.are_copied
    assert {t.data_ptr() for t in own.values()} == {
        t.data_ptr() for t in weights.by_buffer.values()
    }
    assert len(own["up.weight"]) == (6, 5)[rank]


def test_a_part_that_is_moved_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a view torch moves what it shows alone."""
    device, plan = torch.device("meta"), uneven_plan()
    monkeypatch.setattr(Parts, "_memory", lambda *_: device)
    own = uneven_parts(1)
    for buffer in (plan.buffers[index] for index in plan.weights):
        assert own[buffer.name].device == device
        assert room_of(own[buffer.name], buffer.shape) is not None, buffer.name


def test_a_part_without_room_is_read_with_a_copy_that_follows_it() -> None:
    plan = uneven_plan()
    own = {name: part.clone() for name, part in uneven_parts(1).items()}
    weights = LocalWeights(plan, own)
    for factor in (1.0, 2.0):
        for part in own.values():
            part.mul_(factor)
        weights.refresh()
        for index, read in weights.by_buffer.items():
            part = own[plan.buffers[index].name]
            assert torch.equal(read[: len(part)], part) and not read[len(part) :].any()
    with pytest.raises(IrcError, match="the plan takes"):
        LocalWeights(plan, {name: part[:-1] for name, part in own.items()})


def test_the_padding_of_a_vocabulary_is_no_word(tmp_path: Path) -> None:
    """Trial runs draw words and labels that the module knows."""
    words = torch.zeros(6, 4, dtype=torch.int64)
    folder, model = tmp_path / "plan", Words(8, 4, 25)
    export_plan(model, (words, words), mesh="tensor=2", layout="tp", optimizer="sgd", out=folder)
    plan = load_plan(folder).plan
    assert 25 in {plan.buffers[index].rows for index in plan.weights}
    assert {bounds for bounds in plan.ranges if bounds} == {(0, 24)}


def test_what_would_be_divided_by_zero_is_not_padded(tmp_path: Path) -> None:
    words, folder = torch.zeros(6, 4, dtype=torch.int64), tmp_path / "plan"
    adam = {"kind": "adam", "lr": 1e-3, "eps": 0.0}
    export_plan(Words(8, 4, 25), (words, words), mesh="tensor=2", layout="tp", optimizer=adam,
                out=folder)  # fmt: skip
    assert not any(buffer.rows for buffer in load_plan(folder).plan.buffers)
