"""What an eager optimiser moves in a step, and the states that it goes on from."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from irc.dialects.placement import Mesh
from irc.runtime.eager_optimizer import EagerOptimizer
from irc.runtime.parts import Parts
from tests.calls.test_eager_optimizer import assert_near, net, step_of, x
from tests.calls.test_step import Y


def test_values_that_no_rank_holds_stay_in_the_module() -> None:
    module = nn.Linear(2, 2)
    before = [p.detach().clone() for p in module.parameters()]
    eager = EagerOptimizer(torch.optim.RAdam(module.parameters()), module)
    eager.bind(Parts(Mesh.parse("data=2"), 0))
    assert all(torch.equal(p, was) for p, was in zip(module.parameters(), before, strict=True))


class Heads(nn.Module):
    """Two layers, of which a call takes one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor, first: bool = True) -> torch.Tensor:
        """Return the sum of squares of a layer's output."""
        return (self.one(x) if first else self.other(x)).square().sum()


def test_what_a_batch_has_no_gradient_of_stays() -> None:
    mine, theirs, inputs = Heads(), Heads(), torch.ones(4, 3, dtype=torch.float64)
    theirs_own = torch.optim.RAdam(theirs.parameters(), 0.1)
    step = step_of(mine, torch.optim.RAdam(mine.parameters(), 0.1), loss=None)
    for first in (True, False, False, True):
        step(inputs, first=first)
        theirs_own.zero_grad()
        theirs(inputs, first).backward()
        theirs_own.step()
    assert_near(mine, theirs)


def test_a_frozen_parameter_stays_whatever_its_grad_is() -> None:
    mine = net()
    own, frozen = torch.optim.RAdam(mine.parameters()), next(iter(mine.parameters()))
    before = frozen.detach().clone()
    frozen.grad = torch.ones_like(frozen)
    name = next(n for n, _ in mine.named_parameters())
    step_of(mine, own, frozen=name)(x.float(), Y)
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("how", ["folder", "dict"])
def test_states_that_were_not_yet_are_dropped(how: str, tmp_path: Path) -> None:
    mine = net().double()
    step = step_of(mine, torch.optim.SGD(mine.parameters(), 0.1, 0.9, dampening=0.5))
    step.prepare(x, Y)
    state: dict[str, Any] = step.state_dict()
    step.save(tmp_path)
    wanted = [float(step(x, Y)) for _ in range(3)]
    step.load(tmp_path) if how == "folder" else step.load_state_dict(state)
    assert [float(step(x, Y)) for _ in range(3)] == wanted
