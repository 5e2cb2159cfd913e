"""Ops of level flow that order or search what lies along a dim: each with its record beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2, prod
from typing import ClassVar

from xdsl.ir import SSAValue

from irc.dialects.fields import flag_field, integer_field, operand, text_field
from irc.dialects.flow import FlowOp, flow_op
from irc.dialects.indexing import added_at
from irc.ops.derivative import Adjoint
from irc.ops.infer import Attrs, ShapeError, Signature
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule, TensorTerm
from irc.ops.rules_naming import dim_of, letters
from irc.ops.strategies import over_the_dim


def _sorted(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    return [operands[0], (operands[0][0], "i64")]


def _sort_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names = letters(operands[0][0])
    return Rule((names,), (names, names), whole=names[dim_of(attrs)])


def _chosen(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (shape, dtype), dim = operands[0], attrs["dim"]
    kept = (*shape[:dim], attrs["k"], *shape[dim + 1 :])
    return [(kept, dtype), (kept, "i64")]


def _top_k_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names, dim = letters(operands[0][0]), dim_of(attrs)
    kept = (*names[:dim], (), *names[dim + 1 :])
    return Rule((names,), (kept, kept), whole=names[dim])


def _comparisons(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """Of each element as many as a sort of its row takes."""
    length = prod(sizes[name] for name in rule.whole)
    return prod(sizes[name] for name in rule.factors) * ceil(log2(max(length, 2)))


def _sent_back(at: Adjoint, operand: int) -> SSAValue | None:
    """Send each value's gradient back along its index."""
    if at.gradients[0] is None:
        return None
    return added_at(at, at.kind(0), at.attrs["dim"], at.op.outputs[1], at.g)


@flow_op
class SortOp(FlowOp):
    """Sorted values and their indices along ``dim``; stable."""

    name = "flow.sort"
    x = operand(0)
    dim = integer_field()
    descending = flag_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_sorted,
        rule=_sort_rule,
        flops=_comparisons,
        derivative=_sent_back,
        refusal="the sorted dim has to be on one rank: the others split",
    )


@flow_op
class TopKOp(FlowOp):
    """The k largest (or smallest) values along ``dim``, in order, and their indices."""

    name = "flow.top_k"
    x = operand(0)
    k = integer_field()
    dim = integer_field()
    largest = flag_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_chosen,
        rule=_top_k_rule,
        flops=_comparisons,
        derivative=_sent_back,
        strategies=over_the_dim("two-stage-top-k"),
        refusal="shards of the searched dim have to be equal: ranks exchange what they find",
    )


def _place(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    shape, dim = operands[0][0], attrs["dim"]
    if not 0 <= dim < len(shape):
        raise ShapeError(f"dim {dim} of {len(shape)} dims is searched")
    kept = (1,) if attrs["keep_dims"] else ()
    return [((*shape[:dim], *kept, *shape[dim + 1 :]), "i64")]


def _place_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    names, dim = letters(operands[0][0]), dim_of(attrs)
    middle: TensorTerm = ((),) if attrs["keep_dims"] else ()
    return Rule((names,), ((*names[:dim], *middle, *names[dim + 1 :]),), whole=names[dim])


def _elements(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for name in rule.factors)


@flow_op
class ArgReduceOp(FlowOp):
    """The index of the first largest (``max``) or smallest (``min``) element along ``dim``."""

    name = "flow.arg_reduce"
    x = operand(0)
    fn = text_field()
    dim = integer_field()
    keep_dims = flag_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_place,
        rule=_place_rule,
        flops=_elements,
        strategies=over_the_dim("two-stage-arg"),
        refusal="shards of the searched dim have to be equal: ranks exchange what they find",
        fns=("max", "min"),
        is_flat=True,
    )


SEARCHES: tuple[type[FlowOp], ...] = (SortOp, TopKOp, ArgReduceOp)
