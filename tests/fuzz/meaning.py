"""What an op of the fuzzer means, in terms of the ops of flow: written once, read two ways.

:class:`~tests.fuzz.flow.FlowMeaning` emits flow ops, :class:`~tests.fuzz.reference.BoundMeaning`
computes bounded values. What torch calls ``layer_norm`` is a function of a meaning here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

HALVES = ("f16", "bf16")


class Meaning(Protocol):
    """The ops of flow that programs are made of; values are the meaning's own."""

    def shape(self, x: Any) -> tuple[int, ...]: ...
    def dtype(self, x: Any) -> str: ...
    def fn(self, name: str, *xs: Any) -> Any: ...
    def cast(self, x: Any, dtype: str) -> Any: ...
    def constant(self, value: float, dtype: str) -> Any: ...
    def iota(self, shape: Sequence[int], dim: int) -> Any: ...
    def reduce(self, fn: str, x: Any, dims: Sequence[int], keep: bool = True) -> Any: ...
    def arg_reduce(self, fn: str, x: Any, dim: int) -> Any: ...
    def cumulative(self, fn: str, x: Any, dim: int) -> Any: ...
    def contract(self, spec: str, a: Any, b: Any) -> Any: ...
    def reshape(self, x: Any, shape: Sequence[int]) -> Any: ...
    def transpose(self, x: Any, perm: Sequence[int]) -> Any: ...
    def broadcast(self, x: Any, shape: Sequence[int]) -> Any: ...
    def slice(
        self, x: Any, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
    ) -> Any: ...
    def concat(self, xs: Sequence[Any], dim: int) -> Any: ...
    def pad(self, x: Any, low: Sequence[int], high: Sequence[int], value: float) -> Any: ...
    def take(self, table: Any, index: Any, dim: int) -> Any: ...
    def gather(self, x: Any, index: Any, dim: int) -> Any: ...
    def scatter(self, x: Any, index: Any, source: Any, dim: int, fn: str) -> Any: ...
    def attention(self, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> Any: ...
    def convolution(
        self, x: Any, w: Any, bias: Any, stride: int, pad: int, dilation: int, groups: int
    ) -> Any: ...
    def pool(self, fn: str, x: Any, window: int, stride: int, pad: int) -> Any: ...


def scalar(k: Meaning, fn: str, x: Any, value: float) -> Any:
    """``fn(x, value)``, the value being of x's dtype."""
    return k.fn(fn, x, k.constant(value, k.dtype(x)))


def wide(k: Meaning, x: Any) -> Any:
    """Half types as float32, in which torch computes norms."""
    return k.cast(x, "f32") if k.dtype(x) in HALVES else x


def mean(k: Meaning, x: Any, dims: Sequence[int], keep: bool = True) -> Any:
    """The sum divided by how many there are."""
    dtype, x = k.dtype(x), wide(k, x)
    count = 1
    for d in dims:
        count *= k.shape(x)[d]
    return k.cast(scalar(k, "div", k.reduce("sum", x, dims, keep), float(count)), dtype)


def softmax(k: Meaning, x: Any, dim: int, *, log: bool = False) -> Any:
    """``e**(x - max) / sum``, or its logarithm."""
    dtype, x = k.dtype(x), wide(k, x)
    shifted = k.fn("sub", x, k.reduce("max", x, (dim,)))
    grown = k.fn("exp", shifted)
    total = k.reduce("sum", grown, (dim,))
    if log:
        return k.cast(k.fn("sub", shifted, k.fn("log", total)), dtype)
    return k.cast(k.fn("div", grown, total), dtype)


def layer_norm(k: Meaning, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``(x - mean) rsqrt(var + eps) weight + bias`` over the last dim."""
    dtype, x = k.dtype(x), wide(k, x)
    last = (len(k.shape(x)) - 1,)
    centred = k.fn("sub", x, mean(k, x, last))
    var = mean(k, k.fn("mul", centred, centred), last)
    normed = k.fn("mul", centred, k.fn("rsqrt", scalar(k, "add", var, eps)))
    scaled = k.fn("mul", normed, wide(k, weight))
    return k.cast(k.fn("add", scaled, wide(k, bias)), dtype)


def rms_norm(k: Meaning, x: Any, weight: Any, eps: float) -> Any:
    """``x rsqrt(mean(x**2) + eps) weight`` over the last dim, as Llama writes it."""
    dtype, x = k.dtype(x), wide(k, x)
    square = mean(k, k.fn("mul", x, x), (len(k.shape(x)) - 1,))
    normed = k.fn("mul", x, k.fn("rsqrt", scalar(k, "add", square, eps)))
    return k.fn("mul", k.cast(normed, dtype), weight)


def variance(k: Meaning, x: Any, dim: int) -> Any:
    """Mean squared distance from the mean."""
    dtype, x = k.dtype(x), wide(k, x)
    centred = k.fn("sub", x, mean(k, x, (dim,)))
    return k.cast(mean(k, k.fn("mul", centred, centred), (dim,)), dtype)


def matmul(k: Meaning, a: Any, b: Any) -> Any:
    """Batched over equal leading dims; a matrix on the right is shared."""
    batch = "abcdefg"[: len(k.shape(a)) - 2]
    left, right = f"{batch}mk", f"{batch if len(k.shape(b)) > 2 else ''}kn"
    return k.contract(f"{left},{right}->{batch}mn", a, b)


def linear(k: Meaning, x: Any, weight: Any, bias: Any) -> Any:
    """``x weight^T + bias``."""
    batch = "abcdefg"[: len(k.shape(x)) - 1]
    return k.fn("add", k.contract(f"{batch}k,nk->{batch}n", x, weight), bias)


def attention(k: Meaning, q: Any, key: Any, v: Any, mask: Any, causal: bool, scale: float) -> Any:
    """Attention spelled out, in float32 for half types; heads of q share heads of key and v."""
    dtype = k.dtype(q)
    share = k.shape(q)[1] // k.shape(key)[1]
    q, key, v = (wide(k, x) for x in (q, key, v))
    if share > 1:
        key, v = (_repeated(k, x, share) for x in (key, v))
    scores = scalar(k, "mul", k.contract("bhsd,bhtd->bhst", q, key), scale)
    lowest = k.constant(float("-inf"), k.dtype(scores))
    if causal:
        rows, columns = k.shape(scores)[2:]
        row, column = k.iota((rows, columns), 0), k.iota((rows, columns), 1)
        scores = k.fn("where", k.fn("le", column, row), scores, lowest)
    if mask is not None and k.dtype(mask) == "i1":
        scores = k.fn("where", mask, scores, lowest)
    elif mask is not None:
        scores = k.fn("add", scores, wide(k, mask))
    # Flash kernels round probabilities to the operands' dtype before the second product.
    weights = wide(k, k.cast(softmax(k, scores, 3), dtype))
    return k.cast(k.contract("bhst,bhtd->bhsd", weights, v), dtype)


def _repeated(k: Meaning, x: Any, share: int) -> Any:
    """Repeat each head so many times."""
    b, h, t, d = k.shape(x)
    wide_x = k.broadcast(k.reshape(x, (b, h, 1, t, d)), (b, h, share, t, d))
    return k.reshape(wide_x, (b, h * share, t, d))
