"""From axes to loops: put them in order, and join neighbours that every access walks as one.

Fewer loops mean longer ones: a bias add over ``[8, 16, 768]`` has two loops, not three, and a
kernel that touches only contiguous memory has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from irc.kernels.axes import Axis, leaves
from irc.kernels.nest import Access, Nest
from irc.kernels.trace import GroupError, Node


@dataclass(frozen=True)
class Loop:
    """Joined axes: ``inner`` carries the strides, ``size`` counts all points."""

    size: int
    inner: Axis | None

    def stride(self, access: Access) -> int:
        """Return how far an access moves from one point to the next."""
        return 0 if self.inner is None else access.strides.get(self.inner, 0)


UNIT = Loop(1, None)


@dataclass(frozen=True)
class Loops:
    """The loops of a kernel: parallel ones (at least one), then reduced ones."""

    parallel: tuple[Loop, ...]
    reduced: tuple[Loop, ...]

    @property
    def space(self) -> tuple[int, ...]:
        """The iteration space."""
        return tuple(loop.size for loop in (*self.parallel, *self.reduced))

    def strides(self, access: Access, *, full: bool = True) -> tuple[int, ...]:
        """Return one stride per loop."""
        loops = (*self.parallel, *self.reduced)
        kept = len(loops) if full else len(self.parallel)
        return tuple(loop.stride(access) if i < kept else 0 for i, loop in enumerate(loops))


def join(axes: Sequence[Axis], accesses: Sequence[Access]) -> list[Loop]:
    """Join neighbouring axes where each access steps evenly over both."""
    loops: list[Loop] = []
    for axis in axes:
        outer, loop = loops[-1] if loops else None, Loop(axis.size, axis)
        if outer is not None and all(
            outer.stride(a) == loop.stride(a) * axis.size for a in accesses
        ):
            loops[-1] = Loop(outer.size * axis.size, axis)
        else:
            loops.append(loop)
    return loops


def loops_of(nest: Nest, *, any_rows: bool = False) -> Loops:
    """Order and join the axes of a nest.

    Args:
        nest: from :func:`irc.kernels.nest.nest_of`.
        any_rows: the loops are to be those of other sizes too. Whether the windows of a row end
            where the next row begins depends on its length: such rows are not joined.

    Raises:
        GroupError: where a matmul's reduced axes do not join; ``copies`` names operands to copy.
    """
    accesses = nest.positions
    reduced = join(nest.reduced, accesses)
    if nest.contract is not None and nest.contract.attrs.get("windows"):
        return Loops(tuple(_convolution_loops(nest, accesses)), tuple(reduced))
    if nest.template == "matmul" and not nest.is_packed:
        if len(reduced) > 1:
            raise GroupError("reduced dims that lie apart in memory", _copies(nest))
        return Loops(tuple(_matmul_loops(nest, accesses)), tuple(reduced))
    if any_rows and len(reduced) > 1:
        return Loops(tuple(Loop(x.size, x) for x in nest.tasks) or (UNIT,), tuple(reduced))
    return Loops(tuple(join(nest.tasks, accesses) or [UNIT]), tuple(reduced))


def contract_operands(nest: Nest) -> tuple[Node, Node]:
    """Return (a, b) of a matmul, b being the operand that the output's last dim belongs to."""
    contract = next(node for node in nest.nodes if node.kind == "contract")
    a, b = contract.operands
    if contract.attrs.get("windows"):
        return a, b
    last = nest.tasks[-1] if nest.tasks else None
    if last is None or nest.accesses[b].strides.get(last, 0):
        return a, b
    return (b, a) if nest.accesses[a].strides.get(last, 0) else (a, b)


def _matmul_loops(nest: Nest, accesses: Sequence[Access]) -> list[Loop]:
    """Batch loops, then m (in a alone), then n (in b alone)."""
    a, b = contract_operands(nest)
    in_a, in_b = (nest.accesses[node].strides for node in (a, b))
    only_a = [x for x in nest.tasks if in_a.get(x, 0) and not in_b.get(x, 0)]
    only_b = [x for x in nest.tasks if in_b.get(x, 0) and not in_a.get(x, 0)]
    batch = join([x for x in nest.tasks if x not in only_a and x not in only_b], accesses)
    rows, columns = join(only_a, accesses) or [UNIT], join(only_b, accesses) or [UNIT]
    # Loops of m or n that do not join become batch loops: the longest m and the last n stay.
    m = max(rows, key=lambda loop: loop.size)
    n = columns[-1]
    batch += [loop for loop in rows if loop is not m] + [loop for loop in columns if loop is not n]
    return [*batch, m, n]


def _convolution_loops(nest: Nest, accesses: Sequence[Access]) -> list[Loop]:
    """Groups, then the places (in the image alone), then output channels (in the weight alone)."""
    assert nest.contract is not None
    image, weight = (nest.accesses[node].strides for node in nest.contract.operands)
    columns = [x for x in nest.tasks if weight.get(x, 0) and not image.get(x, 0)]
    groups = [x for x in nest.tasks if weight.get(x, 0) and image.get(x, 0)]
    places = [x for x in nest.tasks if x not in columns and x not in groups]
    return [*join(groups, accesses), *(join(places, accesses) or [UNIT]), *join(columns, accesses)]


def _copies(nest: Nest) -> list[tuple[SSAValue, tuple[int, ...]]]:
    """Operands whose reduced dims do not join, with the order of dims in which a copy would.

    Where an operand's memory walks parts of two dims in turn (windows of an image), or the parts of
    one dim in another order (a reshape of a transpose), no order of whole dims lets the other
    follow it: then that one is copied, and the other may join as it is.
    """
    position = {axis: i for i, axis in enumerate(nest.reduced)}
    copies: list[tuple[SSAValue, tuple[int, ...]]] = []
    turned: list[tuple[SSAValue, tuple[int, ...]]] = []
    for node in contract_operands(nest):
        assert node.stored is not None and node.source is not None
        axes, places = iter(node.axes), list[list[int]]()
        for dim in node.stored[1].dims:
            own = [leaves((next(axes),)) for _ in dim]
            places.append([position[x] for part in own for x in part if x in position])
        first = [min(parts, default=-1) for parts in places]
        copy = node.source, tuple(sorted(range(len(first)), key=lambda d: (first[d], d)))
        if len(join(nest.reduced, [nest.accesses[node]])) > 1:
            copies.append(copy)
        elif any(parts and parts != list(range(parts[0], parts[-1] + 1)) for parts in places):
            turned.append(copy)
    return turned or copies
