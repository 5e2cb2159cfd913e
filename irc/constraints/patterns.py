"""Patterns of placements, as constraints write them: some axes fixed, others left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from irc.dialects.placement import AxisPlacement, B, Broadcast, Mesh, Partial, Placement, Split

Wild: TypeAlias = Literal["*", "S(*)", "P(*)"]
"""Anything, any split, any partial value."""


@dataclass(frozen=True)
class AxisPattern:
    """What one mesh axis may be.

    Attributes:
        placed: a placement (of a split, the dim may count back from the end), or a wildcard.
        ordered: true where the order of application was written and must hold, too.
    """

    placed: AxisPlacement | Wild
    ordered: bool = False

    def matches(self, placement: AxisPlacement, ndim: int) -> bool:
        """Return whether a placement of a tensor with ``ndim`` dims fits."""
        match self.placed:
            case "*":
                return True
            case "S(*)":
                return isinstance(placement, Split)
            case "P(*)":
                return isinstance(placement, Partial)
            case Split(dim, order):
                if not isinstance(placement, Split) or placement.dim != (
                    dim + ndim if dim < 0 else dim
                ):
                    return False
                return not self.ordered or placement.order == order
            case _:
                return placement == self.placed

    def __str__(self) -> str:
        if isinstance(self.placed, Split) and not self.ordered:
            return f"S({self.placed.dim})"
        return str(self.placed)


ANYTHING = AxisPattern("*")


@dataclass(frozen=True)
class Pattern:
    """A set of placements.

    Attributes:
        named: patterns by axis; axes that are not named are open.
        listed: patterns in mesh order, where the pattern was written as a tuple.
    """

    named: tuple[tuple[str, AxisPattern], ...] = ()
    listed: tuple[AxisPattern, ...] | None = None

    def axes(self, mesh: Mesh) -> tuple[AxisPattern, ...]:
        """Return one pattern for each axis of a mesh.

        Raises:
            ValueError: where it names an axis that the mesh lacks, or lists another number.
        """
        if self.listed is not None:
            if len(self.listed) != len(mesh.axes):
                raise ValueError(f"{self} lists {len(self.listed)} axes; the mesh is {mesh}")
            return self.listed
        patterns = dict(self.named)
        if unknown := [name for name in patterns if name not in mesh.names]:
            raise ValueError(f"{self} places on {', '.join(unknown)}; the mesh is {mesh}")
        return tuple(patterns.get(name, ANYTHING) for name in mesh.names)

    def matches(self, placement: Placement, mesh: Mesh, ndim: int) -> bool:
        """Return whether a placement fits; axes of one rank hold the same however they are said."""
        pairs = zip(self.axes(mesh), placement.axes, strict=True)
        return all(
            pattern.matches(placed, ndim) or mesh.size(axis) == 1
            for pattern, (axis, placed) in pairs
        )

    def exact(self, mesh: Mesh, ndim: int) -> Placement | None:
        """Return the one placement that fits; None where several do.

        Raises:
            ValueError: where the orders of axes that split one dim do not make a placement.
        """
        axes: list[tuple[str, AxisPlacement]] = []
        patterns = self.axes(mesh)
        for axis, pattern in zip(mesh.names, patterns, strict=True):
            match pattern.placed:
                case Split(dim, order):
                    axes.append((axis, Split(dim + ndim if dim < 0 else dim, order)))
                case Broadcast() | Partial():
                    axes.append((axis, pattern.placed))
                case _ if mesh.size(axis) == 1:
                    axes.append((axis, B))
                case _:
                    return None
        if any(pattern.ordered for pattern in patterns):
            return Placement(tuple(axes))
        return Placement.in_mesh_order(tuple(axes))

    def __str__(self) -> str:
        if self.listed is not None:
            return f"({', '.join(map(str, self.listed))})"
        return f"[{', '.join(f'{axis} = {pattern}' for axis, pattern in self.named)}]"

    @staticmethod
    def of(placement: Placement) -> Pattern:
        """Return the pattern that one placement fits."""
        return Pattern(
            tuple(
                (axis, AxisPattern(placed, isinstance(placed, Split)))
                for axis, placed in placement.axes
            )
        )


@dataclass(frozen=True)
class SignaturePattern:
    """Patterns of all operands and results of an op."""

    operands: tuple[Pattern, ...]
    results: tuple[Pattern, ...]

    def __str__(self) -> str:
        return " -> ".join(", ".join(map(str, side)) for side in (self.operands, self.results))


def all_match(
    patterns: Sequence[Pattern], placements: Sequence[Placement], mesh: Mesh, ndims: Sequence[int]
) -> bool:
    """Return whether placements fit patterns, one by one."""
    return len(patterns) == len(placements) and all(
        pattern.matches(placement, mesh, ndim)
        for pattern, placement, ndim in zip(patterns, placements, ndims, strict=True)
    )
