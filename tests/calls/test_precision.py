"""Steps in other dtypes: the numbers are those of torch's autocast, and masters lose nothing."""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from tests.calls.test_step import X, Y, net

HALF = torch.bfloat16
POLICIES: dict[str, Any] = {
    "compute": "bfloat16",
    "parameters": irc.Precision(parameters=HALF),
    "masters": irc.Precision(parameters="bfloat16", masters=torch.float32),
}
RATE = 1e-3


def eagerly(module: nn.Module, kind: str, steps: int) -> tuple[list[float], Sequence[torch.Tensor]]:
    """Train as torch's users do; return losses and what is updated."""
    held = list(module.parameters())
    if kind != "compute":
        for p in held:
            p.data = p.data.to(HALF)
    masters = [p.detach().float() for p in held] if kind == "masters" else held
    optimizer = torch.optim.AdamW(masters, lr=RATE)
    losses = []
    for _ in range(steps):
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(module(X), Y)
        gradients = torch.autograd.grad(loss, held)
        for p, g in zip(masters, gradients, strict=True):
            p.grad = g.to(p.dtype)
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(held, masters, strict=True):
                p.copy_(master)
        losses.append(float(loss.detach()))
    return losses, masters


@pytest.mark.parametrize("kind", POLICIES)
def test_steps_are_those_of_autocast(kind: str) -> None:
    mine, theirs = net(), net()
    step = irc.compile_step(
        mine, loss=F.cross_entropy, optimizer={"lr": RATE}, precision=POLICIES[kind]
    )
    losses = [float(step(X, Y)) for _ in range(4)]
    wanted, masters = eagerly(theirs, kind, 4)
    assert losses == pytest.approx(wanted, abs=5e-3)
    state = step.state_dict()["optimizer"]["state"]
    for (name, p), master in zip(mine.named_parameters(), masters, strict=True):
        assert p.dtype == (torch.float32 if kind == "compute" else HALF)
        assert state[name]["exp_avg"].dtype == torch.float32
        assert ("remainder" in state[name]) == (kind == "masters")
        own = p.detach().float() + state[name].get("remainder", 0.0)
        if kind == "masters":
            # Each is the nearest to its master: nothing is lost on the way.
            assert torch.equal(own.to(HALF), p)
        # Adam moves by the sign of a gradient that is nothing but rounding.
        torch.testing.assert_close(own, master.detach().float(), rtol=2e-2, atol=8 * RATE)


class Bags(nn.Module):
    """An op that runs as its parts, below autocast."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.EmbeddingBag(9, 7, mode="sum"), nn.Linear(7, 5)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Return logits of a bag's rows."""
        return self.out(self.table(index))


def test_bags_of_rows_are_those_of_autocast() -> None:
    index, mine, theirs = torch.arange(18).view(6, 3) % 9, Bags(), Bags()
    target = torch.arange(6) % 5
    step = irc.compile_step(mine, loss=F.cross_entropy, precision="bfloat16")
    with torch.autocast("cpu", HALF):
        wanted = F.cross_entropy(theirs(index), target)
    assert float(step(index, target)) == pytest.approx(float(wanted.detach()), abs=5e-3)


def test_small_updates_count_with_masters_alone() -> None:
    """A parameter of 1 has neighbours 2**-8 away: steps of 2**-12 are lost without a master."""
    weights = {}
    for kind in ("parameters", "masters"):
        module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(module.weight)
        step = irc.compile_step(
            module,
            loss=lambda out: out.sum(),
            optimizer={"kind": "sgd", "lr": 2**-12},
            precision=POLICIES[kind],
        )
        for _ in range(32):
            step(torch.ones(1, 1))
        weights[kind] = float(module.weight.detach())
    assert weights == {"parameters": 1.0, "masters": 1.0 - 32 * 2**-12}


def test_masters_go_on_with_the_state() -> None:
    options: dict[str, Any] = {"loss": F.cross_entropy, "precision": POLICIES["masters"]}
    step = irc.compile_step(net(), **options)
    for _ in range(2):
        step(X, Y)
    again = irc.compile_step(net(), **options)
    again.load_state_dict(step.state_dict())
    assert [float(again(X, Y)) for _ in range(2)] == [float(step(X, Y)) for _ in range(2)]
    for name, value in step.state_dict()["optimizer"]["state"]["0.weight"].items():
        other = again.state_dict()["optimizer"]["state"]["0.weight"][name]
        assert torch.equal(value, other), name


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("float8", "compute=float8"),
        (torch.int32, "compute=int32"),
        ({"compute": "bfloat17"}, "help: did you mean 'bfloat16'"),
        ({"parameters": "float64"}, "parameters=float64"),
        ({"masters": "bfloat16"}, "masters may be float32"),
        ({"reduce": "int8"}, "reduce=int8"),
        ("reduce=float32,store=bfloat16", "'store=bfloat16' says nothing of a policy"),
        ("bfloat16,reduce=float32", "help: write compute=bfloat16"),
        ("compute=float16,compute=bfloat16", "says something twice"),
        ("parameters=bfloat61", "help: did you mean 'bfloat16'"),
        ({"masters": "float32"}, "masters are of parameters that are bfloat16"),
    ],
)
def test_what_a_step_does_not_train_in(option: Any, says: str) -> None:
    def asked() -> None:
        precision = irc.Precision(**option) if isinstance(option, dict) else option
        irc.compile_step(net(), precision=precision)

    with pytest.raises(IrcError, match=says) as caught:
        asked()
    assert caught.value.code == "option-value"


def test_what_computes_in_half_on_the_meta_device_is_refused() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(8, 8)
        x = torch.zeros(2, 8)
    step = {"optimizer": "sgd", "loss": lambda y: y.sum(), "precision": "bfloat16"}
    with pytest.raises(IrcError, match="meta device") as caught:
        irc.export_plan(model, (x,), out="unused", **step)
    assert "parameters=bfloat16,masters=float32" in caught.value.help
