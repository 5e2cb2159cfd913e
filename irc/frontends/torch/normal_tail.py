"""The logarithm of the normal distribution in what is trained, far from 0.

torch takes it apart into two forms and a choice. Far below 0 the form that is not chosen is
infinite, and its gradient, times 0, is NaN. So here each form is given numbers that are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from irc.frontends.torch.own_backward import is_differentiated

_special: Any = torch.special
"""torch's, whose functions have no types."""


def log_ndtr(input: Tensor) -> Tensor | None:  # noqa: A002 - torch's name
    """Return the logarithm of what lies below each number; None where torch is to say it."""
    if not is_differentiated() or input.dtype not in (torch.float32, torch.float64):
        return None
    is_low = input < 1
    low = torch.where(is_low, input, 0.0) * math.sqrt(0.5)
    high = torch.where(is_low, 1.0, input) * math.sqrt(0.5)
    below = torch.log(_special.erfcx(-low) / 2) - low * low
    return torch.where(is_low, below, torch.log1p(-torch.erfc(high) / 2))


OWN: dict[Any, Callable[[Tensor], Tensor | None]] = {
    _special.log_ndtr: log_ndtr,
    torch.ops.aten.special_log_ndtr.default: log_ndtr,
}
