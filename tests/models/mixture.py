"""A small mixture of experts, and constraints by which its tokens travel to their experts."""

from __future__ import annotations

import torch
from torch import nn

from irc.dialects.flow import ExternOp, id_of
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.canonicalize import CanonicalizePass
from irc.train import training_program


class Experts(nn.Module):
    """A router, and the two experts that it chooses for each token, added to it."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, 2, inner, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(count, width, inner) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x)
        weights, index = self.router(rows).softmax(-1).topk(2, -1)
        count = len(self.up)
        return x + torch.ops.irc.experts(rows, index, weights, self.up, self.down, "silu", count)


class Mixture(nn.Module):
    """Layers of experts between two linear ones; the mean of the squares."""

    def __init__(self, layers: int = 1, width: int = 8, inner: int = 12, count: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.layers = nn.ModuleList(Experts(width, inner, count) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x).square().mean()


def travelling(model: nn.Module, x: torch.Tensor, *, optimizer: str | None) -> str:
    """Return constraints by which tokens and experts are split over axis ``expert``.

    Args:
        model: a mixture.
        x: its tokens, [tokens, width].
        optimizer: of a step; None for the model alone.
    """
    program = capture(model, (x,)).program
    if optimizer is not None:
        program = training_program(program, optimizer=optimizer)
    CanonicalizePass().apply(context(), program.module)
    lines: list[str] = []
    for op in program.module.walk():
        if isinstance(op, ExternOp) and "irc::experts" in str(op.properties):
            inputs, outputs = (
                ", ".join(["[expert = S(0)]"] * len(side)) for side in (op.inputs, op.outputs)
            )
            lines.append(f"pin op *{id_of(op)} = {inputs} -> {outputs}")
    return "\n".join(dict.fromkeys(lines))
