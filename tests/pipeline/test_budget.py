"""A plan on a mesh holds no more than the user allows, whatever its search does not know of."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import StringAttr

from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.plan.held import held_bytes
from irc.program import Program
from irc.sharding.mesh import parse_mesh


@cache
def mlp() -> Program:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return capture(model, (torch.zeros(16, 64),)).program


def held(memory_bytes: int | None) -> tuple[int, int]:
    """Return what a rank of two holds, and what the search says of that."""
    options = Options(mesh=parse_mesh("tensor=2"), cluster="8xA100", memory_bytes=memory_bytes)
    program = mlp().copy()
    plan = make_plan(program, options, keep_ir=False).plan
    report = program.module.attributes["irc.plan_cost"]
    assert isinstance(report, StringAttr)
    return held_bytes(plan), json.loads(report.data)["bytes_held"]


@pytest.mark.parametrize("part", [0.9, 0.8, 0.7, 0.55])
def test_what_holds_more_than_its_search_says_is_planned_again(part: float) -> None:
    free, said = held(None)
    # Beside its weights a rank keeps copies in the order in which kernels read them.
    assert said < 0.55 * free
    limit = int(part * free)
    assert held(limit)[0] <= limit


def test_a_budget_that_no_plan_keeps_to_is_refused_with_one_that_works() -> None:
    free, _ = held(None)
    least, _ = held(int(0.55 * free))
    with pytest.raises(IrcError, match=f"the plan that holds least has {least} bytes") as raised:
        held(int(0.97 * least))
    assert raised.value.code == "sharding-infeasible"
    assert f"memory_bytes={least}" in raised.value.help
    assert held(least)[0] == least
