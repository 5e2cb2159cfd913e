"""Integer weights [N, K] into the panels of ``flow.packed_contract``, written as flow ops.

What depends on weights alone is made once, so these may be as plain as they are.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import PadOp, SliceOp, TransposeOp, tensor
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.kernels.holds import shape_of
from irc.kernels.quantized.loads import LANES, NIBBLES, QUAD


def nibble_panels(b: FlowBuilder, q: SSAValue) -> SSAValue:
    """[N, K] of 0..15 to i32 [P, K/8, 16], eight weights a word."""
    n, k = shape_of(q)
    q = pad_to(b, b.cast(q, "i32"), (round_up(n, LANES), k))
    apart = b.reshape(q, (round_up(n, LANES) // LANES, LANES, k // NIBBLES, NIBBLES))
    place = b.op(IotaOp, [], result=TensorType.of((NIBBLES,), "i32"), dim=0)
    shifts = b.pointwise("mul", place, b.scalar(4, "i32"))
    words = b.reduce("sum", b.pointwise("shift_left", apart, shifts), [3], keep_dims=False)
    return transpose(b, words, (0, 2, 1))


def byte_panels(b: FlowBuilder, q: SSAValue) -> SSAValue:
    """[N, K] to [P, K, 16]."""
    n, k = shape_of(q)
    q = pad_to(b, q, (round_up(n, LANES), k))
    return transpose(b, b.reshape(q, (-(-n // LANES), LANES, k)), (0, 2, 1))


def quad_panels(b: FlowBuilder, q: SSAValue) -> SSAValue:
    """i8 [N, taps.., C] to [P, taps.., C/4, 16, 4]."""
    n, *taps, c = shape_of(q)
    panels, quads = -(-n // LANES), -(-c // QUAD)
    q = pad_to(b, q, (panels * LANES, *taps, quads * QUAD))
    apart = b.reshape(q, (panels, LANES, *taps, quads, QUAD))
    last = len(taps) + 2
    return transpose(b, apart, (0, *range(2, last + 1), 1, last + 1))


def scale_panels(b: FlowBuilder, scale: SSAValue) -> SSAValue:
    """[N, G] to f32 [P, G, 16]."""
    return byte_panels(b, b.cast(scale, "f32"))


def pad_to(b: FlowBuilder, value: SSAValue, shape: tuple[int, ...], fill: float = 0.0) -> SSAValue:
    """Append elements behind each dim; the value itself where it has the shape."""
    old = shape_of(value)
    if old == shape:
        return value
    high = tuple(new - size for new, size in zip(shape, old, strict=True))
    return b.op(PadOp, [value], low=(0,) * len(old), high=high, value=fill)


def cut_to(b: FlowBuilder, value: SSAValue, columns: int) -> SSAValue:
    """Take the first columns of the last dim; the value itself where it has no more."""
    shape = shape_of(value)
    if shape[-1] == columns:
        return value
    stops = (*shape[:-1], columns)
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    return b.op(SliceOp, [value], starts=zeros, stops=stops, steps=ones)


def transpose(b: FlowBuilder, value: SSAValue, perm: tuple[int, ...]) -> SSAValue:
    """Permute dims; the value itself where nothing moves."""
    if perm == tuple(range(len(perm))):
        return value
    return b.op(TransposeOp, [value], perm=perm)


def signed(b: FlowBuilder, value: SSAValue) -> SSAValue:
    """Bytes as i8: u8 less 128."""
    if tensor(value).dtype == "i8":
        return value
    wide = b.pointwise("sub", b.cast(value, "i32"), b.scalar(128, "i32"))
    return b.cast(wide, "i8")


def unsigned(b: FlowBuilder, value: SSAValue) -> SSAValue:
    """Bytes as u8: i8 plus 128."""
    if tensor(value).dtype == "u8":
        return value
    wide = b.pointwise("add", b.cast(value, "i32"), b.scalar(128, "i32"))
    return b.cast(wide, "u8")


def round_up(size: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-size // to) * to
