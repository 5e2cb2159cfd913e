"""Sizes that no axis divides, trained by each process: ``MESH[/LAYOUT] DTYPE FOLDER CASE ..``.

Cases of :mod:`tests.distributed.loop_program` run here with a module of such sizes. It prints, as
JSON for each case, how far the module is from one that is trained as it is.
"""

# pyright: basic
from __future__ import annotations

import copy
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.runtime.torch_optimizer import torch_optimizer
from irc.training.recipe import recipe_of
from tests.distributed import loop_program
from tests.distributed.loop_program import Run, far

ADAMW = {"kind": "adamw", "lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, "clip_norm": 0.5}


class Regression(nn.Module):
    """Two layers whose sizes neither 2 nor 3 divides; with targets the loss, else what is told."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(25, 35), nn.LayerNorm(35), nn.Linear(35, 11)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return the loss or the logits."""
        logits = self.down(self.norm(F.gelu(self.up(x))))
        return logits if y is None else F.cross_entropy(logits, y)


def batches(count: int, rows: int = 12, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Return samples and labels, the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(rows, 25, generator=draw).to(dtype),
            torch.randint(0, 11, (rows,), generator=draw),
        )
        for _ in range(count)
    ]


def stored(run: Run) -> dict[str, Any]:
    """Each rank has its chunk of each parameter, and torch knows which it is."""
    mine, _ = loop_program.both(Regression, run)
    mine(*batches(1, dtype=run.dtype)[0]).backward()
    own: dict[str, Any] = {
        name: [len(p.to_local()), len(p.grad.to_local()), p.placements == p.grad.placements]
        for name, p in mine.named_parameters()
    }
    return own


def step(run: Run, pins: str = '"*.weight" = [{axis} = S(0)]; "*.bias" = [{axis} = S(0)]') -> Any:
    """A compiled step whose parameters and states are pinned in parts, saved and loaded again."""
    axis = run.mesh.partition("=")[0]
    torch.manual_seed(0)
    theirs = Regression().to(run.dtype).train()
    options: dict[str, Any] = {"optimizer": ADAMW, "mesh": run.mesh, "cluster": "demo-gpus"}
    options["pins"] = pins.format(axis=axis)
    first = irc.compile_step(copy.deepcopy(theirs), **options)
    eager = torch_optimizer(recipe_of(ADAMW), dict(theirs.named_parameters()))
    losses = []

    def one(mine: Any, batch: Any) -> None:
        loss = theirs(*batch)
        eager.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        eager.step()
        losses.append(abs(float(mine(*batch)) - float(loss.detach())))

    inputs = batches(8, dtype=run.dtype)
    for batch in inputs[:4]:
        one(first, batch)
    parts = first.state_dict(parts=True)["model"]
    rows = {name: len(each.to_local()) for name, each in parts.items()}
    first.save(sys.argv[3])
    with torch.no_grad():
        evaluated = far(first.evaluate(inputs[0][0]), theirs.eval()(inputs[0][0]))
    theirs.train()
    second = irc.compile_step(Regression().to(run.dtype).train(), **options)
    second.load(sys.argv[3])
    for batch in inputs[4:]:
        one(second, batch)
    second.save(sys.argv[3])
    state, wanted = second.state_dict(), theirs.state_dict()
    whole = max(far(state["model"][name], wanted[name]) for name in wanted)
    return {"losses": max(losses), "evaluated": evaluated, "parameters": whole, "rows": rows}


def states(run: Run) -> dict[str, Any]:
    """The same where parameters are whole on every rank, and their states are in parts."""
    return step(run, '* = [{axis} = B]; "optimizer.*" = [{axis} = S(0)]')


def loaded(run: Run) -> dict[str, Any]:
    """What :func:`step` saved on another mesh, here and in plain torch."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    options: dict[str, Any] = {"optimizer": ADAMW, "mesh": run.mesh, "cluster": "demo-gpus"}
    mine = irc.compile_step(Regression().to(run.dtype).train(), **options)
    mine.load(sys.argv[3])
    state = mine.state_dict()
    plain = {name: torch.zeros_like(value) for name, value in state["model"].items()}
    dcp.load({"model": plain}, checkpoint_id=f"{sys.argv[3]}/step-8")
    torch.manual_seed(0)
    theirs = Regression().to(run.dtype).train()
    eager = torch_optimizer(recipe_of(ADAMW), dict(theirs.named_parameters()))
    for batch in batches(8, dtype=run.dtype):
        eager.zero_grad()
        theirs(*batch).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        eager.step()
    wanted = theirs.state_dict()
    return {
        "here": max(far(state["model"][name], wanted[name]) for name in wanted),
        "plain": max(far(plain[name], wanted[name]) for name in wanted),
    }


CASES: dict[str, Callable[[Run], dict[str, Any]]] = {
    **loop_program.CASES,
    **{function.__name__: function for function in (stored, step, states, loaded)},
}

if __name__ == "__main__":
    loop_program.Regression, loop_program.batches = Regression, batches  # type: ignore[misc]
    words = Run(*sys.argv[1:3])
    Path(sys.argv[3]).mkdir(exist_ok=True)
    print(json.dumps({name: CASES[name](words) for name in sys.argv[4:]}))
