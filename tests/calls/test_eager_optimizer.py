"""Optimisers that are not compiled run eagerly, as PyTorch runs them, and say so once."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

import irc
from irc.errors import IrcError
from irc.runtime.eager_kinds import EagerOptimizerWarning
from tests.calls.test_step import X, Y, net
from tests.distributed.optimizing_program import MAKERS

x = X.double()
COMPILED = ("adafactor", "signs")


def step_of(module: nn.Module, optimizer: Any, **options: Any) -> Any:
    """Make a step, which warns."""
    options = {"loss": F.cross_entropy, **options}
    with pytest.warns(EagerOptimizerWarning, match=type(optimizer).__name__) as said:
        step = irc.compile_step(module, optimizer=optimizer, **options)
    assert len(said) == 1
    return step


def eagerly(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Return losses of torch."""
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), Y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def assert_near(mine: nn.Module, theirs: nn.Module) -> None:
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert float((one - other).detach().abs().max()) < 1e-11


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in COMPILED])
def test_the_module_moves_as_torch_moves_it(name: str) -> None:
    mine, theirs = net().double(), net().double()
    step = step_of(mine, MAKERS[name](mine))
    losses = [float(step(x, Y)) for _ in range(3)]
    assert losses == pytest.approx(eagerly(theirs, MAKERS[name](theirs), 3), abs=1e-11)
    assert_near(mine, theirs)


def test_micro_batches_are_one_step_of_the_optimiser() -> None:
    mine, theirs = net().double(), net().double()
    step = step_of(mine, MAKERS["normed"](mine), micro_batches=2)
    step(x, Y)
    eagerly(theirs, MAKERS["normed"](theirs), 1)
    assert_near(mine, theirs)


def test_states_go_on_here_and_in_torch(tmp_path: Path) -> None:
    mine, again, theirs = net().double(), net().double(), net().double()
    step = step_of(mine, MAKERS["radam"](mine))
    for _ in range(2):
        step(x, Y)
    state = step.state_dict()
    step.save(tmp_path)
    other = step_of(again, MAKERS["radam"](again))
    other.load(tmp_path)
    theirs.load_state_dict(state["model"])
    eager = MAKERS["radam"](theirs)
    set_optimizer_state_dict(theirs, eager, state["optimizer"])
    wanted = [float(step(x, Y)) for _ in range(2)]
    assert [float(other(x, Y)) for _ in range(2)] == wanted
    assert eagerly(theirs, eager, 2) == pytest.approx(wanted, abs=1e-11)
    with pytest.raises(IrcError, match="no parameter 'nobody'"):
        other.load_state_dict({"optimizer": {"state": {"nobody": {}}, "param_groups": []}})


def test_a_rate_of_a_call_counts_for_that_call_alone() -> None:
    mine, theirs = net().double(), net().double()
    own = MAKERS["radam"](mine)
    step, eager = step_of(mine, own), MAKERS["radam"](theirs)
    rates = [group["lr"] for group in own.param_groups]
    step(x, Y, lr=0.5)
    assert [group["lr"] for group in own.param_groups] == rates
    for group in eager.param_groups:
        group["lr"] = 0.5
    eagerly(theirs, eager, 1)
    assert_near(mine, theirs)


def test_a_step_whose_gradients_overflow_moves_nothing() -> None:
    mine = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    precision = irc.Precision(compute="float16", scaler=scaler)
    own = torch.optim.RAdam(mine.parameters())
    step = step_of(mine, own, precision=precision)
    before = [p.detach().clone() for p in mine.parameters()]
    step(X, Y)
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), before, strict=True))
    assert not own.state


def test_a_module_on_the_meta_device() -> None:
    theirs = nn.Linear(7, 5)
    with torch.device("meta"):
        mine = nn.Linear(7, 5)
    step = step_of(mine, torch.optim.RAdam(mine.parameters(), 0.1))
    inputs, labels = torch.ones(6, 7), torch.arange(6) % 5
    step.prepare(inputs, labels)
    theirs.load_state_dict(step.state_dict()["model"])
    step(inputs, labels)
    eager = torch.optim.RAdam(theirs.parameters(), 0.1)
    F.cross_entropy(theirs(inputs), labels).backward()
    eager.step()
    assert torch.allclose(mine.weight, theirs.weight, atol=1e-6)


def test_hooks_of_a_step_are_called() -> None:
    mine, theirs = net().double(), net().double()
    own, called = torch.optim.AdamW(mine.parameters(), 1e-2), list[int]()
    own.register_step_post_hook(lambda *_: called.append(1))
    step = step_of(mine, own)
    for _ in range(2):
        step(x, Y)
    eagerly(theirs, torch.optim.AdamW(theirs.parameters(), 1e-2), 2)
    assert called == [1, 1]
    assert_near(mine, theirs)


def test_hooks_that_come_later_are_refused() -> None:
    mine = net()
    own = torch.optim.AdamW(mine.parameters(), 1e-2)
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=own)
    step(X, Y)
    for register in (
        own.register_step_pre_hook,
        register_optimizer_step_post_hook,
    ):
        handle = register(lambda *_: None)
        try:
            with pytest.raises(IrcError, match="has hooks of its step, which it had not"):
                step(X, Y)
        finally:
            handle.remove()  # torch's own would be there for other tests
    step(X, Y)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    mine = net()
    own = torch.optim.RAdam(mine.parameters())
    normed = MAKERS["normed"](mine)
    for refused, options, says in (
        (normed, {"mesh": "pipe=2"}, "all parameters together: with an axis 'pipe'"),
        (own, {"precision": MASTERS}, "masters"),
    ):
        with pytest.raises(IrcError, match=says):
            irc.compile_step(mine, loss=F.cross_entropy, optimizer=refused, **options)
    with pytest.raises(IrcError, match="RAdam is not compiled"):
        irc.export_plan(mine, X, out=tmp_path / "plan", loss="0", optimizer=own)
    for optimizer in ("eager", {"kind": "eager"}):
        with pytest.raises(IrcError, match="no optimiser 'eager'"):
            irc.compile_step(mine, loss=F.cross_entropy, optimizer=optimizer)
    step = step_of(mine, own)
    own.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(IrcError, match="other parameters"):
        step(X, Y)


MASTERS = irc.Precision(parameters="bfloat16", masters="float32")
