"""Ops of level flow that read and write at indices: each with its record beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue

from irc.dialects.attributes import to_python
from irc.dialects.fields import integer_field, operand, text_field
from irc.dialects.flow import FlowOp, flow_op, tensor
from irc.dialects.literals import IotaOp
from irc.dialects.placement import B, Partial, Split
from irc.dialects.size import product
from irc.dialects.types import Shape, TensorType
from irc.ops.derivative import Adjoint, known
from irc.ops.derivatives_layout import cut, padded
from irc.ops.infer import Attrs, Signature, check_within
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules_naming import dim_of, letters
from irc.ops.strategies import AS_IT_IS, Strategy, StrategyFunction


def _masked(name: str) -> StrategyFunction:
    """Split the table along the indexed dim: each rank gives its own rows and zeros elsewhere."""

    def strategies(
        attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
    ) -> list[Strategy]:
        (table, dtype), dim = operands[0], dim_of(attrs)
        if dtype == "i1" or table[dim] == 1:
            return []
        return [Strategy(name, (Split(dim), B), (Partial("sum"),), table[dim])]

    return strategies


def _taken(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (table, dtype), (indices, _), dim = operands[0], operands[1], attrs["dim"]
    return [((*table[:dim], *indices, *table[dim + 1 :]), dtype)]


def _take_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    (table, _), (indices, _), dim = operands[0], operands[1], dim_of(attrs)
    names = letters((*table, *indices))
    rows, columns = names[: len(table)], names[len(table) :]
    return Rule(
        ((*rows[:dim], (), *rows[dim + 1 :]), columns),
        ((*rows[:dim], *columns, *rows[dim + 1 :]),),
        linear=((0,),),
        monotone=((0,),),
    )


def _rows_added(at: Adjoint, operand: int) -> SSAValue | None:
    """Add each looked-up row to its row of the table."""
    if operand:
        return None
    table, indices, dim = at.kind(0), at.kind(1), at.attrs["dim"]
    count = product(indices.shape)
    flat: Shape = (*table.shape[:dim], count, *table.shape[dim + 1 :])
    lead = tuple(count if i == dim else 1 for i in range(table.ndim))
    rows = at.b.reshape(at.inputs[1], lead)
    g = at.b.reshape(at.g, flat)
    padding = at.op.attributes.get("padding_idx")
    if padding is not None:
        # torch.nn.Embedding: the row that stands for padding is not trained.
        skipped = at.b.pointwise("eq", rows, at.b.scalar(to_python(padding), at.kind(1).dtype))
        g = at.b.pointwise("where", skipped, at.b.scalar(0, table.dtype), g)
    return added_at(at, table, dim, at.b.broadcast(rows, flat), g)


@flow_op
class TakeOp(FlowOp):
    """``result[a.., i.., b..] = table[a.., indices[i..], b..]``, the index at ``dim``: embedding.

    Indices count from 0 and lie inside the table.
    """

    name = "flow.take"
    table = operand(0)
    index = operand(1)
    dim = integer_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_taken,
        rule=_take_rule,
        derivative=_rows_added,
        strategies=_masked("masked-take"),
        looks_up=True,
    )


def _gathered(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (table, dtype), (indices, _) = operands
    check_within(indices, table, attrs["dim"])
    return [(indices, dtype)]


def _gather_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    (x, _), (index, _), dim = operands[0], operands[1], dim_of(attrs)
    # Where the index is shorter than x, its shard would meet another part of x.
    free = [i for i in range(len(x)) if i != dim and x[i] == index[i]]
    names = letters(index)
    names = tuple(name if i == dim or i in free else () for i, name in enumerate(names))
    source = tuple(name if i in free else () for i, name in enumerate(names))
    return Rule((source, names), (names,), linear=((0,),), monotone=((0,),))


def _elements_added(at: Adjoint, operand: int) -> SSAValue | None:
    """Add each element to where it was looked up.

    One look-up a row (cross-entropy) is a comparison with the counted dim instead of a scatter: it
    fuses, and any dim of it can be split.
    """
    if operand:
        return None
    x, index, dim = at.kind(0), at.kind(1), at.attrs["dim"]
    rest = all(
        n == m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if i != dim
    )
    if not (rest and index.shape[dim] == 1):
        return added_at(at, x, dim, at.inputs[1], at.g)
    line = tuple(size if i == dim else 1 for i, size in enumerate(x.shape))
    place = at.b.op(IotaOp, [], result=TensorType.of(line, index.dtype), dim=dim)
    here = at.b.pointwise("eq", at.inputs[1], place)
    return at.b.pointwise("where", here, at.g, at.b.scalar(0, x.dtype))


@flow_op
class GatherOp(FlowOp):
    """torch.gather: ``result[.., i, ..] = x[.., index[.., i, ..], ..]`` along ``dim``."""

    name = "flow.gather"
    x = operand(0)
    index = operand(1)
    dim = integer_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_gathered,
        rule=_gather_rule,
        derivative=_elements_added,
        strategies=_masked("masked-gather"),
        looks_up=True,
    )


def _written(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (table, _), (indices, _), (updates, _) = operands
    check_within(indices, table, attrs["dim"])
    check_within(indices, updates, None)
    return [operands[0]]


def _scatter_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    (x, _), (index, _), (source, _) = operands[:3]
    dim = dim_of(attrs)
    names = tuple(
        name if i != dim and x[i] == index[i] == source[i] else ()
        for i, name in enumerate(letters(x))
    )
    linear = ((0, 2),) if attrs["fn"] in ("set", "sum") else ()
    return Rule((names, names, names), (names,), linear=linear)


def _own_rows(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the table along the written dim (each rank writes its own rows), or what is added."""
    (table, dtype), (index, _), dim = operands[0], operands[1], dim_of(attrs)
    strategies: list[Strategy] = []
    if table[dim] != 1:
        rows = Split(dim)
        strategies.append(Strategy("masked-scatter", (rows, B, B), (rows,), table[dim]))
    if attrs["fn"] == "sum" and index[dim] != 1 and dtype != "i1":
        part, updates = Partial("sum"), Split(dim)
        strategies.append(
            Strategy(AS_IT_IS, (part, updates, updates), (part,), index[dim], split="updates")
        )
    return strategies


def _by_function(at: Adjoint, operand: int) -> SSAValue | None:
    """By function: what was written, added, multiplied or compared."""
    if operand == 1:
        return None
    fn = at.attrs["fn"]
    if fn == "sum" and operand == 0:
        return at.g
    if fn in ("sum", "set"):
        if operand == 2:
            return _like_source(at, _looked_up(at, at.g))
        index = at.inputs[1]
        nothing = at.b.constant([0], tensor(index).shape, at.kind(0).dtype)
        return at.b.op(ScatterOp, [at.g, index, nothing], dim=at.attrs["dim"], fn="set")
    return _scatter_product(at, operand) if fn == "prod" else _scatter_extreme(at, operand)


@flow_op
class ScatterOp(FlowOp):
    """torch.scatter of (x, index, source) along ``dim``; ``fn`` is set, sum, prod, max or min."""

    name = "flow.scatter"
    x = operand(0)
    index = operand(1)
    source = operand(2)
    dim = integer_field()
    fn = text_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_written,
        rule=_scatter_rule,
        derivative=_by_function,
        strategies=_own_rows,
        fns=("set", "sum", "prod", "max", "min"),
    )


def added_at(
    at: Adjoint, kind: TensorType, dim: int, index: SSAValue, source: SSAValue
) -> SSAValue:
    """Add elements into zeros of a type at their index along ``dim`` (torch.scatter_add)."""
    index = at.b.cast(index, "i64")
    return at.b.op(ScatterOp, [at.zeros(kind), index, source], dim=dim, fn="sum")


def _looked_up(at: Adjoint, value: SSAValue) -> SSAValue:
    return at.b.op(GatherOp, [value, at.inputs[1]], dim=at.attrs["dim"])


def _like_source(at: Adjoint, value: SSAValue) -> SSAValue:
    """Elements of the source past the index's shape are not read."""
    sizes = zip(at.kind(2).shape, tensor(value).shape, strict=True)
    high = tuple(known(size - used) for size, used in sizes)
    return padded(at.b, value, (0,) * len(high), high)


def _read_source(at: Adjoint) -> SSAValue:
    source, index = at.inputs[2], at.kind(1)
    for dim, size in enumerate(index.shape):
        source = cut(at.b, source, dim, 0, known(size))
    return source


def _scatter_extreme(at: Adjoint, operand: int) -> SSAValue:
    """Share the gradient evenly among all that equal the result."""

    def parts() -> tuple[SSAValue, SSAValue, SSAValue]:
        x = at.kind(0)
        kept = at.b.cast(at.b.pointwise("eq", at.x, at.y), x.dtype)
        hit = at.b.pointwise("eq", _read_source(at), _looked_up(at, at.y))
        hits = at.b.cast(hit, x.dtype)
        count = at.b.op(ScatterOp, [kept, at.inputs[1], hits], dim=at.attrs["dim"], fn="sum")
        one = at.b.pointwise("maximum", count, at.b.scalar(1, x.dtype))
        return kept, hits, at.b.pointwise("div", at.g, one)

    kept, hits, each = at.shared("parts", parts)
    if operand == 0:
        return at.b.pointwise("mul", kept, each)
    return _like_source(at, at.b.pointwise("mul", hits, _looked_up(at, each)))


def _scatter_product(at: Adjoint, operand: int) -> SSAValue:
    """Multiply by the other factors; factors of 0 are left out of the product, not divided out."""
    b, dim, dtype = at.b, at.attrs["dim"], at.kind(0).dtype
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    source, index = _read_source(at), at.inputs[1]
    if operand == 0:
        ones = b.constant([1], at.kind(0).shape, dtype)
        others = b.op(ScatterOp, [ones, index, source], dim=dim, fn="prod")
        return b.pointwise("mul", at.g, others)
    is_zero = b.pointwise("eq", source, zero)
    nothing = at.zeros(at.kind(0))
    zeros = b.op(ScatterOp, [nothing, index, b.cast(is_zero, dtype)], dim=dim, fn="sum")
    single = b.pointwise("logical_and", is_zero, b.pointwise("eq", _looked_up(at, zeros), one))
    filled = b.pointwise("where", single, one, source)
    product_without = b.op(ScatterOp, [at.x, index, filled], dim=dim, fn="prod")
    at_zero = _looked_up(at, b.pointwise("mul", at.g, product_without))
    whole = _looked_up(at, b.pointwise("mul", at.g, at.y))
    elsewhere = b.pointwise("div", whole, b.pointwise("where", is_zero, one, source))
    return _like_source(at, b.pointwise("where", single, at_zero, elsewhere))


INDEXING: tuple[type[FlowOp], ...] = (TakeOp, GatherOp, ScatterOp)
