"""The Gaussian loss in what is trained: torch looks at the numbers of the variances first.

It raises where one is below 0, so that a trace ends there. In a step the loss is written out
without that look, as the other checks of tensors are left out, and its user is told.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from irc.frontends.torch.own_backward import is_differentiated


def looks_at_variances(function: Any, args: Any, kwargs: Any) -> bool:
    """True for a call that checks a tensor of variances."""
    if function is not F.gaussian_nll_loss:
        return False
    return isinstance(args[2] if len(args) > 2 else kwargs.get("var"), Tensor)


def gaussian_nll_loss(
    input: Tensor,  # noqa: A002 - torch's name
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor | None:
    """Return ``(log(var) + (input - target)^2 / var) / 2``; None where torch is to look.

    Variances below ``eps`` count as ``eps``, which changes nothing of their gradient.
    """
    is_known = reduction in ("none", "mean", "sum")
    if not is_differentiated() or not isinstance(var, Tensor) or not is_known:
        return None
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif (
            var.ndim != input.ndim
            or sum(own for size, own in zip(input.shape, var.shape, strict=True) if size != own)
            != 1
        ):
            raise ValueError("var is of incorrect size")
    # An infinity less itself would be NaN.
    low = torch.where(var == -math.inf, 0.0, var)
    var = torch.where(var < eps, eps + (low - low.detach()), var)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


OWN = {F.gaussian_nll_loss: gaussian_nll_loss}
