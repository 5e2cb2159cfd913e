"""SBP placements: how a logical tensor lies on a mesh (OneFlow, arXiv:2110.15032, section 3).

On each mesh axis a tensor is split along one dimension, ``S(dim)``, replicated, ``B``, or a partial
value that the ranks of the axis must still reduce, ``P(sum)``, ``P(max)``, ``P(min)``. Where
several axes split the same dimension, the order in which they were applied is part of the
placement: sharding over ``data`` then ``tensor`` puts other blocks on a rank than ``tensor`` then
``data``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, TypeAlias

Reduction: TypeAlias = Literal["sum", "max", "min"]


@dataclass(frozen=True, order=True)
class Split:
    """``S(dim)``: rank r of the axis holds the r-th ceil-sized chunk of ``dim``.

    ``order`` is the position among the axes that split the same dim; axes apply in rising order.
    """

    dim: int
    order: int = 0

    def __str__(self) -> str:
        return f"S({self.dim})" if self.order == 0 else f"S({self.dim}, {self.order})"


@dataclass(frozen=True, order=True)
class Broadcast:
    """``B``: every rank of the axis holds the same values."""

    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, order=True)
class Partial:
    """``P(reduction)``: the value is the reduction over the ranks of the axis."""

    reduction: Reduction = "sum"

    def __str__(self) -> str:
        return f"P({self.reduction})"


AxisPlacement: TypeAlias = Split | Broadcast | Partial
B = Broadcast()


@dataclass(frozen=True)
class Placement:
    """One :data:`AxisPlacement` for each mesh axis, in mesh order.

    >>> str(Placement.of(data=Split(0), tensor=B))
    '[data = S(0), tensor = B]'

    Invariant (checked): the orders of the axes that split one dim are 0, 1, ... without gaps.
    ``order`` is left 0 by :meth:`of` and numbered in mesh order there.
    """

    axes: tuple[tuple[str, AxisPlacement], ...]

    def __post_init__(self) -> None:
        # The search looks placements up by the million.
        object.__setattr__(self, "_hash", hash(self.axes))
        orders: dict[int, list[int]] = {}
        for name, placed in self.axes:
            if isinstance(placed, Split):
                if placed.dim < 0:
                    raise ValueError(f"axis '{name}' splits dim {placed.dim}, which is negative")
                orders.setdefault(placed.dim, []).append(placed.order)
        for dim, seen in orders.items():
            if sorted(seen) != list(range(len(seen))):
                raise ValueError(
                    f"axes that split dim {dim} must be ordered 0..{len(seen) - 1}, got {seen}"
                )

    def __hash__(self) -> int:
        return self.__dict__["_hash"]

    def __reduce__(self) -> tuple[type[Placement], tuple[object]]:
        # Another process hashes strings otherwise.
        return Placement, (self.axes,)

    @staticmethod
    def of(**axes: AxisPlacement) -> Placement:
        """Build a placement whose axes apply in the order given (mesh order)."""
        return Placement.in_mesh_order(tuple(axes.items()))

    @staticmethod
    @lru_cache(maxsize=1 << 16)
    def in_mesh_order(axes: tuple[tuple[str, AxisPlacement], ...]) -> Placement:
        """Number the splits of each dim in the order of the axes."""
        count: dict[int, int] = {}
        numbered: list[tuple[str, AxisPlacement]] = []
        for name, placed in axes:
            if isinstance(placed, Split):
                order = count.get(placed.dim, 0)
                count[placed.dim] = order + 1
                placed = Split(placed.dim, order)
            numbered.append((name, placed))
        return Placement(tuple(numbered))

    @staticmethod
    def replicated(axes: tuple[str, ...]) -> Placement:
        """Return B on every axis."""
        return Placement(tuple((name, B) for name in axes))

    def __getitem__(self, axis: str) -> AxisPlacement:
        for name, placed in self.axes:
            if name == axis:
                return placed
        raise KeyError(axis)

    def __iter__(self) -> Iterator[AxisPlacement]:
        return (placed for _, placed in self.axes)

    def __str__(self) -> str:
        return f"[{', '.join(f'{name} = {placed}' for name, placed in self.axes)}]"

    @property
    def names(self) -> tuple[str, ...]:
        """The mesh axes, in mesh order."""
        return tuple(name for name, _ in self.axes)

    def split_axes(self, dim: int) -> tuple[str, ...]:
        """Return the axes that split ``dim``, first applied first."""
        axes = [(p.order, n) for n, p in self.axes if isinstance(p, Split) and p.dim == dim]
        return tuple(name for _, name in sorted(axes))

    def partial_axes(self) -> tuple[str, ...]:
        """Return the axes on which the value is partial."""
        return tuple(name for name, placed in self.axes if isinstance(placed, Partial))

    @property
    def is_replicated(self) -> bool:
        """True where every rank holds the whole value."""
        return all(isinstance(placed, Broadcast) for placed in self)


MAX_AXES = 8
"""Each choice of placements has a part for each axis: their number grows with a power of it."""
MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Mesh:
    """Named axes over ranks numbered row-major: the last axis varies fastest.

    >>> Mesh.parse("data=2,tensor=4").coordinates(5)
    {'data': 1, 'tensor': 1}
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(names) > MAX_AXES:
            raise ValueError(f"a mesh of {len(names)} axes; it has at most {MAX_AXES}")
        if len(set(names)) != len(names):
            raise ValueError(f"mesh axis names repeat: {', '.join(names)}")
        for name, size in self.axes:
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(f"mesh axis name {name!r} is not an ASCII identifier")
            if size < 1:
                raise ValueError(f"mesh axis '{name}' has size {size}; sizes start at 1")
        if self.num_ranks > MAX_RANKS:
            raise ValueError(f"a mesh of {self.num_ranks} ranks; it has at most {MAX_RANKS}")

    @staticmethod
    def of(axes: Mapping[str, int]) -> Mesh:
        """Build a mesh from a mapping in axis order."""
        return Mesh(tuple(axes.items()))

    @staticmethod
    def parse(text: str) -> Mesh:
        """Parse ``data=2,tensor=4``; the empty text is one device.

        Raises:
            ValueError: with the part that is wrong.
        """
        axes: list[tuple[str, int]] = []
        for part in (p.strip() for p in text.split(",")) if text.strip() else ():
            if not part:
                raise ValueError("an axis is missing before or after a comma")
            name, equals, size = part.partition("=")
            if not equals or not size.strip().isascii() or not size.strip().isdigit():
                raise ValueError(f"{part!r} is not of the form axis=size")
            axes.append((name.strip(), int(size)))
        return Mesh(tuple(axes))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axis names, outermost first."""
        return tuple(name for name, _ in self.axes)

    @property
    def num_ranks(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Return the number of ranks along ``axis``."""
        return self._sizes[axis]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the position of ``rank`` on each axis."""
        position: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, position[name] = divmod(rank, size)
        return {name: position[name] for name in self.names}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank at a position."""
        rank = 0
        for name, size in self.axes:
            rank = rank * size + coordinates[name]
        return rank

    def groups(self, axis: str) -> list[range]:
        """Return the groups of ranks that differ along ``axis`` only, each in axis order.

        >>> Mesh.parse("data=2,tensor=2").groups("data")
        [range(0, 4, 2), range(1, 5, 2)]
        """
        stride, span = self._stride(axis), self.size(axis) * self._stride(axis)
        return [
            range(first, first + span, stride)
            for outer in range(0, self.num_ranks, span)
            for first in range(outer, outer + stride)
        ]

    def group_of(self, rank: int, axis: str) -> range:
        """Return the group of ``rank`` along ``axis``."""
        stride, size = self._stride(axis), self.size(axis)
        first = rank - rank // stride % size * stride
        return range(first, first + size * stride, stride)

    def _stride(self, axis: str) -> int:
        """How far neighbours along an axis are apart."""
        return prod(size for _, size in self.axes[self.names.index(axis) + 1 :])
