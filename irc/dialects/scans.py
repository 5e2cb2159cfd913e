"""Running reductions of level flow: the op with its record beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from xdsl.ir import SSAValue

from irc.dialects.fields import flag_field, integer_field, operand, text_field
from irc.dialects.flow import FlowOp, flow_op, tensor
from irc.dialects.indexing import ScatterOp
from irc.dialects.literals import IotaOp
from irc.dialects.size import Dim
from irc.dialects.types import Shape, TensorType
from irc.ops.derivative import Adjoint, PhaseBuilder, known
from irc.ops.derivatives_layout import cut, padded
from irc.ops.infer import Attrs, Signature
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules_naming import dim_of, letters
from irc.ops.strategies import over_the_dim


def _same(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    return [operands[0]]


def _scan_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names = letters(operands[0][0])
    linear = ((0,),) if attrs["fn"] == "sum" else ()
    return Rule((names,), (names,), whole=names[dim_of(attrs)], linear=linear)


def _elements(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for name in rule.factors)


def _by_function(at: Adjoint, operand: int) -> SSAValue:
    """By function; a running sum's gradient runs the other way."""
    match at.attrs["fn"]:
        case "sum":
            attrs: dict[str, Any] = {**at.attrs, "reverse": not at.attrs["reverse"]}
            return at.b.op(CumulativeOp, [at.g], **attrs)
        case "prod":
            return _running_product(at)
        case _:
            return _running_extreme(at)


@flow_op
class CumulativeOp(FlowOp):
    """Running sum, prod, max or min along ``dim``; ``exclusive`` starts at the neutral element."""

    name = "flow.cumulative"
    x = operand(0)
    fn = text_field()
    dim = integer_field()
    exclusive = flag_field()
    reverse = flag_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_same,
        rule=_scan_rule,
        flops=_elements,
        derivative=_by_function,
        strategies=over_the_dim("scan-of-shards"),
        refusal="shards of the dim have to be equal: ranks exchange what each comes to",
        fns=("sum", "prod", "max", "min"),
    )


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


SCANS: tuple[type[FlowOp], ...] = (CumulativeOp,)
