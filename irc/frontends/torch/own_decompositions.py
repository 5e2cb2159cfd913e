"""Ways to take ops apart that differ from torch's own, where those lose what eager gives."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath

MEAN = 1
"""The reduction of a loss that divides by the number of its elements."""


@pw_cast_for_opmath
def smooth_l1_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """Return the gradient of the smooth L1 loss: nan where the difference is, as in eager.

    torch takes it apart into the sign of a nan, which is 0: an example that has gone wrong would
    train as if it were right.
    """
    difference = self - target
    slope = grad_output / self.numel() if reduction == MEAN else grad_output
    return torch.where(
        difference.abs() >= beta, slope * torch.sign(difference), slope * difference / beta
    )


OWN: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
}
