"""Loop axes of a kernel, found by unification.

Every dim of every value in a group runs over a row-major list of axes. Ops say which dims run
together; :func:`unify` makes their axes one, splitting an axis where a reshape does. What remains
are the loops of the kernel. (Shardy calls them factors, Halide's inlining leaves the same loops.)

>>> whole, rows, columns = Axis(12), Axis(3), Axis(4)
>>> unify([whole], [rows, columns])
True
>>> [axis is part for axis, part in zip(leaves([whole]), (rows, columns))]
[True, True]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias


class Axis:
    """A loop of ``size`` points, or, once unified, another axis or a row-major list of parts."""

    __slots__ = ("parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[Axis, ...] | None = None

    def __repr__(self) -> str:
        return f"Axis({self.size})"


Axes: TypeAlias = tuple[Axis, ...]
"""The axes of one dim, outermost first; a dim of size 1 has none."""


def axes_of(size: int) -> Axes:
    """Return new axes for a dim."""
    return () if size == 1 else (Axis(size),)


def leaves(axes: Iterable[Axis]) -> list[Axis]:
    """Return the axes that are left after all unification."""
    final: list[Axis] = []
    for axis in axes:
        if axis.parts is None:
            final.append(axis)
        else:
            # Path compression keeps chains of aliases short.
            axis.parts = tuple(leaves(axis.parts))
            final.extend(axis.parts)
    return final


def unify(left: Sequence[Axis], right: Sequence[Axis]) -> bool:
    """Make two row-major lists of axes the same; False where their sizes do not nest."""
    a, b = leaves(left)[::-1], leaves(right)[::-1]
    while a and b:
        x, y = a.pop(), b.pop()
        if x is y:
            continue
        if x.size == y.size:
            x.parts = (y,)
        elif x.size and y.size and x.size % y.size == 0:
            rest = Axis(x.size // y.size)
            x.parts = (y, rest)
            a.append(rest)
        elif x.size and y.size and y.size % x.size == 0:
            rest = Axis(y.size // x.size)
            y.parts = (x, rest)
            b.append(rest)
        else:
            return False
        # An axis may stand further on too; see its new form.
        a, b = leaves(a[::-1])[::-1], leaves(b[::-1])[::-1]
    return not a and not b
