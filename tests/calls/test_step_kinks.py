"""Where functions have no slope, or an endless one, steps take the gradients of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import irc

F: Any = nn.functional
AT: dict[str, tuple[Callable[[Any], Tensor], list[float]]] = {
    "norm": (lambda x: x.norm(), [0, 0, 0]),
    "norm of 3": (lambda x: x.norm(p=3), [0, 0, 0]),
    "norm of a half": (lambda x: x.norm(p=0.5), [0, 1, 2]),
    "normalize": (lambda x: F.normalize(x, dim=0), [0, 0]),
    "cosine": (lambda x: F.cosine_similarity(x, x.detach() + 1, dim=0), [0, 0]),
    "distance": (lambda x: F.pairwise_distance(x, x.detach(), eps=0.0), [1, 2]),
    "renorm": (lambda x: x[None].renorm(2, 0, 1.0), [0, 0]),
    "deviation": (lambda x: x.std(), [1, 1, 1]),
    "deviation of all": (lambda x: x.std(correction=0), [2, 2]),
    "cross-entropy": (
        lambda x: F.binary_cross_entropy(x, torch.tensor([0.0, 1, 1, 0, 1, 0])),
        [0, 1, 0.5, 0.25, 0, 1],
    ),
    "log of the normal": (torch.special.log_ndtr, [0, -40, -8, 5, 40]),
    "clamp": (lambda x: x.clamp(0, 1), [0, 1, 2, -1, 0.5]),
    "clamp by tensors": (lambda x: x.clamp(x.detach(), x.detach() + 1), [0, 1]),
    "clamp_min": (lambda x: x.clamp(min=0), [0, 1, -1]),
    "hinge": (lambda x: F.hinge_embedding_loss(x, torch.tensor([1.0, -1])), [1, 1]),
    "relu6": (F.relu6, [0, 6, 3, 7]),
    "hardtanh": (F.hardtanh, [-1, 1, 0.5, 2]),
    "hardsigmoid": (F.hardsigmoid, [3, -3, 0]),
    "hardswish": (F.hardswish, [3, -3, 0, 5, -5]),
    "max along a dim": (lambda x: x.max(0)[0], [1, 1, 0]),
    "min along a dim": (lambda x: x[None].min(1, keepdim=True)[0], [1, 2, 1]),
    "amax": (lambda x: x.amax(), [1, 1, 0]),
}


class Parts(nn.Module):
    """All functions, each of numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.off = nn.ParameterList(torch.zeros(len(at)) for _, at in AT.values())

    def forward(self) -> Any:
        return sum(
            function(off + torch.tensor(at, dtype=off.dtype)).sum()
            for off, (function, at) in zip(self.off, AT.values(), strict=True)
        )


def test_gradients_at_kinks() -> None:
    mine, theirs = Parts(), Parts()
    irc.compile_step(mine, optimizer="sgd")(lr=1.0)
    theirs().backward()
    for name, got, wanted in zip(AT, mine.off, theirs.off, strict=True):
        assert wanted.grad is not None
        message = f"{name}: {(-got).tolist()}, in eager {wanted.grad.tolist()}"
        torch.testing.assert_close(-got.detach(), wanted.grad, rtol=1e-4, atol=1e-6, msg=message)
