"""Functions that eager rounds at other steps than torch's decompositions do, or signs otherwise.

``softshrink`` of a half type is rounded once, and 0 of small numbers below 0. ``ndtr`` of a half
type is rounded at each of its steps, as eager runs them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_library: Any = torch.special
"""torch's functions, whose types are unknown in part."""

HALVES = (torch.bfloat16, torch.float16)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:  # noqa: A002 - torch's name
    """Return what is left of numbers that come nearer to 0 by ``lambd``: 0 of small ones.

    Half types are computed in float32, and ``lambd`` is not rounded to them, as in eager. Its
    vectors give 0 for small numbers below 0 (the last few of a tensor, one by one, -0); torch takes
    it apart into -0.
    """
    if not input.is_floating_point() or lambd < 0:
        return F.softshrink(input, lambd)  # which refuses them
    wide = input.float() if input.dtype in HALVES else input
    size = wide.abs()
    # What is no number stays so, and passes no gradient.
    small = torch.where(size <= lambd, 0.0, math.nan)
    shrunk = torch.where(size > lambd, wide - torch.sign(wide) * lambd, small)
    return shrunk.to(input.dtype)


def ndtr(input: Tensor) -> Tensor:  # noqa: A002 - torch's name
    """Return how much of the normal distribution lies below each number."""
    half = input.dtype
    if half not in HALVES:
        return _library.ndtr(input)
    scaled = (input.float() * math.sqrt(0.5)).to(half)
    above = torch.erf(scaled.float()).to(half)
    both = (1 + above.float()).to(half)
    return (both.float() * 0.5).to(half)


OWN: Mapping[Any, Callable[..., Tensor]] = {
    F.softshrink: softshrink,
    torch.ops.aten.softshrink.default: softshrink,
    _library.ndtr: ndtr,
    torch.ops.aten.special_ndtr.default: ndtr,
}
