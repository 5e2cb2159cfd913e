"""Optimisers that write through ``.data``, which torch does not count: ``MESH/LAYOUT NAME``.

It prints as JSON, by way of writing, the largest error of a loss or an evaluation beside an eager
twin.
"""

# pyright: basic
from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import irc
from tests.distributed.loop_program import CLUSTER


def zero(module: nn.Module) -> Callable[[], None]:
    """Share AdamW among the ranks, which send their parameters to each other."""
    optimizer: Any = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-2)
    return lambda: optimizer.step()


def by_hand(module: nn.Module) -> Callable[[], None]:
    """Descend as many scripts of papers do."""

    def step() -> None:
        for p in module.parameters():
            assert p.grad is not None
            p.data.sub_(0.1 * p.grad)

    return step


class Patches(nn.Module):
    """Patches of a picture through layers whose weights kernels read packed."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 64, 4, 4)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [b, 10] of pictures [b, 3, 16, 16]."""
        h = self.cut(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        return self.head(h.mean(1))


def furthest(mesh: str, layout: str, way: Callable[[nn.Module], Callable[[], None]]) -> float:
    """Train with an evaluation before each step; return the largest error."""
    torch.manual_seed(0)
    theirs = Patches().double()
    mine = irc.compile(copy.deepcopy(theirs), mesh=mesh, layout=layout, cluster=CLUSTER)
    eager = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    steps = [way(mine), by_hand(theirs) if way is by_hand else eager.step]
    errors: list[float] = []
    for number in range(6):
        x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(number)).double()
        losses = [module(x).square().mean() for module in (mine, theirs)]
        for loss in losses:
            loss.backward()
        errors.append(float((losses[0] - losses[1]).detach().abs()))
        with torch.no_grad():
            errors.append(float((mine(x[:4]) - theirs(x[:4])).abs().max()))
        for module, step in zip((mine, theirs), steps, strict=True):
            step()
            module.zero_grad()
    return max(errors)


if __name__ == "__main__":
    mesh, _, layout = sys.argv[1].partition("/")
    ways = [zero, by_hand] if layout == "ddp" else [by_hand]
    print(json.dumps({way.__name__: furthest(mesh, layout, way) for way in ways}))
