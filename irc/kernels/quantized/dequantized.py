"""Recognise dequantised values: integers, a zero point and a scale, in any spelling.

``(cast(q) - zero) * scale`` in floats or with the difference in integers, between shape ops, as
:func:`irc.quantize`, ONNX's DequantizeLinear, MatMulNBits and MatMulInteger write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ConcatOp, FlowOp, PointwiseOp, ShapeOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import ITEM_BYTES, TensorType, is_float
from irc.kernels.holds import shape_of
from irc.kernels.view import View

BYTES = ("u8", "i8")
EXACT = {"f32": ("bf16", "f16"), "f64": ("f32",)}
"""Casts to a wider float that lose nothing."""


@dataclass(frozen=True)
class Integers:
    """``chain((cast(q) - zero) * scale)``.

    Attributes:
        q: integers.
        zero: what is subtracted, of any dtype; None: nothing.
        scale: what the difference is multiplied by; None: nothing.
        shape: of the product, to which the three broadcast.
        chain: shape ops that follow, first one first.
    """

    q: SSAValue
    zero: SSAValue | None
    scale: SSAValue | None
    shape: tuple[int, ...]
    chain: tuple[FlowOp, ...] = ()

    @property
    def bits(self) -> int:
        """How many bits hold q: 4 where that is certain, else those of its dtype."""
        return bits_of(self.q)

    @property
    def dtype(self) -> str:
        """The dtype of q."""
        return tensor(self.q).dtype

    def spread(self, b: FlowBuilder, value: SSAValue) -> SSAValue:
        """Append the broadcast of q, zero or scale, and the chain."""
        return apply_chain(b, b.broadcast(value, self.shape), self.chain)

    def period(self, value: SSAValue | None, order: Sequence[int], kept: int) -> int | None:
        """Return for how many neighbours along the last dims a value stays the same.

        Args:
            value: zero or scale.
            order: the transposition of the dims after the chain.
            kept: how many of them come first; the others count as one dim.

        Returns:
            A divisor of that dim; None where it is not to be seen.
        """
        shape = shape_of(self.chain[-1].outputs[0]) if self.chain else self.shape
        depth = 1
        for d in order[kept:]:
            depth *= shape[d]
        if value is None or is_single(value):
            return depth
        view = self._view(value)
        view = None if view is None else view.transpose(order)
        leading = () if view is None else view.shape[:kept]
        view = None if view is None else view.reshape((*leading, depth))
        if view is None:
            return None
        period = 1
        for size, stride in reversed(view.dims[-1] if depth > 1 else ()):
            if stride:
                break
            period *= size
        return period

    def _view(self, value: SSAValue) -> View | None:
        """How a value that is stretched to the product and led through the chain lies in memory."""
        before: list[FlowOp] = []
        while isinstance(op := value.owner, ShapeOp):
            before.append(op)
            value = op.x
        view: View | None = View.contiguous(shape_of(value))
        for op in reversed(before):
            view = view and view.apply(op.name, op.plain, shape_of(op.outputs[0]))
        view = view and view.broadcast(self.shape)
        for op in self.chain:
            view = view and view.apply(op.name, op.plain, shape_of(op.outputs[0]))
        return view


def dequantized(value: SSAValue) -> Integers | None:
    """Return how a float is made of integers, a scale and a zero point; None where it is not."""
    root, chain = _past_shapes(value)
    op = root.owner
    if not isinstance(op, PointwiseOp) or tensor(root).dtype != "f32":
        return None
    if op.fn == "mul":
        for side, scale in (op.inputs, reversed(op.inputs)):
            if is_float(tensor(scale).dtype) and (integers := _difference(side)) is not None:
                return replace(integers, scale=scale, shape=shape_of(root), chain=chain)
    return None


def integral(value: SSAValue) -> Integers | None:
    """Return how an i32 is made of 8-bit integers and a zero point; None where it is not."""
    root, chain = _past_shapes(value)
    integers = _difference(root)
    if integers is None or tensor(root).dtype != "i32" or integers.dtype not in BYTES:
        return None
    return replace(integers, shape=shape_of(root), chain=chain)


def exact_float(value: SSAValue) -> Integers | None:
    """Return how an f64 is made of 8-bit integers and a zero point; None where it is not."""
    root, chain = _past_shapes(value)
    integers = _difference(root) if tensor(root).dtype == "f64" else None
    if integers is None or integers.dtype not in BYTES:
        return None
    return replace(integers, shape=shape_of(root), chain=chain)


def _difference(value: SSAValue) -> Integers | None:
    """``cast(q) - zero``, ``cast(cast(q) - zero)`` or ``cast(q)``."""
    shape = shape_of(value)
    if (wide := _cast_of(value)) is not None and is_float(tensor(value).dtype):
        if is_float(tensor(wide).dtype):
            return None
        inner = _difference(wide)
        return inner or Integers(wide, None, None, shape)
    op = value.owner
    if isinstance(op, PointwiseOp) and op.fn == "sub":
        q = _widened(op.a)
        if q is not None and shape_of(q) == shape:
            return Integers(q, _widened(op.b) or op.b, None, shape)
        return None
    q = _widened(value)
    return None if q is None else Integers(q, None, None, shape)


def _widened(value: SSAValue) -> SSAValue | None:
    """Return the integers that were cast to a dtype which holds them and their differences."""
    inner = _cast_of(value)
    if inner is None or is_float(tensor(inner).dtype):
        return None
    new, old = (tensor(v).dtype for v in (value, inner))
    return inner if is_float(new) or ITEM_BYTES[new] > ITEM_BYTES[old] else None


def _cast_of(value: SSAValue) -> SSAValue | None:
    op = value.owner
    return op.a if isinstance(op, PointwiseOp) and op.fn == "cast" else None


def _past_shapes(value: SSAValue) -> tuple[SSAValue, tuple[FlowOp, ...]]:
    """Walk up shape ops (and casts to a wider float and back); first one first."""
    chain: list[FlowOp] = []
    while isinstance(op := value.owner, ShapeOp):
        chain.append(op)
        value = op.x
    return value, tuple(reversed(chain))


def past_exact_cast(value: SSAValue) -> SSAValue:
    """Return the narrower float that was cast without loss, or the value."""
    inner = _cast_of(value)
    if inner is not None and tensor(inner).dtype in EXACT.get(tensor(value).dtype, ()):
        return inner
    return value


def literal(value: SSAValue | None) -> float | None:
    """Return the one number that a value is everywhere, seen through casts and shape ops."""
    while value is not None and isinstance(op := value.owner, FlowOp):
        if isinstance(op, ConstantOp):
            numbers = op.value
            return float(numbers[0]) if len(set(numbers)) == 1 else None
        value = op.x if isinstance(op, ShapeOp) else _cast_of(value)
    return None


def is_single(value: SSAValue) -> bool:
    """True for a value of one element."""
    return all(size == 1 for size in shape_of(value))


def bits_of(value: SSAValue) -> int:
    """Return how many bits hold the non-negative integers of a value, or those of its dtype."""
    kind = tensor(value)
    whole = {"u8": 8, "i8": 8, "i1": 1}.get(kind.dtype, 32)
    op = value.owner
    if isinstance(op, ShapeOp | ConcatOp):
        return max(map(bits_of, op.inputs))
    if not isinstance(op, PointwiseOp):
        return whole
    match op.fn:
        case "cast":
            return min(whole, bits_of(op.a))
        case "bit_and":
            masks = [n for v in op.inputs if (n := literal(v)) is not None and n >= 0]
            return min([whole, *(int(n).bit_length() for n in masks)])
        case "shift_right" if kind.dtype == "u8" and (count := literal(op.b)) is not None:
            return max(0, bits_of(op.a) - int(count))
        case _:
            return whole


def apply_chain(b: FlowBuilder, value: SSAValue, chain: Sequence[FlowOp]) -> SSAValue:
    """Append copies of shape ops behind a value."""
    for op in chain:
        kind = TensorType.of(tensor(op.outputs[0]).shape, tensor(value).dtype)
        value = b.op(type(op), [value], result=kind, **op.plain)
    return value
