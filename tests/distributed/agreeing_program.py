"""Ranks that are given different things, run by each process: ``MESH CASE [CASE ..]``.

It prints, as JSON for each case, the errors that this rank meets, call by call; an empty text where
a call runs.
"""

# pyright: basic
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.calls.compiled import refresh
from irc.errors import IrcError
from irc.runtime.agreement import VARIABLE

RANK = int(os.environ["RANK"])


def net(seed: int = 0) -> nn.Module:
    """Two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    """Return samples and targets."""
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 8, generator=draw), torch.randn(rows, 4, generator=draw)


def said(call: Callable[..., Any], *args: Any, **named: Any) -> str:
    """Return the code and the first line of the error that a call ends with; nothing of none."""
    try:
        call(*args, **named)
    except IrcError as error:
        return f"{error.code}: {error.message}"
    return ""


def own(value: Any, other: Any) -> Any:
    """Return one thing on rank 0, another on the other ranks."""
    return value if RANK == 0 else other


def batches(mesh: str) -> list[str]:
    """Other samples, the same in another order, another size, another rate; then as it should be.

    What was refused has moved nothing: the step goes on as one that was never asked.
    """
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    x, y = batch()
    messages = [said(step, own(x, x + 1), y), said(step, x, y), said(step, own(x, x + 1), y)]
    messages.append(said(step, own(x, x.flip(0)), own(y, y.flip(0))))
    messages.append(said(step, *own(batch(), batch(4))))
    messages.append(said(step, x, y, lr=own(1e-3, 1e-2)))
    messages.append(said(step, x, y))
    alone = irc.compile_step(net(), loss=F.mse_loss)
    for _ in range(2):
        alone(x, y)
    state, want = step.state_dict()["model"], alone.state_dict()["model"]
    assert all(torch.allclose(state[n], want[n], atol=1e-5) for n in want)
    return messages


def unchecked(mesh: str) -> list[str]:
    """A user switches it off: the first call of a kind is still compared."""
    os.environ[VARIABLE] = "off"
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    x, y = batch()
    messages = [said(step, own(x, x + 1), y), said(step, x, y), said(step, own(x, x + 1), y)]
    del os.environ[VARIABLE]
    return messages


def weights(mesh: str) -> list[str]:
    """Another seed before the module was made; another checkpoint."""
    x, y = batch()
    messages = [said(irc.compile_step(net(RANK), loss=F.mse_loss, mesh=mesh), x, y)]
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    step(x, y)
    state = step.state_dict()
    bias = state["model"]["0.bias"]
    state["model"]["0.bias"] = bias + RANK
    messages.append(said(step.load_state_dict, state))
    state["model"]["0.bias"] = bias
    state["optimizer"]["state"]["2.bias"]["exp_avg"] += RANK
    return [*messages, said(step.load_state_dict, state)]


@torch.no_grad()
def forward(mesh: str) -> list[str]:
    """Inputs of a plain forward pass, its weights, and writes to them on one rank or on all."""
    x, _ = batch()
    messages = [said(irc.compile(net(RANK), mesh=mesh), x)]
    module = net()
    run = irc.compile(module, mesh=mesh)
    messages += [said(run, x), said(run, own(x, x.flip(0))), said(run, own(x, batch(4)[0]))]
    first: Tensor = module[0].weight  # type: ignore[assignment,index]
    first.mul_(own(1.0, 2.0))
    messages.append(said(run, x))
    first.div_(own(1.0, 2.0))
    messages.append(said(run, x))
    first.data.mul_(own(1.0, 2.0))
    messages.append(said(refresh, run))
    first.mul_(own(2.0, 1.0))
    messages.append(said(run, x))
    torch.testing.assert_close(run(x), module(x))
    return messages


class Regression(nn.Module):
    """Two layers and their loss, for a loop of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.net(x), y)


def seventh(mesh: str) -> list[str]:
    """Other batches in step 7, in both ways of training: named, and nothing has moved.

    What differs on ranks 1, 3, ..: the last element, the labels alone, the shape, the dtype. A NaN
    that every rank is given is no difference.
    """
    messages: list[str] = []
    x, y = batch()
    last, label = x.clone(), y.clone()
    last[-1, -1] += 1e-6
    label[0, 0] = -label[0, 0]
    cases = {
        "last": (last, y),
        "label": (x, label),
        "shape": batch(4),
        "dtype": (x, y.double()),
    }
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    model = irc.compile(Regression(), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def own_step(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def values(way: str) -> dict[str, Tensor]:
        if way == "step":
            return step.state_dict()["model"]
        return {n: p.detach().clone() for n, p in irc.whole(model).named_parameters()}

    ways: dict[str, Callable[..., Tensor]] = {"step": step, "loop": own_step}
    for way, run in ways.items():
        for _ in range(6):
            run(x, y)
        before = values(way)
        for name, other in cases.items():
            try:
                run(*(other if RANK % 2 else (x, y)))
                messages.append(f"{way} {name}: nothing said")
            except IrcError as error:
                messages.append(f"{way} {name}: {error.message}; {error.because[0]}")
            optimizer.zero_grad()
        after = values(way)
        assert all(torch.equal(before[n], after[n]) for n in before), way
        assert bool(run(x, y).isfinite())
        x_nan = x.clone()
        x_nan[0] = float("nan")
        assert bool(run(x_nan, y).isnan())
    return messages


def copies(mesh: str) -> list[str]:
    """A parameter, then a state, goes apart on one rank: named at the next comparison."""
    x, y = batch()
    messages: list[str] = []
    pins = "* = [data = B]"
    for name in ("0.bias", "optimizer.exp_avg.2.weight"):
        step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh, check_every=2, pins=pins)
        messages += [said(step, x, y), said(step, x, y)]
        step._state.parts.local[name].view(-1)[-1] += RANK
        messages += [said(step.check), said(step, x, y)]
        # By the next comparison more than that one has gone apart.
        messages.append(said(step, x, y).partition(":")[0])
    model = irc.compile(Regression(), mesh=mesh, layout="ddp", check_every=2)
    messages += [said(model, x, y), said(model, x, y)]
    with torch.no_grad():
        model.net[0].bias[-1] += RANK
    return [*messages, said(model, x, y), said(model, x, y)]


@torch.no_grad()
def after_a_step(mesh: str) -> list[str]:
    """The parameters are in parts, the module's on meta: its forward pass needs them back."""
    module = net()
    step = irc.compile_step(module, loss=F.mse_loss, mesh=mesh)
    x, y = batch()
    step(x, y)
    run = irc.compile(module, mesh=mesh)
    messages = [said(run, x), said(irc.compile(module), x)]
    module.load_state_dict(step.state_dict()["model"], assign=True)
    messages.append(said(run, x))
    torch.testing.assert_close(run(x), module(x))
    return messages


@torch.no_grad()
def entries(mesh: str) -> list[str]:
    """Entries that share their weights."""
    x, _ = batch()
    messages = [said(irc.compile_entries, {"run": (net(RANK), (x,))}, mesh=mesh)]
    run = irc.compile_entries({"run": (net(), (x,))}, mesh=mesh)["run"]
    return [*messages, said(run, x), said(run, own(x, x + 1)), said(run, x)]


CASES: dict[str, Callable[[str], list[str]]] = {
    function.__name__: function
    for function in (batches, unchecked, weights, forward, seventh, copies, after_a_step, entries)
}

if __name__ == "__main__":
    print(json.dumps({name: CASES[name](sys.argv[1]) for name in sys.argv[2:]}))
