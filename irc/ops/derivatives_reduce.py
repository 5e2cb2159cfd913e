"""Derivatives of contractions, reductions and running reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import (
    ContractOp,
    CumulativeOp,
    IotaOp,
    ScatterOp,
    TransposeOp,
    tensor,
)
from irc.dialects.size import Dim, product
from irc.dialects.types import Shape, TensorType
from irc.ops.derivative import Adjoint, PhaseBuilder, kept_shape, known
from irc.ops.derivatives_layout import cut, padded
from irc.ops.infer import parse_spec
from irc.ops.rules_naming import dim_of


def contract(at: Adjoint, operand: int) -> SSAValue:
    """Contract the gradient with the other operands.

    ``C = A B`` gives ``dA = dC B^T`` and ``dB = A^T dC``; in einsum form the operand's letters and
    the result's change places.
    """
    letters, result = parse_spec(at.attrs["spec"])
    mine, others = letters[operand], [i for i in range(len(letters)) if i != operand]
    known = set(result).union(*(letters[i] for i in others))
    # A letter of this operand alone was added up: each of its elements has the same gradient.
    target = "".join(letter for letter in mine if letter in known)
    if others:
        spec = ",".join([result, *(letters[i] for i in others)]) + f"->{target}"
        found = at.b.op(ContractOp, [at.g, *(at.inputs[i] for i in others)], spec=spec)
    else:
        perm = tuple(result.index(letter) for letter in target)
        found = at.b.op(TransposeOp, [at.g], perm=perm)
    shape = at.kind(operand).shape
    there: Shape = tuple(
        size if letter in known else 1 for letter, size in zip(mine, shape, strict=True)
    )
    return at.b.broadcast(at.b.reshape(found, there), shape)


def reduce(at: Adjoint, operand: int) -> SSAValue | None:
    """By function: a sum spreads, an extreme goes to the elements that equal it, evenly."""
    b, shape, dims, fn = at.b, at.kind(0).shape, tuple(at.attrs["dims"]), at.attrs["fn"]
    kept = kept_shape(shape, dims)
    g = b.reshape(at.g, kept)
    if not dims:
        return at.g
    if fn == "sum":
        return b.broadcast(g, shape)
    if fn == "prod":
        return b.pointwise("mul", _others(at.b, at.x, dims), g)
    dtype = at.kind(0).dtype
    same = b.pointwise("eq", at.x, b.reshape(at.y, kept))
    count = b.reduce("sum", b.cast(same, dtype), dims, keep_dims=True)
    return b.pointwise("where", same, b.pointwise("div", g, count), b.scalar(0, dtype))


def _others(b: PhaseBuilder, x: SSAValue, dims: tuple[int, ...]) -> SSAValue:
    """Return for each element the product of all others: before it, times after it.

    Nothing is divided, so zeros do no harm.
    """
    shape = tensor(x).shape
    rest = [dim for dim in range(len(shape)) if dim not in dims]
    order = (*rest, *dims)
    moved = b.op(TransposeOp, [x], perm=order)
    full, last = tensor(moved).shape, len(rest)
    flat = b.reshape(moved, (*full[:last], product(full[last:])))
    before, after = (
        b.op(CumulativeOp, [flat], fn="prod", dim=last, exclusive=True, reverse=reverse)
        for reverse in (False, True)
    )
    found = b.reshape(b.pointwise("mul", before, after), full)
    return b.op(TransposeOp, [found], perm=tuple(order.index(d) for d in range(len(shape))))


def cumulative(at: Adjoint, operand: int) -> SSAValue:
    """By function; a running sum's gradient runs the other way."""
    match at.attrs["fn"]:
        case "sum":
            attrs: dict[str, Any] = {**at.attrs, "reverse": not at.attrs["reverse"]}
            return at.b.op(CumulativeOp, [at.g], **attrs)
        case "prod":
            return _running_product(at)
        case _:
            return _running_extreme(at)


HELD: Mapping[tuple[bool, bool], str] = {
    (False, False): "ge",
    (False, True): "gt",
    (True, False): "le",
    (True, True): "lt",
}
"""By (reverse, exclusive): how a running result's index compares with those of what it holds."""


def _running_product(at: Adjoint) -> SSAValue:
    """``dx[k] = sum over i of g[i] * product of the j != k that y[i] holds``; n**2 elements.

    Dividing ``y[i]`` by ``x[k]`` would be cheaper and wrong where ``x[k]`` is 0.
    """
    b, dim, kind = at.b, dim_of(at.attrs), at.kind(0)
    shape, n = kind.shape, kind.shape[dim]
    # Dims [..., k, n (j, then i), ...]: the element left out is a dim of its own.
    square: Shape = (*shape[:dim], n, n, *shape[dim + 1 :])
    k, i = (_count(b, square, d, dim) for d in (dim, dim + 1))
    x = b.reshape(at.x, (*shape[:dim], 1, n, *shape[dim + 1 :]))
    without = b.pointwise("where", b.pointwise("eq", k, i), b.scalar(1, kind.dtype), x)
    attrs: dict[str, Any] = {**at.attrs, "dim": dim + 1}
    running = b.op(CumulativeOp, [without], **attrs)
    mask = b.pointwise(HELD[attrs["reverse"], attrs["exclusive"]], i, k)
    g = b.reshape(at.g, tensor(x).shape)
    part = b.pointwise("where", mask, b.pointwise("mul", running, g), b.scalar(0, kind.dtype))
    return b.reduce("sum", part, (dim + 1,), keep_dims=False)


def _count(b: PhaseBuilder, shape: Shape, dim: int, first: int) -> SSAValue:
    line: tuple[Dim, ...] = tuple(size if i == dim else 1 for i, size in enumerate(shape))
    return b.op(IotaOp, [], result=TensorType.of(line, "i64"), dim=dim)


def _running_extreme(at: Adjoint) -> SSAValue:
    """Send each gradient to the last element, in running order, that set the extreme."""
    b, dim, kind = at.b, dim_of(at.attrs), at.kind(0)
    reverse: bool = at.attrs["reverse"]
    y, g = at.y, at.g
    if at.attrs["exclusive"]:
        inclusive: dict[str, Any] = {**at.attrs, "exclusive": False}
        y = b.op(CumulativeOp, [at.x], **inclusive)
        g = _shifted(b, g, dim, reverse)
    place = b.broadcast(_count(b, kind.shape, dim, dim), kind.shape)
    never = b.scalar(known(kind.shape[dim]) if reverse else -1, "i64")
    setters = b.pointwise("where", b.pointwise("eq", at.x, y), place, never)
    latest = "min" if reverse else "max"
    index = b.op(CumulativeOp, [setters], fn=latest, dim=dim, exclusive=False, reverse=reverse)
    return b.op(ScatterOp, [at.zeros(kind), index, g], dim=dim, fn="sum")


def _shifted(b: PhaseBuilder, g: SSAValue, dim: int, reverse: bool) -> SSAValue:
    """Move gradients one place: an exclusive result is the inclusive one of its neighbour."""
    shape = tensor(g).shape
    size, zero = known(shape[dim]), (0,) * len(shape)
    one = tuple(int(i == dim) for i in range(len(shape)))
    if reverse:
        return padded(b, cut(b, g, dim, 0, size - 1), one, zero)
    return padded(b, cut(b, g, dim, 1, size), zero, one)
