"""ATen's adaptive pools: windows that divide a dim, or differ by one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.frontends.torch.lowering import Lowering, enter, number
from irc.frontends.torch.reductions import mean_of
from irc.frontends.torch.shapes import joined, sliced
from irc.frontends.torch.windows import pooled

MOST_PARTS = 32
"""Windows of a dim that are reduced one by one; more of unequal widths stay in the library."""


def windows_of(size: int, count: int) -> list[tuple[int, int]]:
    """Return where each window begins and ends, as torch cuts a dim.

    >>> windows_of(7, 3)
    [(0, 3), (2, 5), (4, 7)]
    """
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def adaptive_pool(t: Lowering, x: SSAValue, fn: str, ndim: int) -> SSAValue:
    """Reduce the last dims to the stated sizes by ``avg`` or ``max``.

    A rectangle's mean is the mean of its rows' means, so that one dim goes after the other.
    """
    first = tensor(x).ndim - ndim
    counts = [number(d) for d in t.shape[first:]]
    if all(d == 1 for d in counts):
        return _whole(t, x, fn, range(first, first + ndim))
    sizes = [number(d) for d in tensor(x).shape[first:]]
    if not all((*counts, *sizes)):
        t.decline()
    if not any(size % count for size, count in zip(sizes, counts, strict=True)):
        window = [size // count for size, count in zip(sizes, counts, strict=True)]
        return pooled(t, x, fn, window, window, 0, 1, True)
    if max(counts) > MOST_PARTS:
        t.decline()
    wide = t.b.cast(x, t.accumulating(t.dtype))
    for dim, (size, count) in enumerate(zip(sizes, counts, strict=True), first):
        parts = [sliced(t, wide, dim, *window) for window in windows_of(size, count)]
        wide = joined(t, [_whole(t, part, fn, [dim]) for part in parts], dim)
    return t.b.cast(wide, t.dtype)


def _whole(t: Lowering, x: SSAValue, fn: str, dims: Sequence[int]) -> SSAValue:
    if fn == "max":
        return t.b.reduce("max", x, dims, keep_dims=True)
    wide = t.b.cast(x, t.accumulating(tensor(x).dtype))
    return t.b.cast(mean_of(t, wide, dims, True), tensor(x).dtype)


def _average(ndim: int) -> Any:
    def row(t: Lowering, self: SSAValue, output_size: Sequence[int]) -> SSAValue:
        return adaptive_pool(t, self, "avg", ndim)

    return row


def _largest(ndim: int) -> Any:
    def row(t: Lowering, self: SSAValue, output_size: Sequence[int]) -> list[SSAValue | None]:
        return t.decline() if t.read[1] else [adaptive_pool(t, self, "max", ndim), None]

    return row


for _n in (1, 2, 3):
    enter(dict.fromkeys((f"adaptive_avg_pool{_n}d", f"_adaptive_avg_pool{_n}d"), _average(_n)))
    enter({f"adaptive_max_pool{_n}d": _largest(_n)})
