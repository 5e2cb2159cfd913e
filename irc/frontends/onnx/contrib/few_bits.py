"""Weights of few bits in blocks, each with a scale: MatMulNBits, GatherBlockQuantized."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.node import Value

BITS = (2, 4, 8)


def unpacked(x: Composer, value: Value, bits: int) -> Value:
    """Split the bytes of the last dim into numbers of some bits, the low ones first."""
    if bits == 8:
        return value
    mask = x.op("Cast", x.ints((1 << bits) - 1), to=2)
    parts: list[Value] = []
    for place in range(0, 8, bits):
        part = value
        if place:
            part = x.op("BitShift", value, x.op("Cast", x.ints(place), to=2), direction="RIGHT")
        parts.append(x.op("Unsqueeze", x.op("BitwiseAnd", part, mask), x.ints(-1)))
    joined = x.op("Concat", *parts, axis=-1)
    return x.op("Reshape", joined, x.ints(*[0] * (len(value.shape) - 1), -1))


def zero_points(x: Composer, index: int, bits: int, rows: int, blocks: int) -> Value:
    """Return the zero point of each block, (rows, blocks, 1), of the scales' type."""
    scales = x[2]
    if not x.has(index):
        return x.number(1 << (bits - 1), scales)
    zero = x[index]
    if zero.dtype == "u8":
        zero = unpacked(x, x.op("Reshape", zero, x.ints(rows, -1)), bits)
        zero = x.op("Slice", zero, x.ints(0), x.ints(blocks), x.ints(1))
    return x.op("CastLike", x.op("Reshape", zero, x.ints(rows, blocks, 1)), scales)


def product(x: Composer) -> Value:
    """MatMulNBits: weights [N, blocks, bytes], a scale and a zero point for each block.

    Where operand 4 is given it says to which block each column of the weights belongs.
    """
    bits, block, rows, depth = (int(x.attr(n)) for n in ("bits", "block_size", "N", "K"))
    if bits not in BITS:
        raise x.unsupported(f"weights of {bits} bits")
    blocks = -(-depth // block)
    weights = x.op("CastLike", unpacked(x, x[1], bits), x[2])
    scale = x.op("Reshape", x[2], x.ints(rows, blocks, 1))
    zero = zero_points(x, 3, bits, rows, blocks)
    if x.has(4):
        weights = x.op("Reshape", weights, x.ints(rows, blocks * block, 1))
        weights = x.op("Slice", weights, x.ints(0), x.ints(depth), x.ints(1))
        places = Value.of_array(np.asarray(x.array(4), np.int64)[:depth])
        scale = x.op("Gather", scale, places, axis=1)
        zero = x.op("Gather", zero, places, axis=1) if x.has(3) else zero
    weights = x.op("Mul", x.op("Sub", weights, zero), scale)
    weights = x.op("Reshape", weights, x.ints(rows, -1))
    if not x.has(4):
        weights = x.op("Slice", weights, x.ints(0), x.ints(depth), x.ints(1))
    result = x.op("MatMul", x[0], x.op("CastLike", x.op("Transpose", weights, perm=[1, 0]), x[0]))
    return x.op("Add", result, x[5]) if x.has(5) else result


def gathered(x: Composer) -> Value:
    """GatherBlockQuantized: rows of a quantised table, and their scales, then the product."""
    bits, block = int(x.attr("bits", 4)), int(x.attr("block_size", 128))
    n = len(x[0].shape)
    axis = int(x.attr("gather_axis", 0)) % n
    along = int(x.attr("quantize_axis", 1)) % n
    if x[0].dtype != "u8" or along != n - 1 or axis == along:
        raise x.unsupported(f"a table of {x[0].dtype} in blocks along dim {along}")
    rows = unpacked(x, x.op("Gather", x[0], x[1], axis=axis), bits)
    scale = x.op("Gather", x[2], x[1], axis=axis)
    if x.has(3):
        zero = unpacked(x, x.op("Gather", x[3], x[1], axis=axis), bits)
        blocks = scale.shape[-1]
        if not isinstance(blocks, int):
            raise x.unsupported("blocks without a number")
        zero = x.op("CastLike", x.op("Slice", zero, x.ints(0), x.ints(blocks), x.ints(-1)), scale)
    else:
        zero = x.number(1 << (bits - 1), scale)
    size = rows.shape[-1]
    assert isinstance(size, int)
    scale, zero = (spread(x, each, block, size) for each in (scale, zero))
    return x.op("Mul", x.op("Sub", x.op("CastLike", rows, scale), zero), scale)


def spread(x: Composer, value: Value, block: int, size: int) -> Value:
    """Repeat each number of the last dim for its block; one number is for all."""
    if not value.shape:
        return value
    n = len(value.shape)
    wide = x.op("Expand", x.op("Unsqueeze", value, x.ints(-1)), x.ints(*[1] * n, block))
    flat = x.op("Reshape", wide, x.ints(*[0] * (n - 1), -1))
    return x.op("Slice", flat, x.ints(0), x.ints(size), x.ints(-1))


COMPOSITIONS: Mapping[str, Composition] = {
    "GatherBlockQuantized": gathered,
    "MatMulNBits": product,
}
