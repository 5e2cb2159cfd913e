"""Weights of an LSTM of 8 bits, packed for dot products of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import PadOp, TransposeOp, tensor
from irc.kernels.holds import shape_of
from irc.ops.recurrent import GATES, MOST_BYTES, QUAD, UNIT, depth, padded

GATE = GATES["LSTM"]
MIDDLE = 128
"""What is taken from u8, and from its zero points: bytes with a sign are multiplied."""


def is_bytes(operands: Mapping[str, SSAValue], directions: int, hidden: int, inputs: int) -> bool:
    """True where weights, scales and zero points are an LSTM's of 8 bits, whose sums i32 holds.

    Args:
        operands: by role: ``w`` ``[directions, inputs, 4 * hidden]``, ``r`` ``[directions, hidden,
            4 * hidden]``, and of each a scale and a zero point, for all or for each column.
        directions: one or two.
        hidden: units.
        inputs: features of an input.
    """
    wide = GATE * hidden
    if max(hidden, inputs) > MOST_BYTES:
        return False
    for role, rows in (("w", inputs), ("r", hidden)):
        parts = [operands.get(f"{role}{part}") for part in ("", "_scale", "_zero")]
        if any(part is None for part in parts):
            return False
        weight, scale, zero = (tensor(part) for part in parts if part is not None)
        columns = ((directions,), (directions, wide))
        if not (
            weight.shape == (directions, rows, wide)
            and weight.dtype in ("i8", "u8")
            and (scale.dtype, zero.dtype) == ("f32", weight.dtype)
            and scale.shape in columns
            and zero.shape in columns
        ):
            return False
    return True


def byte_weights(
    b: FlowBuilder, operands: Mapping[str, SSAValue], hidden: int
) -> dict[str, SSAValue]:
    """Append what packs both weights, as :mod:`irc.ops.recurrent` has them.

    Args:
        b: appends.
        operands: by role; :func:`is_bytes` holds for them.
        hidden: units.
    """
    return {**_weight(b, "w", operands, hidden), **_weight(b, "r", operands, hidden)}


def _weight(
    b: FlowBuilder, role: str, operands: Mapping[str, SSAValue], hidden: int
) -> dict[str, SSAValue]:
    weight, scale, zero = (operands[f"{role}{part}"] for part in ("", "_scale", "_zero"))
    d, rows, wide = shape_of(weight)
    whole = padded(hidden)

    def signed(value: SSAValue) -> SSAValue:
        """Return whole numbers as i32, less 128 where they have no sign."""
        words = b.cast(value, "i32")
        if tensor(value).dtype == "i8":
            return words
        return b.pointwise("sub", words, b.constant([MIDDLE], shape_of(value), "i32"))

    def each_column(value: SSAValue) -> SSAValue:
        one = b.reshape(value, (d, 1)) if len(shape_of(value)) == 1 else value
        return b.broadcast(one, (d, wide))

    def columns(value: SSAValue) -> SSAValue:
        """[d, 4 * hidden] to [d, 4 * P]."""
        apart = _padded(b, b.reshape(value, (d, GATE, hidden)), (0, 0, whole - hidden))
        return b.reshape(apart, (d, GATE * whole))

    words, zeros = signed(weight), each_column(signed(zero))
    total = b.cast(b.reduce("sum", words, [1], keep_dims=False), "i32")
    offsets = b.pointwise("mul", zeros, b.constant([rows], (d, wide), "i32"))
    return {
        role: _panels(b, role, b.cast(words, "i8"), hidden),
        f"{role}_scale": columns(each_column(scale)),
        f"{role}_sums": columns(b.pointwise("sub", total, offsets)),
        f"{role}_zeros": columns(zeros),
    }


def _panels(b: FlowBuilder, role: str, value: SSAValue, hidden: int) -> SSAValue:
    """[d, rows, 4 * hidden] to quads of rows of UNIT columns; of ``r``, all gates of some units."""
    d, rows, _ = shape_of(value)
    whole, long = padded(hidden), depth(rows)
    apart = b.reshape(value, (d, rows, GATE, hidden))
    apart = _padded(b, apart, (0, long - rows, 0, whole - hidden))
    quads = b.reshape(apart, (d, long // QUAD, QUAD, GATE, whole // UNIT, UNIT))
    perm = (0, 3, 4, 1, 5, 2) if role == "w" else (0, 4, 3, 1, 5, 2)
    return b.op(TransposeOp, [quads], perm=perm)


def _padded(b: FlowBuilder, value: SSAValue, high: Sequence[int]) -> SSAValue:
    if not any(high):
        return value
    return b.op(PadOp, [value], low=(0,) * len(high), high=tuple(high), value=0)
