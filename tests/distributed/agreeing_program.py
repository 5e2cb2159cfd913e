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
    found = [said(step, own(x, x + 1), y), said(step, x, y), said(step, own(x, x + 1), y)]
    found.append(said(step, own(x, x.flip(0)), own(y, y.flip(0))))
    found.append(said(step, *own(batch(), batch(4))))
    found.append(said(step, x, y, lr=own(1e-3, 1e-2)))
    found.append(said(step, x, y))
    alone = irc.compile_step(net(), loss=F.mse_loss)
    for _ in range(2):
        alone(x, y)
    state, want = step.state_dict()["model"], alone.state_dict()["model"]
    assert all(torch.allclose(state[n], want[n], atol=1e-5) for n in want)
    return found


def unchecked(mesh: str) -> list[str]:
    """A user switches it off: the first call of a kind is still compared."""
    os.environ[VARIABLE] = "off"
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    x, y = batch()
    found = [said(step, own(x, x + 1), y), said(step, x, y), said(step, own(x, x + 1), y)]
    del os.environ[VARIABLE]
    return found


def weights(mesh: str) -> list[str]:
    """Another seed before the module was made; another checkpoint."""
    x, y = batch()
    found = [said(irc.compile_step(net(RANK), loss=F.mse_loss, mesh=mesh), x, y)]
    step = irc.compile_step(net(), loss=F.mse_loss, mesh=mesh)
    step(x, y)
    state = step.state_dict()
    bias = state["model"]["0.bias"]
    state["model"]["0.bias"] = bias + RANK
    found.append(said(step.load_state_dict, state))
    state["model"]["0.bias"] = bias
    state["optimizer"]["state"]["2.bias"]["exp_avg"] += RANK
    return [*found, said(step.load_state_dict, state)]


@torch.no_grad()
def forward(mesh: str) -> list[str]:
    """Inputs of a plain forward pass, its weights, and writes to them on one rank or on all."""
    x, _ = batch()
    found = [said(irc.compile(net(RANK), mesh=mesh), x)]
    module = net()
    run = irc.compile(module, mesh=mesh)
    found += [said(run, x), said(run, own(x, x.flip(0))), said(run, own(x, batch(4)[0]))]
    first: Tensor = module[0].weight  # type: ignore[assignment,index]
    first.mul_(own(1.0, 2.0))
    found.append(said(run, x))
    first.div_(own(1.0, 2.0))
    found.append(said(run, x))
    first.data.mul_(own(1.0, 2.0))
    found.append(said(refresh, run))
    first.mul_(own(2.0, 1.0))
    found.append(said(run, x))
    torch.testing.assert_close(run(x), module(x))
    return found


@torch.no_grad()
def after_a_step(mesh: str) -> list[str]:
    """The parameters are in parts, the module's on meta: its forward pass needs them back."""
    module = net()
    step = irc.compile_step(module, loss=F.mse_loss, mesh=mesh)
    x, y = batch()
    step(x, y)
    run = irc.compile(module, mesh=mesh)
    found = [said(run, x), said(irc.compile(module), x)]
    module.load_state_dict(step.state_dict()["model"], assign=True)
    found.append(said(run, x))
    torch.testing.assert_close(run(x), module(x))
    return found


@torch.no_grad()
def entries(mesh: str) -> list[str]:
    """Entries that share their weights."""
    x, _ = batch()
    found = [said(irc.compile_entries, {"run": (net(RANK), (x,))}, mesh=mesh)]
    run = irc.compile_entries({"run": (net(), (x,))}, mesh=mesh)["run"]
    return [*found, said(run, x), said(run, own(x, x + 1)), said(run, x)]


CASES: dict[str, Callable[[str], list[str]]] = {
    function.__name__: function
    for function in (batches, unchecked, weights, forward, after_a_step, entries)
}

if __name__ == "__main__":
    print(json.dumps({name: CASES[name](sys.argv[1]) for name in sys.argv[2:]}))
