"""`compile_step` on one device: losses, optimisers, states, micro-batches, and what it refuses."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.frontends.torch.loss import num_targets

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 7, generator=DRAW), torch.randint(0, 5, (6,), generator=DRAW)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 5))


def eager_steps(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_equal_modules(mine: nn.Module, theirs: nn.Module) -> None:
    wanted = theirs.state_dict()
    for name, value in mine.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("option", "eager"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, 1e-3)),
        ({"kind": "adam", "lr": 1e-2, "betas": (0.8, 0.9)},
         lambda p: torch.optim.Adam(p, 1e-2, betas=(0.8, 0.9))),
        ({"kind": "sgd", "momentum": 0.9, "lr": 0.1},
         lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    ],
    ids=["adamw", "adam", "sgd"],
)  # fmt: skip
def test_the_module_moves_as_with_torch(option: Any, eager: Any) -> None:
    mine, theirs = net(), net()
    before = {name: value.data_ptr() for name, value in mine.named_parameters()}
    step = irc.compile_step(mine, loss=nn.CrossEntropyLoss(), optimizer=option)
    losses = [step(X, Y).item() for _ in range(3)]
    assert losses == pytest.approx(eager_steps(theirs, eager(theirs.parameters())), abs=1e-5)
    assert_equal_modules(mine, theirs)
    # The parameters are the module's own, in place.
    assert before == {name: value.data_ptr() for name, value in mine.named_parameters()}


def test_a_learning_rate_for_each_call_and_batches_of_two_sizes() -> None:
    mine, theirs = net(), net()
    step = irc.compile_step(mine, loss=lambda out, y: F.cross_entropy(out, y), optimizer="sgd")
    for count, lr in ((6, 0.1), (4, 0.2), (6, 0.3)):
        step(X[:count], Y[:count], lr=lr)
        loss = F.cross_entropy(theirs(X[:count]), Y[:count])
        for p, g in zip(theirs.parameters(), torch.autograd.grad(loss, theirs.parameters()),
                        strict=True):  # fmt: skip
            p.data -= lr * g
    assert_equal_modules(mine, theirs)


def test_a_loss_with_weights_of_its_own_and_one_without_targets() -> None:
    weight = torch.rand(5, generator=DRAW)
    mine = net()
    expected = F.cross_entropy(mine(X), Y, weight=weight).item()
    step = irc.compile_step(mine, loss=nn.CrossEntropyLoss(weight=weight))
    assert step(X, Y).item() == pytest.approx(expected, abs=1e-6)
    mine = net()
    expected = mine(X).square().mean().item()
    step = irc.compile_step(mine, loss=lambda output: output.square().mean())
    assert step(X).item() == pytest.approx(expected, abs=1e-6)
    assert num_targets(F.cross_entropy) == num_targets(nn.MSELoss()) == 1


class Named(nn.Module):
    """Gives two numbers and moves statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.up = nn.BatchNorm1d(7), nn.Linear(7, 5)
        self.head = nn.Linear(5, 5)
        self.head.weight = nn.Parameter(torch.randn(5, 5))
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor, *, labels: Tensor) -> dict[str, Tensor]:
        """Return a loss, and another number."""
        out = self.head(self.up(self.norm(x)))
        return {"loss": F.cross_entropy(out, labels), "size": out.abs().mean()}


def test_the_name_of_a_loss_frozen_parameters_and_statistics() -> None:
    mine, theirs = Named(), Named()
    for module in (mine, theirs):
        module.up.weight.requires_grad_(False)
    with pytest.raises(IrcError, match="2 results are one real number"):
        irc.compile_step(mine)(X, labels=Y)
    step = irc.compile_step(mine, loss="loss", optimizer="sgd", frozen="head.*")
    moved = [p for n, p in theirs.named_parameters()
             if p.requires_grad and not n.startswith("head")]  # fmt: skip
    optimizer = torch.optim.SGD(moved, 1e-3)
    for _ in range(2):
        step(X, labels=Y)
        optimizer.zero_grad()
        theirs(X, labels=Y)["loss"].backward()
        optimizer.step()
    assert_equal_modules(mine, theirs)
    assert step.memory_bytes()["states"] == 0
    assert list(step.state_dict()["model"]) == list(theirs.state_dict())


def test_the_state_goes_on_here_and_in_torch() -> None:
    """Names are those of torch's distributed checkpoints, which load into its own optimiser."""
    mine, theirs = net(), net()
    option = {"kind": "adamw", "no_decay": "*.bias"}
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=option)
    empty = step.state_dict()
    assert empty["optimizer"]["state"] == {}
    for _ in range(2):
        step(X, Y)
    state = step.state_dict()
    assert state["optimizer"]["state"]["0.weight"]["step"] == 2
    theirs.load_state_dict(state["model"])
    named = dict(theirs.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named.items() if "weight" in n]},
        {"params": [p for n, p in named.items() if "bias" in n], "weight_decay": 0.0},
    ])  # fmt: skip
    set_optimizer_state_dict(theirs, optimizer, deepcopy(state["optimizer"]))
    other = irc.compile_step(net(), loss=F.cross_entropy, optimizer=option)
    other.load_state_dict(get_state(theirs, optimizer))
    wanted = eager_steps(theirs, optimizer, 2)
    assert [step(X, Y).item() for _ in range(2)] == pytest.approx(wanted, abs=1e-6)
    assert [other(X, Y).item() for _ in range(2)] == pytest.approx(wanted, abs=1e-6)
    # A snapshot: later steps do not move it.
    assert state["optimizer"]["state"]["0.weight"]["step"] == 2
    assert not torch.equal(state["model"]["0.weight"], mine[0].weight)


def get_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": module.state_dict(),
        "optimizer": get_optimizer_state_dict(module, optimizer),
    }


def test_random_numbers_go_on_with_the_state() -> None:
    module = nn.Sequential(nn.Linear(7, 64), nn.Dropout(0.5), nn.Linear(64, 5))
    step = irc.compile_step(module, loss=F.cross_entropy, seed=5)
    first = [step(X, Y, lr=0.0).item() for _ in range(3)]
    assert len(set(first)) == 3
    again = irc.compile_step(module, loss=F.cross_entropy)
    again.load_state_dict({"seed": step.state_dict()["seed"] - 2})
    assert [again(X, Y, lr=0.0).item() for _ in range(2)] == first[1:]
    module.eval()
    assert step(X, Y, lr=0.0).item() == step(X, Y, lr=0.0).item()


def test_micro_batches_train_as_the_batch() -> None:
    mine, theirs = net(), net()
    option = {"kind": "adamw", "clip_norm": 0.1}
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=option, micro_batches=3)
    whole = irc.compile_step(theirs, loss=F.cross_entropy, optimizer=option)
    for _ in range(2):
        assert step(X, Y).item() == pytest.approx(whole(X, Y).item(), abs=1e-6)
    assert step(X[:5], Y[:5]).item() == pytest.approx(whole(X[:5], Y[:5]).item(), abs=1e-6)
    assert_equal_modules(mine, theirs)
    with pytest.raises(IrcError, match="3 micro-batches") as caught:
        step(X[:2], Y[:2])
    assert caught.value.code == "input-mismatch"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"modle": {}}, "no 'modle'"),
        ({"model": {"0.weight": torch.zeros(11, 7)}}, "lacks '0.bias'"),
        ({"optimizer": {"state": {"0.weight": {"exp_avg": torch.zeros(2)}}}}, r"has \[11, 7\]"),
        ({"optimizer": {"state": {"0.weight": {"momentum_buffer": torch.zeros(2)}}}}, "keeps no"),
        ({"optimizer": {"state": {"9.weight": {"exp_avg": torch.zeros(2)}}}}, "keeps no"),
    ],
)
def test_states_that_do_not_fit(state: dict[str, Any], says: str) -> None:
    step = irc.compile_step(net(), loss=F.cross_entropy)
    with pytest.raises(IrcError, match=says) as caught:
        step.load_state_dict(state)
    assert caught.value.code == "state-mismatch"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"optimizer": "adamx"}, "option-value"),
        ({"optimizer": {"kind": "adamw", "leanring_rate": 1}}, "option-unknown"),
        ({"optimizer": {"lr": "fast"}}, "option-value"),
        ({"optimizer": {"betas": 0.9}}, "option-value"),
        ({"micro_batches": 0}, "option-value"),
        ({"accumulate": 0}, "option-value"),
        ({"accumulate": 2, "micro_batches": 2}, "option-value"),
        ({"loss": 3}, "input-mismatch"),
        ({"mesh": "data"}, "mesh-syntax"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], code: str) -> None:
    with pytest.raises(IrcError) as caught:
        irc.compile_step(net(), **options)
    assert caught.value.code == code


def test_what_a_call_refuses() -> None:
    with pytest.raises(IrcError, match="of a module, not of function"):
        irc.compile_step(get_state)  # type: ignore[arg-type]
    for loss, says in (
        (lambda *args: args[0].sum(), "any number of arguments"),
        (nn.Bilinear(5, 5, 1), "parameters of its own"),
        (lambda output, a, b, c: output.sum(), "takes 3 targets and the batch has 2"),
    ):
        with pytest.raises(IrcError, match=says):
            irc.compile_step(net(), loss=loss)(X, Y)
    with pytest.raises(IrcError, match="for 4 ranks"):
        irc.compile_step(net(), loss=F.cross_entropy, mesh="data=4")(X, Y)
    module = net()
    step = irc.compile_step(module, loss=F.cross_entropy)
    module[0].weight.requires_grad_(False)
    with pytest.raises(IrcError, match="requires_grad"):
        step(X, Y)


class Rated(nn.Module):
    """Has an input of the name that a step keeps for itself."""

    def forward(self, x: Tensor, lr: Tensor) -> Tensor:
        """Return a number."""
        return (x * lr).sum()


def test_an_input_that_is_called_lr() -> None:
    with pytest.raises(IrcError, match="called 'lr'"):
        irc.compile_step(Rated())(X, torch.ones(()))
