"""Ways to take ops apart that differ from torch's own, where those lose what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import _refs as refs
from torch._decomp import decompositions

from irc.frontends.torch.detached_writes import DETACHED
from irc.frontends.torch.own_backward import is_differentiated

_library: Any = decompositions
"""torch's own ways, whose types are unknown in part."""
_refs: Any = refs
pw_cast_for_opmath = _library.pw_cast_for_opmath

NONE, MEAN = 0, 1
"""Reductions of a loss, by torch's numbers; 2 adds up."""


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


@pw_cast_for_opmath
def binary_cross_entropy(
    self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """Return the loss of probabilities; in what is trained with eager's gradient.

    That is bounded at 0 and 1, where the derivative of a logarithm is infinite.
    """
    below = torch.log1p(-self).clamp(min=-100)
    above = torch.log(self).clamp(min=-100)
    loss = (target - 1) * below - target * above
    if is_differentiated():
        slope = DETACHED((self - target) / ((1 - self) * self).clamp(min=1e-12))
        loss = DETACHED(loss) + slope * (self - DETACHED(self))
        loss = loss + DETACHED(below - above) * (target - DETACHED(target))
    if weight is not None:
        loss = loss * weight
    return loss.mean() if reduction == MEAN else loss if reduction == NONE else loss.sum()


def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the gradient of dropout; it lies as what comes in, and torch's way copies it."""
    return grad_output * (mask.type_as(grad_output) * scale)


def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Return dims rotated, joined of two parts as eager does: what lies channels last stays so.

    torch's fake kernel says that the result lies row by row. Dims of open size are left to it.
    """
    rolled = [self.shape[dim] for dim in dims] if dims else list(self.shape)
    if any(isinstance(size, torch.SymInt) for size in rolled):
        return NotImplemented
    if not dims:
        return roll(self.reshape(-1), shifts, (0,)).view(self.shape)
    for dim, shift in zip(dims, shifts, strict=True):
        size = self.shape[dim]
        cut = -shift % size if size else 0
        if cut:
            parts = [self.narrow(dim, cut, size - cut), self.narrow(dim, 0, cut)]
            self = torch.cat(parts, dim)
        else:  # joined with nothing, which eager lays row by row
            self = self.clone(memory_format=torch.contiguous_format)
    return self


def index_fill(self: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    """Return a copy that is filled at indices, which count from the end where they are negative.

    torch takes it apart into a copy to indices, which may not be negative.
    """
    size = self.shape[dim] if self.ndim else 1
    filled: Tensor = _refs.index_fill(self, dim, torch.where(index < 0, index + size, index), value)
    return filled


OWN: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.binary_cross_entropy.default: binary_cross_entropy,
    torch.ops.aten.index_fill.int_Scalar: index_fill,
    torch.ops.aten.index_fill.int_Tensor: index_fill,
    torch.ops.aten.native_dropout_backward.default: native_dropout_backward,
    torch.ops.aten.roll.default: roll,
    torch.ops.aten.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
}
