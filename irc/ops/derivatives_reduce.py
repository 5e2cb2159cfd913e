"""Derivatives of contractions and reductions."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, TransposeOp, tensor
from irc.dialects.scans import CumulativeOp
from irc.dialects.size import product
from irc.dialects.types import Shape
from irc.ops.derivative import Adjoint, PhaseBuilder, kept_shape
from irc.ops.infer import parse_spec


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
        gradient = at.b.op(ContractOp, [at.g, *(at.inputs[i] for i in others)], spec=spec)
    else:
        perm = tuple(result.index(letter) for letter in target)
        gradient = at.b.op(TransposeOp, [at.g], perm=perm)
    shape = at.kind(operand).shape
    there: Shape = tuple(
        size if letter in known else 1 for letter, size in zip(mine, shape, strict=True)
    )
    return at.b.broadcast(at.b.reshape(gradient, there), shape)


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
    # An extreme that is NaN equals none of them: all have 0 / 0, as in eager.
    same = b.cast(b.pointwise("eq", at.x, b.reshape(at.y, kept)), dtype)
    count = b.reduce("sum", same, dims, keep_dims=True)
    return b.pointwise("mul", same, b.pointwise("div", g, count))


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
    products = b.reshape(b.pointwise("mul", before, after), full)
    return b.op(TransposeOp, [products], perm=tuple(order.index(d) for d in range(len(shape))))
