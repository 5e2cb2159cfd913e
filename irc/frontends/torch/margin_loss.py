"""The margin loss of several labels: torch's own decomposition of it counts too much (torch 2.13).

It takes what stands behind a sample's last label for the class 0, and adds its margins. Kernels of
eager mode do not. So the loss is written out here, and stands for torch's in what is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_TORCH: Any = torch
_F: Any = F
"""With what their stubs leave out, and functions whose types are unknown."""

NONE, MEAN = 0, 1
"""Reductions, by torch's numbers; 2 adds up."""


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:  # noqa: A002 - torch's name
    """Return the sum of ``max(0, 1 - x[label] + x[class]) / C`` over labels and other classes.

    Args:
        input: scores x, floats [N, C], [C] or [].
        target: labels, int64 of the same shape: classes, and -1 behind the last one of a sample.
        reduction: 0 gives each sample's loss [N] or [], 1 their mean [], 2 their sum [].

    Raises:
        RuntimeError: the shapes are not those; or, when it runs, a label is no class.
    """
    if input.ndim > 2 or 0 in input.shape[-1:]:
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got:"
            f" {[*input.shape]}"
        )
    if target.shape != input.shape:
        raise RuntimeError(
            f"inconsistent target size: {[*target.shape]} for input of size: {[*input.shape]}"
        )
    scores: Tensor = _TORCH.atleast_2d(input)
    labels: Tensor = _TORCH.atleast_2d(target)
    is_end = labels == -1
    is_label = is_end.cumsum(1) == 0
    # Also what stands behind the last label has to be a class: the kernel checks all of them.
    classes = torch.where(is_end, 0, labels)
    every = torch.arange(scores.shape[1], device=labels.device)
    is_other = ~((classes[:, :, None] == every) & is_label[:, :, None]).any(1)
    # At a margin of 0 there is no gradient, and one that is no number counts nothing.
    margins = 1 - scores.gather(1, classes)[:, :, None] + scores[:, None, :]
    margins = torch.where(margins > 0, margins, 0)
    is_counted = is_label[:, :, None] & is_other[:, None, :]
    losses = torch.where(is_counted, margins, 0).sum((1, 2)) / scores.shape[1]
    if reduction == NONE:
        return losses.reshape(input.shape[:-1])
    return losses.mean() if reduction == MEAN else losses.sum()


def _functional(
    input: Tensor,  # noqa: A002 - torch's name
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    if size_average is not None or reduce is not None:
        chosen = _F._Reduction.legacy_get_enum(size_average, reduce)
    else:
        chosen = _F._Reduction.get_enum(reduction)
    return multilabel_margin_loss(input, target, chosen)


OWN: Mapping[Any, Callable[..., Tensor]] = {
    F.multilabel_margin_loss: _functional,
    _TORCH._C._nn.multilabel_margin_loss: multilabel_margin_loss,
    torch.ops.aten.multilabel_margin_loss.default: multilabel_margin_loss,
}
