"""Contractions of dequantised operands become ``flow.packed_contract``.

With q the integers, z the zero points and s the scales of x and w, and sums over k,

    sum (x - zx)(w - zw) = sum x w - zx (sum w - K zw) - zw sum x

so the product runs on bytes and the zero points are corrected by sums, of which those of the weight
are made once (Jacob et al. 2018, arXiv:1712.05877, equation 7). Where only the weight is quantised,
its integers are read as they are and scaled in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, tensor
from irc.dialects.packed_products import PackedContractOp
from irc.kernels.holds import shape_of
from irc.kernels.quantized.dequantized import (
    BYTES,
    Integers,
    dequantized,
    integral,
    is_single,
    literal,
    past_exact_cast,
)
from irc.kernels.quantized.loads import NIBBLES, QUAD
from irc.kernels.quantized.panels import (
    byte_panels,
    cut_to,
    nibble_panels,
    pad_to,
    quad_panels,
    round_up,
    scale_panels,
    signed,
    transpose,
    unsigned,
)
from irc.ops.infer import parse_spec

FEW_ROWS = 8
"""Rows up to which half floats are converted where the kernel reads them."""

IsFixed: TypeAlias = Callable[[SSAValue], bool]


@dataclass(frozen=True)
class Product:
    """``contract(x, w)`` with x of rows and w of columns, and nothing batched.

    Attributes:
        x, w: the operands.
        rows, columns: sizes of the dims that only x, only w has, in the result's order.
        x_order: x's dims, rows first, then the summed ones.
        w_order: w's dims, columns first, then the summed ones in the same order.
        back: the result's dims from ``[rows.., columns..]``.
    """

    x: SSAValue
    w: SSAValue
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    x_order: tuple[int, ...]
    w_order: tuple[int, ...]
    back: tuple[int, ...]

    @property
    def depth(self) -> int:
        """How many products are summed."""
        shape = shape_of(self.w)
        return prod(shape[d] for d in self.w_order[len(self.columns) :])


def product_of(op: ContractOp, side: int) -> Product | None:
    """Read a contraction as a product whose weight is operand ``side``."""
    if len(op.inputs) != 2 or 0 in (*shape_of(op.a), *shape_of(op.b)):
        return None
    x, w = (op.a, op.b) if side else (op.b, op.a)
    (spec, result) = parse_spec(op.spec)
    letters_x, letters_w = spec[1 - side], spec[side]
    if any(c in letters_x and c in letters_w for c in result):
        return None
    summed = [c for c in letters_w if c not in result]
    if not summed or set(summed) != {c for c in letters_x if c not in result}:
        return None
    rows = [c for c in result if c in letters_x]
    columns = [c for c in result if c in letters_w]
    shapes = (*shape_of(x), *shape_of(w))
    sizes = dict(zip(letters_x + letters_w, shapes, strict=True))
    kept = [*rows, *columns]
    return Product(
        x,
        w,
        tuple(sizes[c] for c in rows),
        tuple(sizes[c] for c in columns),
        tuple(letters_x.index(c) for c in (*rows, *summed)),
        tuple(letters_w.index(c) for c in (*columns, *summed)),
        tuple(kept.index(c) for c in result),
    )


def packed_product(b: FlowBuilder, op: ContractOp, fixed: IsFixed) -> SSAValue | None:
    """Append what equals a contraction of dequantised operands; None where it is none."""
    for side in (1, 0):
        product = product_of(op, side)
        if product is None:
            continue
        if tensor(op.outputs[0]).dtype == "i32":
            x, w = integral(product.x), integral(product.w)
            packed = _exact(b, product, x, w) if x and w and fixed(w.q) else None
        else:
            packed = _scaled(b, product, fixed)
        if packed is not None:
            apart = b.reshape(packed, (*product.rows, *product.columns))
            return transpose(b, apart, product.back)
    return None


def weight_product(b: FlowBuilder, op: ContractOp, fixed: IsFixed) -> SSAValue | None:
    """Append what equals a contraction of floats and a dequantised weight; None where it is none.

    For a GPU, whose kernels convert half floats wherever they read them.
    """
    for side in (1, 0):
        product = product_of(op, side)
        if product is None or {tensor(v).dtype for v in (*op.inputs, *op.outputs)} != {"f32"}:
            continue
        w = dequantized(product.w)
        packed = None
        if w is not None and fixed(w.q):
            packed = _weight_only(b, product, w, few_rows=prod(product.rows))
        if packed is not None:
            apart = b.reshape(packed, (*product.rows, *product.columns))
            return transpose(b, apart, product.back)
    return None


def _scaled(b: FlowBuilder, product: Product, fixed: IsFixed) -> SSAValue | None:
    if tensor(product.w).dtype != "f32":
        return None
    x, w = dequantized(product.x), dequantized(product.w)
    if w is None or not fixed(w.q):
        return None
    if x is not None and x.dtype in BYTES and w.dtype in BYTES and _is_even(product, x, w):
        total = _exact(b, product, x, w)
        if total is not None:
            return _by_scales(b, product, total, x, w)
    return _weight_only(b, product, w)


def _is_even(product: Product, x: Integers, w: Integers) -> bool:
    """True where scales and zero points stay the same along what is summed."""
    rows, columns, depth = len(product.rows), len(product.columns), product.depth
    return all(
        period == depth
        for side, order, kept in ((x, product.x_order, rows), (w, product.w_order, columns))
        for period in (side.period(side.scale, order, kept), side.period(side.zero, order, kept))
    )


def matrix(
    b: FlowBuilder, side: Integers, value: SSAValue, order: Sequence[int], kept: int
) -> SSAValue:
    """Append q, zero or scale as [rows, k], k cut to one where ``value`` is the same along it."""
    if is_single(value):
        return b.reshape(value, ())
    spread = transpose(b, side.spread(b, value), tuple(order))
    shape = shape_of(spread)
    return b.reshape(spread, (prod(shape[:kept]), prod(shape[kept:])))


def _first(b: FlowBuilder, value: SSAValue) -> SSAValue:
    """The first column of [rows, k], as [rows, 1]; a scalar as it is."""
    return value if not shape_of(value) else cut_to(b, value, 1)


def _exact(b: FlowBuilder, product: Product, x: Integers, w: Integers) -> SSAValue | None:
    """Sum products of integers about their zero points: i32 [rows, columns]."""
    if not _is_even(product, x, w):
        return None
    rows, columns = len(product.rows), len(product.columns)
    left = matrix(b, x, x.q, product.x_order, rows)
    right = matrix(b, w, w.q, product.w_order, columns)
    shift_x, shift_w = (128 if x.dtype == "i8" else 0), (128 if w.dtype == "u8" else 0)
    left, right = unsigned(b, left), signed(b, right)
    depth = round_up(product.depth, QUAD)
    padded = pad_to(b, left, (shape_of(left)[0], depth))
    panels = quad_panels(b, right)
    total = b.op(PackedContractOp, [padded, panels], bits=8)
    total = cut_to(b, total, shape_of(right)[0])
    zero_x = _zero(b, x, product.x_order, rows, shift_x)
    zero_w = _zero(b, w, product.w_order, columns, -shift_w)
    if zero_x is not None:
        sums = b.reduce("sum", b.cast(right, "i32"), [1], keep_dims=False)
        if zero_w is not None:
            flat = zero_w if not shape_of(zero_w) else b.reshape(zero_w, shape_of(sums))
            whole = b.pointwise("mul", flat, b.scalar(product.depth, "i32"))
            sums = b.pointwise("sub", sums, whole)
        total = b.pointwise("sub", total, b.pointwise("mul", sums, zero_x))
    if zero_w is not None:
        sums = b.reduce("sum", b.cast(left, "i32"), [1], keep_dims=True)
        flat = zero_w if not shape_of(zero_w) else b.reshape(zero_w, (shape_of(right)[0],))
        total = b.pointwise("sub", total, b.pointwise("mul", sums, flat))
    return total


def _zero(
    b: FlowBuilder, side: Integers, order: Sequence[int], kept: int, shift: int
) -> SSAValue | None:
    """The zero point of shifted bytes, i32 [] or [rows, 1]; None where it is 0."""
    known = 0.0 if side.zero is None else literal(side.zero)
    if known is not None:
        return b.scalar(int(known) + shift, "i32") if known + shift else None
    assert side.zero is not None
    point = b.cast(_first(b, matrix(b, side, side.zero, order, kept)), "i32")
    return b.pointwise("add", point, b.scalar(shift, "i32")) if shift else point


def _by_scales(
    b: FlowBuilder, product: Product, total: SSAValue, x: Integers, w: Integers
) -> SSAValue:
    """Append ``total * (scale of x * scale of w)``."""
    assert x.scale is not None and w.scale is not None
    left = _first(b, matrix(b, x, x.scale, product.x_order, len(product.rows)))
    right = _first(b, matrix(b, w, w.scale, product.w_order, len(product.columns)))
    if shape_of(right):
        right = b.reshape(right, (shape_of(right)[0],))
    wide = b.cast(total, "f32")
    if not shape_of(left):
        return b.pointwise("mul", wide, b.pointwise("mul", left, right))
    return b.pointwise("mul", b.pointwise("mul", wide, left), right)


def _weight_only(
    b: FlowBuilder, product: Product, w: Integers, few_rows: int = FEW_ROWS
) -> SSAValue | None:
    """Append floats times integers, scaled in registers; None where the groups do not fit."""
    columns, depth = len(product.columns), product.depth
    assert w.scale is not None
    group = _common(
        w.period(w.scale, product.w_order, columns), w.period(w.zero, product.w_order, columns)
    )
    nibbles = w.bits <= 4
    if not group or group % NIBBLES or (not nibbles and w.dtype not in BYTES):
        return None
    right = matrix(b, w, w.q, product.w_order, columns)
    zero = 0.0 if w.zero is None else literal(w.zero)
    if w.dtype == "u8" and not nibbles and zero is not None:
        right, zero = signed(b, right), zero - 128
    rows = prod(product.rows)
    # Many rows are read many times: a cast of its own is cheaper than one in each pass.
    x = past_exact_cast(product.x) if rows <= few_rows else product.x
    x = b.reshape(transpose(b, x, product.x_order), (rows, depth))
    panels = nibble_panels(b, right) if nibbles else byte_panels(b, right)
    groups, count = depth // group, shape_of(right)[0]

    def by_group(value: SSAValue) -> SSAValue:
        dense = matrix(b, w, value, product.w_order, columns)
        if not shape_of(dense):
            dense = b.broadcast(dense, (count, groups))
        else:
            apart = b.reshape(dense, (count, groups, group))
            dense = b.reshape(cut_to(b, apart, 1), (count, groups))
        return scale_panels(b, dense)

    operands = [x, panels, by_group(w.scale)]
    if zero is None and w.zero is not None:
        operands.append(by_group(w.zero))
    packed = b.op(PackedContractOp, operands, bits=4 if nibbles else 8, zero=zero or None)
    return cut_to(b, packed, count)


def _common(one: int | None, other: int | None) -> int | None:
    """The smaller of two periods, where it divides the other."""
    if one is None or other is None or max(one, other) % min(one, other):
        return None
    return min(one, other)
