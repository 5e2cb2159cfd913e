"""Unpooling in eager's memory format: torch takes it apart into a result that is contiguous.

Eager's kernel lays its result as the pooled tensor lies, in channels last where that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._prims_common import suggest_memory_format

_TORCH: Any = torch
"""With the functions of C that its stubs leave out."""


def max_unpool2d(input: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:  # noqa: A002 - torch's name
    """Return zeros [N, C, *output_size] or [C, *output_size] with each number at its index.

    Args:
        input: numbers [N, C, H, W] or [C, H, W].
        indices: int64 of the same shape, places in a channel of the result.
        output_size: height and width of the result.

    Raises:
        RuntimeError: the shapes are not those; or, when it runs, an index lies outside.
    """
    return _laid_as(input, _TORCH._C._nn.max_unpool2d(input, indices, output_size))


def _functional(input: Tensor, *args: Any, **options: Any) -> Tensor:  # noqa: A002 - torch's name
    return _laid_as(input, F.max_unpool2d(input, *args, **options))


def _laid_as(pooled: Tensor, unpooled: Tensor) -> Tensor:
    if pooled.ndim == 4 and suggest_memory_format(pooled) is torch.channels_last:
        return unpooled.clone(memory_format=torch.channels_last)
    return unpooled


OWN: Mapping[Any, Callable[..., Tensor]] = {
    F.max_unpool2d: _functional,
    _TORCH._C._nn.max_unpool2d: max_unpool2d,
    torch.ops.aten.max_unpool2d.default: max_unpool2d,
}
