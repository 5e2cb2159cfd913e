"""How ``flow.packed_contract`` is read by kernels: as loads, shifts, scales and one contraction.

The kernel's body says in full what a weight is (``(nibble - zero) * scale``), so the interpreter
and any emitter can run it; an emitter that knows the layout reads whole words instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.packed_products import PackedContractOp
from irc.kernels.axes import Axes, axes_of
from irc.kernels.holds import shape_of
from irc.kernels.trace import GroupError, Node, Stored, Term, Trace, flat
from irc.kernels.view import contiguous_strides

LANES = 16
"""Columns of a panel: a vector of AVX-512 in float32 or i32."""
NIBBLES = 8
"""Weights of 4 bits in a word."""
QUAD = 4
"""Bytes that one lane of a dot-product instruction multiplies."""


def packed_contract(walk: Trace, op: PackedContractOp) -> Term:
    """Trace the op: the rule of :mod:`irc.kernels.rules`."""
    if tensor(op.x).dtype != "u8":
        return _floats(walk, op)
    return _bytes(walk, op) if op.window is None else _window(walk, op)


def _floats(walk: Trace, op: PackedContractOp) -> Term:
    x, w, *scales = op.inputs
    panels, groups = shape_of(w)[0], shape_of(scales[0])[1]
    nibbles = NIBBLES if op.bits == 4 else 1
    depth = shape_of(x)[1] // groups
    n, lane = axes_of(panels), axes_of(LANES)
    group, word, nibble = axes_of(groups), axes_of(depth // nibbles), axes_of(nibbles)
    rows = walk.load(x, _even(walk, x))
    walk.unify(rows.dims[1], (*group, *word, *nibble), op.name)
    left = _cast(walk, rows.node, "f32")
    q = _load(walk, w, (n, (*group, *word), lane))
    if nibbles > 1:
        q = _nibble(walk, q, nibble)
    q = _cast(walk, q, "f32")
    zero = _constant(walk, 0.0 if op.zero is None else op.zero, "f32")
    if len(scales) > 1:
        zero = _load(walk, scales[1], (n, group, lane))
    q = _apply(walk, "sub", q, zero)
    weight = _apply(walk, "mul", q, _load(walk, scales[0], (n, group, lane)))
    return _sum(walk, (left, weight), (rows.dims[0], (*n, *lane)), (*group, *word, *nibble), "f32")


def _bytes(walk: Trace, op: PackedContractOp) -> Term:
    x, w = op.x, op.weight
    n, quads, lane, byte = (axes_of(size) for size in shape_of(w))
    rows = walk.load(x, _together(walk, x))
    walk.unify(rows.dims[1], (*quads, *byte), op.name)
    left = _cast(walk, rows.node, "i32")
    right = _cast(walk, _load(walk, w, (n, quads, lane, byte)), "i32")
    return _sum(walk, (left, right), (rows.dims[0], (*n, *lane)), (*quads, *byte), "i32")


def _window(walk: Trace, op: PackedContractOp) -> Term:
    """A convolution: places by taps of the image, and by group where there are several."""
    x, w = op.x, op.weight
    sizes, stored = shape_of(op.outputs[0]), _together(walk, x)
    steps, window = stored[1].strides, op.window
    assert steps is not None and window is not None
    image, down, along = (axes_of(size) for size in sizes[:3])
    taps = [axes_of(size) for size in window[:2]]
    moves = [
        (image, steps[0]),
        (down, steps[1] * window[2]),
        (along, steps[2] * window[3]),
        (taps[0], steps[1] * window[4]),
        (taps[1], steps[2] * window[5]),
    ]
    if len(shape_of(w)) == 3:
        columns = axes_of(sizes[3])
        moves.append((columns, steps[3]))
        order, summed = (*taps, columns), ()
    else:
        columns, order, own, summed = _columns(op, taps)
        moves += [(dim, step * steps[3]) for dim, step in own]
    axes = [(axis, step) for dim, step in moves for axis in dim]
    load = walk.node(
        "load",
        "u8",
        tuple(axis for axis, _ in axes),
        stored=stored,
        attrs={"strides": tuple(step for _, step in axes)},
        source=x,
    )
    right = _cast(walk, _load(walk, w, order), "i32")
    dims = (image, down, along, columns)
    reduced = (*taps[0], *taps[1], *summed)
    return _sum(walk, (_cast(walk, load, "i32"), right), dims, reduced, "i32")


def _columns(
    op: PackedContractOp, taps: Sequence[Axes]
) -> tuple[Axes, tuple[Axes, ...], list[tuple[Axes, int]], Axes]:
    """Return the axes of columns, of the weight in its order, how x moves, and what is summed."""
    panels, *_, quads, lanes, bytes_ = shape_of(op.weight)
    count, step = op.groups or (1, 0)
    run = panels * lanes // count
    outer = count if run >= lanes else panels
    group, panel = axes_of(outer), axes_of(panels // outer)
    inner, lane = axes_of(max(lanes // run, 1)), axes_of(min(run, lanes))
    quad, byte = axes_of(quads), axes_of(bytes_)
    order = ((*group, *panel), *taps, quad, (*inner, *lane), byte)
    moves = [(group, step * max(lanes // run, 1)), (inner, step), (quad, QUAD), (byte, 1)]
    return (*group, *panel, *inner, *lane), order, moves, (*quad, *byte)


def _even(walk: Trace, value: SSAValue) -> Stored:
    """Return where a value lies, one stride a dim."""
    stored = walk.stored(value)
    if stored is None:
        raise GroupError("packed weights times a value that the kernel computes")
    if stored[1].strides is None:
        raise GroupError("rows of two strides times packed weights", [(value, ())])
    return stored


def _together(walk: Trace, value: SSAValue) -> Stored:
    """Return where bytes lie, those of the last dim in one run: four are read at once."""
    stored = _even(walk, value)
    if (stored[1].strides or (1,))[-1] != 1:
        raise GroupError("bytes that lie apart times packed weights", [(value, ())])
    return stored


def _load(walk: Trace, value: SSAValue, dims: tuple[Axes, ...]) -> Node:
    """Load a contiguous tensor over axes that are there."""
    stored, axes = _even(walk, value), flat(dims)
    if not stored[1].is_plain:
        raise GroupError("packed weights that lie apart", [(value, ())])
    strides = contiguous_strides([axis.size for axis in axes])
    return walk.node(
        "load", tensor(value).dtype, axes, stored=stored, attrs={"strides": strides}, source=value
    )


def _nibble(walk: Trace, words: Node, nibble: Axes) -> Node:
    """``word >> 4 j & 15``."""
    place = walk.node("index", "i64", nibble, attrs={"strides": (4,)})
    shifted = _apply(walk, "shift_right", words, _cast(walk, place, "i32"))
    return _apply(walk, "bit_and", shifted, _constant(walk, 15, "i32"))


def _constant(walk: Trace, value: float, dtype: str) -> Node:
    return walk.node("constant", dtype, (), attrs={"value": value})


def _cast(walk: Trace, node: Node, dtype: str) -> Node:
    if node.dtype == dtype:
        return node
    return walk.node("pointwise", dtype, node.axes, operands=(node,), attrs={"fn": "cast"})


def _apply(walk: Trace, fn: str, x: Node, y: Node) -> Node:
    axes = tuple(dict.fromkeys((*x.axes, *y.axes)))
    return walk.node("pointwise", x.dtype, axes, operands=(x, y), attrs={"fn": fn})


def _sum(
    walk: Trace,
    operands: tuple[Node, Node],
    dims: tuple[Axes, ...],
    reduced: Axes,
    dtype: str,
) -> Term:
    node = walk.node("contract", dtype, flat(dims), operands=operands, attrs={"packed": True})
    walk.reductions.append((node, reduced))
    return Term(node, dims)
