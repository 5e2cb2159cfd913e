"""How much an op computes and moves, from its rule: what a roofline divides by the speeds.

The iteration space is the product of the rule's factors; a split divides its factor's size, so one
formula for each op gives the work of the whole op and of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2, prod
from typing import TYPE_CHECKING, Protocol, TypeAlias

from irc.dialects.placement import Mesh, Placement, Split
from irc.dialects.types import ITEM_BYTES
from irc.ops.infer import Attrs, Signature
from irc.ops.pointwise import POINTWISE
from irc.ops.rule import Rule, static
from irc.ops.rules import op_signatures, rule_of

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp


class Sharded(Protocol):
    """What is needed of an op's signature on a mesh (irc.sharding.signatures.NdSignature)."""

    @property
    def operands(self) -> tuple[Placement, ...]: ...
    @property
    def results(self) -> tuple[Placement, ...]: ...
    @property
    def splits(self) -> tuple[str, ...]: ...


Formula: TypeAlias = Callable[[Attrs, Rule, Mapping[str, int]], int]

VIEWS = frozenset({"flow.reshape", "flow.transpose", "flow.slice", "flow.broadcast"})
"""Ops that kernels fold into their loads: they move nothing."""

LOOKUPS = frozenset({"flow.take", "flow.gather"})
"""Ops that read of their first operand only what they give."""

SOFTMAX_FLOPS = 14
"""Maximum, subtraction, exponential (10), sum and division of one attention score."""


def flops(op: FlowOp) -> int:
    """Return the arithmetic operations of the whole op.

    Raises:
        RuleError: where a size is still symbolic.
    """
    rule, sizes = _factors(op)
    return _flops(op, rule, sizes)


def local_flops(op: FlowOp, signature: Sharded, mesh: Mesh) -> int:
    """Return the arithmetic operations of the busiest rank (the first: chunks are ceil-sized)."""
    rule, sizes = _factors(op)
    local = dict(sizes)
    for factor, (_, parts) in zip(signature.splits, mesh.axes, strict=True):
        if factor in local:
            local[factor] = -(-local[factor] // parts)
    return _flops(op, rule, local)


def bytes_moved(op: FlowOp) -> int:
    """Return the bytes that the whole op reads and writes; views move none."""
    operands, results = op_signatures(op)
    return _bytes(op.name, [_size(s) for s in operands], [_size(s) for s in results])


def local_bytes(op: FlowOp, signature: Sharded, mesh: Mesh) -> int:
    """Return the bytes that the busiest rank reads and writes."""
    operands, results = op_signatures(op)
    reads = [_local_size(s, p, mesh) for s, p in zip(operands, signature.operands, strict=True)]
    writes = [_local_size(s, p, mesh) for s, p in zip(results, signature.results, strict=True)]
    return _bytes(op.name, reads, writes)


def _factors(op: FlowOp) -> tuple[Rule, dict[str, int]]:
    rule = rule_of(op)
    operands, results = op_signatures(op)
    shapes = [shape for shape, _ in operands], [shape for shape, _ in results]
    return rule, static(rule.factor_sizes(*shapes))


def _flops(op: FlowOp, rule: Rule, sizes: Mapping[str, int]) -> int:
    return FLOPS[op.name](op.plain, rule, sizes) if op.name in FLOPS else 0


def _bytes(name: str, reads: Sequence[int], writes: Sequence[int]) -> int:
    if name in VIEWS:
        return 0
    if name in LOOKUPS:
        return 2 * sum(writes) + sum(reads[1:])
    return sum(reads) + sum(writes)


def _size(signature: Signature) -> int:
    shape, dtype = signature
    return prod(static({str(i): n for i, n in enumerate(shape)}).values()) * ITEM_BYTES.get(
        dtype, 0
    )


def _local_size(signature: Signature, placement: Placement, mesh: Mesh) -> int:
    shape, dtype = signature
    local = list(static({str(i): n for i, n in enumerate(shape)}).values())
    for axis, placed in placement.axes:
        if isinstance(placed, Split):
            local[placed.dim] = -(-local[placed.dim] // mesh.size(axis))
    return prod(local) * ITEM_BYTES.get(dtype, 0)


def _space(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for name in rule.factors)


def _pointwise(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return POINTWISE[attrs["fn"]].flops * _space(attrs, rule, sizes)


def _contract(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """One product less than there are operands, and one sum."""
    return len(rule.operands) * _space(attrs, rule, sizes)


def _convolution(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return 2 * _space(attrs, rule, sizes)


def _pool(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    return prod(attrs["window"]) * _space(attrs, rule, sizes)


def _sort(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    length = prod(sizes[name] for name in rule.whole)
    return _space(attrs, rule, sizes) * ceil(log2(max(length, 2)))


def _attention(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """Both products and the softmax of every score; a causal mask is not taken to save half."""
    scores = prod(sizes[name] for name in rule.factors if name not in ("d", "e"))
    return scores * (2 * sizes["d"] + 2 * sizes["e"] + SOFTMAX_FLOPS)


FLOPS: Mapping[str, Formula] = {
    "flow.pointwise": _pointwise,
    "flow.contract": _contract,
    "flow.reduce": _space,
    "flow.arg_reduce": _space,
    "flow.cumulative": _space,
    "flow.convolution": _convolution,
    "flow.pool": _pool,
    "flow.sort": _sort,
    "flow.top_k": _sort,
    "flow.attention": _attention,
}
"""Ops that are not here only move data; of an extern op nothing is known but its bytes."""
