"""Views: how a value lies in the memory of another, as sizes and strides.

A dim of a view is a row-major list of factors ``(size, stride)``: merging two dims whose memory is
not adjacent (the heads of attention back into one width) gives a dim of two factors. Kernels loop
over factors, so they read such a dim without a copy; a library needs one stride a dim, and gets a
copy where a dim has two.

>>> heads = View.contiguous((2, 5, 3, 4)).transpose((0, 2, 1, 3))   # batch, heads, tokens, width
>>> joined = heads.transpose((0, 2, 1, 3)).reshape((2, 5, 12))
>>> joined.is_plain, heads.reshape((2, 15, 4)).dims[1]
(True, ((3, 4), (5, 12)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

from irc.dialects.flow import BroadcastOp, ReshapeOp, SliceOp, TransposeOp
from irc.ops.infer import broadcast_shapes

Factor: TypeAlias = tuple[int, int]
"""Size and stride, in elements."""


@dataclass(frozen=True)
class View:
    """Element ``i`` of a view is element ``offset + sum(stride * i)`` of its root.

    Attributes:
        offset: of the first element, in elements of the root.
        dims: the factors of each dim, outermost first, none of size 1, none that merge.
        size: elements of the root.
        margins: how many zeros stand in memory before and after each dim; none where it is empty.
    """

    offset: int
    dims: tuple[tuple[Factor, ...], ...]
    size: int
    margins: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @staticmethod
    def contiguous(shape: Sequence[int]) -> View:
        """Return the view of a whole contiguous tensor."""
        return View.strided(0, shape, contiguous_strides(shape), prod(shape))

    @staticmethod
    def strided(offset: int, shape: Sequence[int], strides: Sequence[int], size: int) -> View:
        """Return a view with one stride a dim."""
        dims = tuple(_merged([(n, s)]) for n, s in zip(shape, strides, strict=True))
        return View(offset, dims, size)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(prod(n for n, _ in dim) for dim in self.dims)

    @property
    def strides(self) -> tuple[int, ...] | None:
        """One stride a dim (0 for a dim of size 1), or None where a dim has several factors."""
        if any(len(dim) > 1 for dim in self.dims):
            return None
        return tuple(dim[0][1] if dim else 0 for dim in self.dims)

    @property
    def is_plain(self) -> bool:
        """True where the view is the whole root in order, at most reshaped."""
        return self.offset == 0 and prod(self.shape) == self.size and self.is_dense

    @property
    def is_dense(self) -> bool:
        """True where the view is a part of the root without gaps, in order."""
        return self.size == 0 or self.dims == View.contiguous(self.shape).dims

    def within(self, margins: Sequence[tuple[int, int]]) -> View:
        """Return the view without its margins, which it remembers."""
        starts = [low for low, _ in margins]
        stops = [n - high for n, (_, high) in zip(self.shape, margins, strict=True)]
        inner = self.slice(starts, stops, [1] * len(starts))
        assert inner is not None
        return replace(inner, margins=tuple(margins))

    def transpose(self, perm: Sequence[int]) -> View:
        """``result.dims[i] = dims[perm[i]]``."""
        return View(self.offset, tuple(self.dims[i] for i in perm), self.size)

    def broadcast(self, shape: Sequence[int]) -> View:
        """Stretch to a shape, aligned right: stretched dims have stride 0."""
        assert broadcast_shapes([self.shape, tuple(shape)]) == tuple(shape)
        missing = len(shape) - len(self.dims)
        old = (*[()] * missing, *self.dims)
        dims = tuple(
            dim if prod(n for n, _ in dim) == size else _merged([(size, 0)])
            for dim, size in zip(old, shape, strict=True)
        )
        return View(self.offset, dims, self.size)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Regroup the factors row-major; None where a new dim would end inside a prime one.

        >>> View.strided(0, (4, 6), (12, 1), 48).reshape((3, 8)) is None
        True
        """
        if 0 in shape:
            return View(self.offset, tuple(_merged([(n, 0)]) for n in shape), self.size)
        rest = [factor for dim in self.dims for factor in dim][::-1]
        # Memory that is in order across the dims splits anywhere.
        rest = list(_merged(rest[::-1]))[::-1]
        dims: list[tuple[Factor, ...]] = []
        for wanted in shape:
            taken: list[Factor] = []
            while wanted > 1:
                size, stride = rest.pop()
                if wanted % size == 0:
                    taken.append((size, stride))
                    wanted //= size
                elif size % wanted == 0:
                    taken.append((wanted, stride * (size // wanted)))
                    rest.append((size // wanted, stride))
                    wanted = 1
                else:
                    return None
            dims.append(_merged(taken))
        return View(self.offset, tuple(dims), self.size)

    def slice(
        self, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
    ) -> View | None:
        """Take ``starts[i]:stops[i]:steps[i]``; None where that cuts a dim of two factors."""
        offset, dims = self.offset, list[tuple[Factor, ...]]()
        for dim, size, start, stop, step in zip(
            self.dims, self.shape, starts, stops, steps, strict=True
        ):
            stop = size if stop == -1 else stop
            count = -(-(stop - start) // step)
            if (start, count) == (0, size):
                dims.append(dim)
            elif len(dim) > 1:
                return None
            else:
                stride = dim[0][1] if dim else 0
                offset += start * stride if count else 0
                dims.append(_merged([(count, stride * step)]))
        return View(offset, tuple(dims), self.size)

    def apply(self, name: str, attrs: dict[str, Any], shape: Sequence[int]) -> View | None:
        """Apply a shape op of flow (reshape, transpose, broadcast, slice), giving ``shape``."""
        match name:
            case ReshapeOp.name:
                return self.reshape(shape)
            case TransposeOp.name:
                return self.transpose(attrs["perm"])
            case BroadcastOp.name:
                return self.broadcast(shape)
            case SliceOp.name:
                return self.slice(attrs["starts"], attrs["stops"], attrs["steps"])
            case _:
                raise ValueError(f"{name} is not a shape op")


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _merged(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Drop factors of size 1 and join neighbours that are one run of memory."""
    kept: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if kept and kept[-1][1] == stride * size:
            kept[-1] = (kept[-1][0] * size, stride)
        else:
            kept.append((size, stride))
    return tuple(kept)
