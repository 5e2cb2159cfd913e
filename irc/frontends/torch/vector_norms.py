"""ATen's norms of vectors: of any order."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.frontends.torch.kinks import power, root
from irc.frontends.torch.lowering import Lowering, dims_of, is_float, lowers, ranked
from irc.frontends.torch.reductions import Dims, total


@lowers("linalg_vector_norm", "norm")
def vector_norm(
    t: Lowering,
    self: SSAValue,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    **options: Any,
) -> SSAValue:
    """Return ``sum(|x| ** p) ** (1 / p)``; its limits for p of 0 (a count) and of +-infinity."""
    if not is_float(tensor(self).dtype):
        t.decline()
    order = 2.0 if ord is None else float(ord)
    x = t.b.cast(ranked(t, self), t.accumulating(t.dtype))
    dims = dims_of(dim, tensor(x).ndim)
    found = t.b.reshape(_norm(t, x, order, dims), t.shape)
    return t.b.cast(found, t.dtype)


def _norm(t: Lowering, x: SSAValue, order: float, dims: tuple[int, ...]) -> SSAValue:
    dtype = tensor(x).dtype
    size = t.b.pointwise("abs", x)
    if math.isinf(order):
        return t.b.reduce("max" if order > 0 else "min", size, dims, keep_dims=True)
    if order == 0:
        some = t.b.pointwise("ne", x, t.value(0, dtype))
        return total(t, t.b.cast(some, dtype), dims, True)
    if order == 1:
        return total(t, size, dims, True)
    if order == 2:
        return root(t, total(t, t.b.pointwise("mul", x, x), dims, True))
    powers = (
        power(t, size, order)
        if 0 < order < 1
        else t.b.pointwise("pow", size, t.value(order, dtype))
    )
    return power(t, total(t, powers, dims, True), 1 / order)
