"""What an eager optimiser moves in a step, and the states that it goes on from."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.runtime.eager_kinds import same_draws
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


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Return one that is not compiled."""
    return torch.optim.SGD(module.parameters(), 0.1, 0.9, dampening=0.5)


def test_states_of_another_optimiser_are_refused(tmp_path: Path) -> None:
    mine, again = net(), net()
    inputs = x.float()
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer="adamw")
    step(inputs, Y)
    step.save(tmp_path)
    adamw: dict[str, Any] = step.state_dict()
    other = step_of(again, sgd(again))
    other(inputs, Y)
    before = other.state_dict()
    own = before["optimizer"]
    assert own["class"] == "SGD"
    unsaid = {"optimizer": {"state": adamw["optimizer"]["state"]}}
    name = next(iter(own["state"]))
    wrong = {**own, "state": {name: {"momentum_buffer": torch.ones(2, 99)}}}
    for refused, says in (
        (lambda: other.load(tmp_path), "is of AdamW, and the optimiser is SGD"),
        (lambda: other.load_state_dict(adamw), "is of AdamW"),
        (lambda: other.load_state_dict(unsaid), "SGD keeps no"),
        (lambda: other.load_state_dict({"optimizer": {**own, "class": "Lion"}}), "is of Lion"),
        (lambda: other.load_state_dict({"optimizer": wrong}), r"is \[2, 99\]"),
    ):
        with pytest.raises(IrcError, match=says) as said:
            refused()
        assert said.value.code == "state-mismatch"
    after = other.state_dict()
    for key, value in before["model"].items():
        assert torch.equal(value, after["model"][key])
    nadam, radam = net(), net()
    with pytest.raises(IrcError, match="needs 'mu_product'"):
        step_of(nadam, torch.optim.NAdam(nadam.parameters())).load_state_dict(unsaid)
    # Its states have the names of an Adam's.
    with pytest.raises(IrcError, match="is of AdamW, and the optimiser is RAdam"):
        step_of(radam, torch.optim.RAdam(radam.parameters())).load(tmp_path)


def test_a_compiled_optimiser_takes_no_states_of_another(tmp_path: Path) -> None:
    mine = net()
    step = step_of(mine, torch.optim.RAdam(mine.parameters()))
    step(x.float(), Y)
    step.save(tmp_path)
    other = irc.compile_step(net(), loss=F.cross_entropy, optimizer="adamw")
    for refused in (
        lambda: other.load(tmp_path),
        lambda: other.load_state_dict(step.state_dict()),
    ):
        with pytest.raises(IrcError, match="is of RAdam, and the step computes AdamW"):
            refused()
    other.load(tmp_path, optimizer=False)


def test_states_that_an_optimiser_begins_with_are_not_dropped() -> None:
    mine = net()
    own = torch.optim.Adagrad(mine.parameters(), initial_accumulator_value=0.5)
    step = step_of(mine, own)
    with pytest.raises(IrcError, match="has from its beginning"):
        step.load_state_dict({"optimizer": {"state": {}, "param_groups": []}})
    step(x.float(), Y)


class Closing(torch.optim.Optimizer):
    """Calls the closure that it does not have."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> Any:
        """Call it."""
        return closure()


def test_an_error_of_an_optimiser_names_it() -> None:
    mine = net()
    with pytest.raises(IrcError, match=r"Closing.step\(\) failed on rank 0: TypeError") as said:
        step_of(mine, Closing(mine.parameters()))(x.float(), Y)
    assert said.value.code == "optimizer-failed"
    assert isinstance(said.value.__cause__, TypeError)


def test_draws_are_those_of_the_seed_on_several_ranks() -> None:
    own, draws = Closing(net().parameters()), list[torch.Tensor]()
    for start in (1, 2):
        torch.manual_seed(start)
        with same_draws(own, 5, num_ranks=2):
            draws.append(torch.rand(3))
        draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[1], draws[3])


def test_copies_in_several_stages_get_no_draws() -> None:
    own = Closing(net().parameters())
    with same_draws(own, 5, num_ranks=2, tied="head"):
        pass
    with (
        pytest.raises(IrcError, match="draws random numbers, and several stages hold a copy of"),
        same_draws(own, 5, num_ranks=2, tied="head"),
    ):
        torch.rand(3)


def test_ranks_do_not_go_on_after_a_step_that_failed() -> None:
    module, parts = nn.Linear(2, 2), Parts(Mesh.parse("data=2"), 0)
    eager = EagerOptimizer(Closing(module.parameters()), module)
    eager.bind(parts)
    eager.check_alike()
    with pytest.raises(IrcError, match="failed on rank 0"):
        eager.step(parts, [])
    with pytest.raises(IrcError, match="failed in an earlier step") as said:
        eager.check_alike()
    assert said.value.code == "optimizer-failed"
    eager.are_alike()
    eager.check_alike()
