"""Small ops of ONNX Runtime that are a few of ONNX's: sums, norms, distances, products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

import numpy as np

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.contrib.layers import activated, fused_matmul
from irc.frontends.onnx.node import Value

Results = Sequence[Value | None]


def summed(x: Composer, *indices: int) -> Value:
    """Return the sum of those operands that are there."""
    return reduce(partial(x.op, "Add"), [x[index] for index in indices if x.has(index)])


def bias_dropout(x: Composer) -> Results:
    """A sum with a bias and a residual; nothing is dropped in inference."""
    return [summed(x, 0, 1, 2), None]


def bias_split_gelu(x: Composer) -> Value:
    """Of a sum, one half of the features times the gelu of the other."""
    left, right = x.ops("Split", summed(x, 0, 1), outputs=2, axis=-1, num_outputs=2)
    return x.op("Mul", left, x.op("Gelu", right))


def group_norm(x: Composer, value: Value) -> Value:
    """GroupNorm over (batch, height, width, channels), or channels first; perhaps then SiLU."""
    last = x.attr("channels_last", 1)
    if last:
        value = x.op("Transpose", value, perm=[0, 3, 1, 2])
    value = x.op(
        "GroupNormalization", value, x[1], x[2],
        num_groups=x.attr("groups"), epsilon=x.attr("epsilon", 1e-5),
    )  # fmt: skip
    if x.attr("activation"):
        value = x.op("Mul", value, x.op("Sigmoid", value))
    return x.op("Transpose", value, perm=[0, 2, 3, 1]) if last else value


def skip_group_norm(x: Composer) -> Results:
    """GroupNorm of a sum, and the sum; the skipped tensor may be one number a channel."""
    skip = x[3]
    if len(skip.shape) == 2:
        axes = [1, 2] if x.attr("channels_last", 1) else [2, 3]
        skip = x.op("Unsqueeze", skip, x.ints(*axes))
    total = x.op("Add", x[0], skip)
    if x.has(4):
        bias = x[4] if x.attr("channels_last", 1) else x.op("Unsqueeze", x[4], x.ints(1, 2))
        total = x.op("Add", total, bias)
    return [group_norm(x, total), total]


def complex_product(sign: int, x: Composer) -> Value:
    """A product of complex numbers, real and imaginary parts last; ``sign`` of the right one's."""
    (a, b), (c, d) = (x.ops("Split", x[i], outputs=2, axis=-1, num_outputs=2) for i in (0, 1))
    if sign < 0:
        d = x.op("Neg", d)
    real = x.op("Sub", x.op("Mul", a, c), x.op("Mul", b, d))
    return x.op("Concat", real, x.op("Add", x.op("Mul", a, d), x.op("Mul", b, c)), axis=-1)


def distances(x: Composer) -> Value:
    """CDist: the distance of each row of one matrix from each row of another."""
    rows, columns = x.op("Unsqueeze", x[0], x.ints(1)), x.op("Unsqueeze", x[1], x.ints(0))
    apart = x.op("Sub", rows, columns)
    squares = x.op("ReduceSumSquare", apart, x.ints(-1), keepdims=0)
    metric = x.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise x.unsupported(f"metric {metric!r}")
    return x.op("Sqrt", squares) if metric == "euclidean" else squares


def expand_dims(x: Composer) -> Value:
    """A dim of size 1."""
    return x.op("Unsqueeze", x[0], x.ints(int(x.number_of(1))))


def fast_gelu_product(x: Composer) -> Value:
    """GemmFastGelu: gelu, by tanh, of a product with a bias."""
    product = x.op("MatMul", x[0], x[1])
    product = x.op("Add", product, x[2]) if x.has(2) else product
    return x.op("Gelu", product, approximate="tanh")


def matmul_activation(x: Composer) -> Value:
    """FusedMatMulActivation."""
    return activated(x, fused_matmul(x))


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Values of NormalFloat of 4 bits (Dettmers et al., arXiv:2305.14314, appendix E)."""

FP4 = (
    0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
    0.0, -5.208333333e-03, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25,
)  # fmt: skip
"""Values of the float of 4 bits that bitsandbytes has."""


def bits_and_bytes(x: Composer) -> Value:
    """MatMulBnb4: weights [N, K] of 4 bits, two a byte, high ones first, by tables and blocks."""
    rows, depth, block = (int(x.attr(name)) for name in ("N", "K", "block_size"))
    table = np.array((FP4, NF4)[int(x.attr("quant_type"))], np.float32)
    packed = x.array(1).reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: rows * depth]
    scales = np.repeat(x.array(2).astype(np.float32), block)[: rows * depth]
    weights = (table[codes] * scales).reshape(rows, depth).T
    weight = Value.of_array(np.ascontiguousarray(weights), role="parameter", name=x[1].name)
    return x.op("MatMul", x[0], x.op("CastLike", weight, x[0]))


COMPOSITIONS: Mapping[str, Composition] = {
    "BiasAdd": lambda x: summed(x, 0, 1, 2),
    "BiasDropout": bias_dropout,
    "BiasSplitGelu": bias_split_gelu,
    "CDist": distances,
    "ComplexMul": partial(complex_product, 1),
    "ComplexMulConj": partial(complex_product, -1),
    "ExpandDims": expand_dims,
    "FusedMatMulActivation": matmul_activation,
    "GemmFastGelu": fast_gelu_product,
    "GroupNorm": lambda x: group_norm(x, x[0]),
    "MatMulBnb4": bits_and_bytes,
    "SkipGroupNorm": skip_group_norm,
}
