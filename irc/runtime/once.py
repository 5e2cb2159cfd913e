"""Gradients that have none themselves: whoever asks for those is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from irc.errors import IrcError

_Function: Any = torch.autograd.Function
"""What its ``apply`` returns has no type."""


def once(
    gradients: Sequence[torch.Tensor | None],
    what: str,
    because: str,
    advice: str,
    near: Sequence[Any] = (),
) -> list[torch.Tensor | None]:
    """Return gradients as they are, which raise an error where they are differentiated.

    Without it a penalty on gradients would count nothing, without a word.

    Args:
        gradients: of a backward pass; None for none.
        what: the error's message.
        because: its reason.
        advice: its help.
        near: what they depend on, so that whoever asks for derivatives by it is told as well.
    """
    own = [g.detach().requires_grad_() for g in gradients if g is not None]
    if not own:
        return [*gradients]
    tensors = [each for each in near if isinstance(each, torch.Tensor)]
    left = iter(_Once.apply((what, because, advice), len(own), *own, *tensors))
    return [None if g is None else next(left) for g in gradients]


class _Once(_Function):
    @staticmethod
    def forward(
        ctx: Any, words: tuple[str, str, str], count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.words = words
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        what, because, advice = ctx.words
        raise IrcError("not-differentiable", what, because=because, help=advice)
