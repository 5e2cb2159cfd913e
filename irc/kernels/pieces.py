"""Concat and pad as loads: which piece a point reads is a comparison, where it lies in it a shift.

Pieces of one size are a loop of their own, so that ``concat(-x2, x1)`` of rotary embeddings selects
once per run of elements. Pieces of several sizes are read through bounds: a load outside its piece
touches no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import ConcatOp, FlowOp, PadOp, tensor
from irc.dialects.types import is_float, number_in
from irc.kernels.axes import Axes, Axis, axes_of, leaves
from irc.kernels.holds import shape_of
from irc.kernels.trace import Dims, GroupError, Node, Term, Trace, leaf_set
from irc.kernels.view import contiguous_strides
from irc.kernels.windows import Bound


def concat(walk: Trace, op: ConcatOp) -> Term:
    """Select among pieces by the position along the joined dim."""
    at = op.dim
    sizes = [shape_of(value)[at] for value in op.inputs]
    pieces = [_piece(walk, value) for value in op.inputs]
    dtype = tensor(op.outputs[0]).dtype
    if len(set(sizes)) == 1:
        which = Axis(len(sizes))
        inner = _met(walk, op, pieces, None)
        limits = range(1, len(sizes))
        nodes, dims = [p.node for p in pieces], (*inner[:at], (which, *inner[at]), *inner[at + 1 :])
        return Term(_chosen(walk, nodes, which, limits, dtype), dims)
    whole = Axis(sum(sizes))
    inner = _met(walk, op, pieces, at)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = [
        _Move(walk, _only(walk, value, piece.dims[at]), whole, start, size).node(piece.node)
        for value, piece, start, size in zip(op.inputs, pieces, starts, sizes, strict=True)
    ]
    dims = (*inner[:at], (whole,), *inner[at + 1 :])
    return Term(_chosen(walk, nodes, whole, starts[1:], dtype), dims)


def pad(walk: Trace, op: PadOp) -> Term:
    """Read the value within its bounds, and the literal around them."""
    x, shape = op.x, shape_of(op.outputs[0])
    piece, dtype = _piece(walk, x), tensor(op.outputs[0]).dtype
    value = number_in(op.value, dtype)
    node, dims = _filled(walk, piece.node, value), list(piece.dims)
    for d, (low, high) in enumerate(zip(op.low, op.high, strict=True)):
        if not (low or high):
            continue
        size, axes = shape_of(x)[d], axes_of(shape[d])
        new, old = axes[0] if axes else None, _only(walk, x, dims[d])
        bounded = _is_filled(node, value) and old is not None and old in leaf_set(node.axes)
        node, dims[d] = _Move(walk, old, new, low, size).node(node), axes
        if (low > 0 or high > 0) and not bounded:
            fill = walk.node("constant", dtype, (), attrs={"value": value})
            node = _between(walk, node, fill, new, (low, low + size), dtype)
    return Term(node, tuple(dims))


def _filled(walk: Trace, node: Node, value: float) -> Node:
    """A load of memory without bounds of its own gives a literal outside those of a pad."""
    if node.kind != "load" or node.operands or node.attrs.get("bounds"):
        return node
    return walk.node(
        "load", node.dtype, node.axes, stored=node.stored, source=node.source,
        attrs={**node.attrs, "fill": value},
    )  # fmt: skip


def _is_filled(node: Node, value: float) -> bool:
    return node.kind == "load" and not node.operands and node.attrs.get("fill") == value


def _piece(walk: Trace, value: SSAValue) -> Term:
    """Return a piece; one in memory is read over axes of its own, for it may be read elsewhere."""
    stored = walk.stored(value)
    return walk.term(value) if stored is None else walk.load(value, stored)


def _met(walk: Trace, op: FlowOp, pieces: Sequence[Term], besides: int | None) -> Dims:
    """Let the dims of all pieces run together, but one."""
    first, *others = pieces
    for piece in others:
        for d, (left, right) in enumerate(zip(first.dims, piece.dims, strict=True)):
            if d != besides:
                walk.unify(left, right, op.name)
    return first.dims


def _only(walk: Trace, value: SSAValue, axes: Axes) -> Axis | None:
    """Return the one axis of a dim; None where its size is 1.

    Raises:
        GroupError: where the dim runs over several, which a copy of a value in memory mends.
    """
    final = leaves(axes)
    if len(final) > 1:
        copies = [] if walk.stored(value) is None else [(value, ())]
        raise GroupError("a piece whose dim runs over several loops", copies)
    return final[0] if final else None


def _position(walk: Trace, axis: Axis) -> Node:
    return walk.node("index", "i64", (axis,), attrs={"strides": (1,)})


def _literal(walk: Trace, value: int) -> Node:
    return walk.node("constant", "i64", (), attrs={"value": value})


def _chosen(
    walk: Trace, nodes: Sequence[Node], axis: Axis, limits: Sequence[int], dtype: str
) -> Node:
    """Return the piece below the first limit that the position is below, or the last one."""
    if axis.size == 1:
        return nodes[0]
    position, result = _position(walk, axis), nodes[-1]
    for node, limit in zip(reversed(nodes[:-1]), reversed(limits), strict=True):
        here = _compared(walk, "lt", position, limit)
        result = _where(walk, here, node, result, dtype)
    return result


def _between(
    walk: Trace, node: Node, fill: Node, axis: Axis | None, limits: tuple[int, int], dtype: str
) -> Node:
    low, high = limits
    if axis is None:
        return node if low <= 0 < high else fill
    position = _position(walk, axis)
    if low > 0:
        node = _where(walk, _compared(walk, "ge", position, low), node, fill, dtype)
    if high < axis.size:
        node = _where(walk, _compared(walk, "lt", position, high), node, fill, dtype)
    return node


def _compared(walk: Trace, fn: str, position: Node, limit: int) -> Node:
    operands = (position, _literal(walk, limit))
    return walk.node("pointwise", "i1", position.axes, operands=operands, attrs={"fn": fn})


def _where(walk: Trace, here: Node, node: Node, other: Node, dtype: str) -> Node:
    operands = (here, node, other)
    axes = _all_axes(operands)
    return walk.node("pointwise", dtype, axes, operands=operands, attrs={"fn": "where"})


def _all_axes(operands: Sequence[Node]) -> Axes:
    """Return the axes of all operands, once each: diamonds would double them at every step."""
    return tuple(dict.fromkeys(axis for operand in operands for axis in operand.axes))


class _Move:
    """Rewrites what a piece computes from its own axis to a place on a longer one.

    Args:
        walk: of the group.
        old: the axis of the piece; None where its size is 1.
        new: the longer (or, cropped, shorter) axis; None for a size of 1.
        start: where on it the piece begins.
        size: of the piece.
    """

    def __init__(
        self, walk: Trace, old: Axis | None, new: Axis | None, start: int, size: int
    ) -> None:
        self.walk, self.old, self.new, self.start, self.size = walk, old, new, start, size
        self.done: dict[Node, Node] = {}

    def node(self, node: Node) -> Node:
        """Return a node over the new axis.

        Raises:
            GroupError: for what cannot be computed at a shifted place: a reduction, a gather.
        """
        if self.old is None or self.old not in leaf_set(node.axes):
            return node
        if node not in self.done:
            self.done[node] = self._moved(node)
        return self.done[node]

    def _moved(self, node: Node) -> Node:
        match node.kind:
            case "load" if not node.operands:
                return self._load(node)
            case "index":
                own, shift = self._along(node.axes, node.attrs["strides"])
                return self._shifted_index(node, own, shift)
            case "pointwise":
                operands = tuple(self.node(operand) for operand in node.operands)
                return self.walk.node(
                    "pointwise", node.dtype, _all_axes(operands), operands=operands,
                    attrs=node.attrs,
                )  # fmt: skip
            case _:
                raise GroupError(f"a {node.kind} that is a piece of a longer dim")

    def _along(self, axes: Axes, strides: Sequence[int]) -> tuple[list[tuple[Axis, int]], int]:
        """Return final axes and strides with the new axis for the old, and what that shifts."""
        strided: list[tuple[Axis, int]] = []
        shift = 0
        for axis, stride in zip(axes, strides, strict=True):
            parts = leaves((axis,))
            steps = contiguous_strides([part.size for part in parts])
            for part, step in zip(parts, steps, strict=True):
                if part is self.old:
                    shift -= self.start * stride * step
                    if self.new is not None:
                        strided.append((self.new, stride * step))
                else:
                    strided.append((part, stride * step))
        return strided, shift

    def _load(self, node: Node) -> Node:
        own, shift = self._along(node.attrs.get("own", node.axes), node.attrs["strides"])
        bounds = [self._bound(bound) for bound in node.attrs.get("bounds", ())]
        size = 1 if self.new is None else self.new.size
        if self.start > 0 or self.start + self.size < size:
            along = () if self.new is None else ((self.new, 1),)
            bounds.append(Bound(self.size, -self.start, along))
        fill = node.attrs.get("fill", 0.0 if is_float(node.dtype) else 0)
        attrs = {
            "strides": tuple(stride for _, stride in own),
            "shift": node.attrs.get("shift", 0) + shift,
            "bounds": tuple(bounds),
            "fill": fill,
        }
        axes = tuple(axis for axis, _ in own)
        return self.walk.node(
            "load", node.dtype, axes, stored=node.stored, source=node.source, attrs=attrs
        )

    def _bound(self, bound: Bound) -> Bound:
        along, shift = self._along(tuple(a for a, _ in bound.along), [s for _, s in bound.along])
        return Bound(bound.size, bound.start + shift, tuple(along))

    def _shifted_index(self, node: Node, own: Sequence[tuple[Axis, int]], shift: int) -> Node:
        axes = tuple(axis for axis, _ in own)
        strides = tuple(stride for _, stride in own)
        index = self.walk.node("index", "i64", axes, attrs={"strides": strides})
        operands = (index, _literal(self.walk, shift))
        return self.walk.node("pointwise", "i64", axes, operands=operands, attrs={"fn": "add"})
