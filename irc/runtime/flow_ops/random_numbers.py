"""Numbers of a counter: an element depends on seed, stream and its place alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.runtime.dtypes import dtypes
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results

if TYPE_CHECKING:
    import torch


RANDOM_PART = 1 << 16
"""So many numbers are drawn at a time."""


def _random(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    shape, dtype = results[0]
    drawn = torch.empty(prod(shape), dtype=dtypes()[dtype])
    # Part by part: the numbers on the way take several times the memory of the result.
    for first in range(0, len(drawn), RANDOM_PART):
        part = drawn[first : first + RANDOM_PART]
        part.copy_(_drawn(attrs, inputs, shape, first, len(part)))
    return drawn.reshape(shape)


def _drawn(
    attrs: Attrs, inputs: Sequence[torch.Tensor], shape: Sequence[int], first: int, count: int
) -> torch.Tensor:
    import torch

    # Element i is a function of (seed, stream, i) alone: splitmix64 of a counter, so any shard of
    # the tensor can be drawn by itself (Steele et al., OOPSLA 2014, section 3).
    # Seeds and streams are hashed first: else those of the next step would be these, moved along.
    start = _splitmix64(_splitmix64(inputs[0].to(torch.int64)) ^ attrs["stream"])
    counter = _places(shape, attrs, inputs, first, count) + start
    uniform = (_splitmix64(counter) >> 11 & (1 << 53) - 1).to(torch.float64) * 2.0**-53
    if attrs["distribution"] == "normal":
        other = (_splitmix64(counter ^ 0x2545F491) >> 11 & (1 << 53) - 1).to(
            torch.float64
        ) * 2.0**-53
        uniform = torch.sqrt(-2 * torch.log1p(-uniform)) * torch.cos(2 * torch.pi * other)
    return uniform


def _places(
    shape: Sequence[int], attrs: Attrs, inputs: Sequence[torch.Tensor], first: int, count: int
) -> torch.Tensor:
    """Return the row-major places of some elements, in the whole tensor if this is a shard of one.

    Args:
        shape: of the shard.
        attrs: with ``strides``, the steps of the shard's dims in the whole tensor.
        inputs: the seed, and the place of the shard's first element.
        first: the row-major number of the first element in the shard.
        count: how many.
    """
    import torch

    here = torch.arange(first, first + count, dtype=torch.int64)
    if "strides" not in attrs:
        return here
    places = inputs[1].to(torch.int64).reshape(1)
    for size, stride in zip(shape[::-1], attrs["strides"][::-1], strict=True):
        places = places + here % size * stride
        here = here // size
    return places


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    x = x + -0x61C8864680B583EB
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & (1 << 33) - 1)


KERNELS: Mapping[str, Kernel] = {
    names.RANDOM: _random,
}
