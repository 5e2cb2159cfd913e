"""How much an op computes and moves, from its rule: what a roofline divides by the speeds.

The iteration space is the product of the rule's factors; a split divides its factor's size, so one
formula for each op gives the work of the whole op and of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import is_not, mul
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from irc.dialects.placement import Mesh, Placement, Split
from irc.dialects.types import ITEM_BYTES, Shape
from irc.ops.custom import Work, call_of, declaration
from irc.ops.functions import POINTWISE
from irc.ops.infer import Attrs, Signature
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


@dataclass(frozen=True)
class Traffic:
    """The part of an op's operands and results that moves between memory and its kernel.

    Attributes:
        reads: of each operand, from 0 (made in the kernel, or read by it already) to 1; between
            them where a smaller tensor is broadcast on the way.
        writes: of each result, 0 where only the kernel reads it, else 1.
        launches: the op pays for its kernel's launch.
    """

    reads: tuple[float, ...]
    writes: tuple[float, ...]
    launches: bool = True


Formula: TypeAlias = Callable[[Attrs, Rule, Mapping[str, int]], int]

VIEWS = frozenset({"flow.reshape", "flow.transpose", "flow.slice", "flow.broadcast"})
"""Ops that kernels fold into their loads: they move nothing."""

UNKNOWN_FLOPS = 10
"""Assumed per element read or written, of a library op that does not say: it is not free."""


def flops(op: FlowOp) -> int:
    """Return the arithmetic operations of the whole op.

    Raises:
        RuleError: where a size is still symbolic.
    """
    rule, sizes = factors(op)
    return _flops(op, rule, sizes, _bytes(op, *_whole_sizes(op)))


def local_flops(op: FlowOp, signature: Sharded, mesh: Mesh) -> int:
    """Return the arithmetic operations of the busiest rank (the first: chunks are ceil-sized)."""
    rule, local = local_factors(op, signature, mesh)
    return _flops(op, rule, local, _bytes(op, *_local_sizes(op, signature, mesh)))


def factors(op: FlowOp) -> tuple[Rule, dict[str, int]]:
    """Return the rule of an op and its factors' sizes; a search asks for each signature again."""
    parts = (
        *op.properties.values(),
        *(v.type for v in op.operands),
        *(v.type for v in op.results),
    )
    known = _KNOWN.get(op)
    if known is None or len(known[0]) != len(parts) or any(map(is_not, known[0], parts)):
        rule = rule_of(op)
        operands, results = op_signatures(op)
        shapes = [shape for shape, _ in operands], [shape for shape, _ in results]
        _KNOWN[op] = known = parts, rule, static(rule.factor_sizes(*shapes))
    return known[1], dict(known[2])


_KNOWN: WeakKeyDictionary[FlowOp, tuple[tuple[object, ...], Rule, dict[str, int]]] = (
    WeakKeyDictionary()
)


def local_factors(op: FlowOp, signature: Sharded, mesh: Mesh) -> tuple[Rule, dict[str, int]]:
    """Return the rule of an op, and the sizes of its factors on the busiest rank."""
    rule, local = factors(op)
    for factor, (axis, parts) in zip(signature.splits, mesh.axes, strict=True):
        # What a strategy splits has no factor's name; its operands say which one it is.
        split = _split_factors(rule, signature, axis) if factor.startswith("<rule") else {factor}
        for name in split & local.keys():
            local[name] = -(-local[name] // parts)
    return rule, local


def _split_factors(rule: Rule, signature: Sharded, axis: str) -> set[str]:
    """Return the factors of the dims of operands that an axis splits."""
    split: set[str] = set()
    for term, placement in zip(rule.operands, signature.operands, strict=True):
        placed = placement[axis]
        if isinstance(placed, Split) and placed.dim < len(term):
            split.update(term[placed.dim][:1])
    return split


def kernels_of(op: FlowOp, sizes: Callable[[], Mapping[str, int]]) -> Sequence[Work] | None:
    """Return the work of each kernel of an op that is declared to be several, else None.

    Args:
        op: of level flow or spmd.
        sizes: gives those of its rule's factors, of the whole op or of one rank.
    """
    known = declaration(op.plain["target"]) if op.name == "flow.extern" else None
    if known is None or known.kernels is None:
        return None
    return known.kernels(call_of(op.plain, sizes(), _item_bytes(op)), op)


def bytes_moved(op: FlowOp) -> int:
    """Return the bytes that the whole op reads and writes; views move none."""
    if declared := _declared_bytes(op, lambda: factors(op)[1]):
        return declared
    return _bytes(op, *_whole_sizes(op))


def local_bytes(op: FlowOp, signature: Sharded, mesh: Mesh, traffic: Traffic | None = None) -> int:
    """Return the bytes that the busiest rank reads and writes.

    Args:
        op: a whole op.
        signature: how it is split.
        mesh: over what.
        traffic: the part of each that its kernel does move; None: all of it.
    """
    if declared := _declared_bytes(op, lambda: local_factors(op, signature, mesh)[1]):
        return declared
    return _bytes(op, *_local_sizes(op, signature, mesh), traffic)


def _declared_bytes(op: FlowOp, sizes: Callable[[], Mapping[str, int]]) -> int:
    """Return the bytes that a library op's declaration says, 0 where it says nothing."""
    known = declaration(op.plain["target"]) if op.name == "flow.extern" else None
    if known is None or known.bytes is None:
        return 0
    return known.work("bytes", call_of(op.plain, sizes(), _item_bytes(op)))


def _item_bytes(op: FlowOp) -> int:
    return ITEM_BYTES.get(op_signatures(op)[1][0][1], 1)


def _whole_sizes(op: FlowOp) -> tuple[list[int], list[int]]:
    operands, results = op_signatures(op)
    return [_size(s) for s in operands], [_size(s) for s in results]


def _local_sizes(op: FlowOp, signature: Sharded, mesh: Mesh) -> tuple[list[int], list[int]]:
    operands, results = op_signatures(op)
    return (
        [_local_size(s, p, mesh) for s, p in zip(operands, signature.operands, strict=True)],
        [_local_size(s, p, mesh) for s, p in zip(results, signature.results, strict=True)],
    )


def _flops(op: FlowOp, rule: Rule, sizes: Mapping[str, int], num_bytes: int) -> int:
    if op.name == "flow.extern":
        known = declaration(op.plain["target"])
        call = call_of(op.plain, sizes, _item_bytes(op))
        stated = known.work("flops", call) if known else 0
        return stated or UNKNOWN_FLOPS * num_bytes // _item_bytes(op)
    formula = FLOPS.get(op.name) if op.RECORD is None else op.RECORD.flops
    return formula(op.plain, rule, sizes) if formula else 0


def _bytes(
    op: FlowOp, reads: Sequence[int], writes: Sequence[int], traffic: Traffic | None = None
) -> int:
    if op.name in VIEWS:
        return 0
    if looks_up(op):
        reads = [sum(writes), *reads[1:]]
    if traffic is None:
        return sum(reads) + sum(writes)
    return int(sum(map(mul, (*reads, *writes), (*traffic.reads, *traffic.writes))))


def looks_up(op: FlowOp) -> bool:
    """True for an op that reads of its first operand only what it gives."""
    return op.RECORD is not None and op.RECORD.looks_up


def _size(signature: Signature) -> int:
    shape, dtype = signature
    return prod(_static(shape)) * ITEM_BYTES.get(dtype, 0)


def _static(shape: Shape) -> list[int]:
    """Return sizes as integers.

    Raises:
        RuleError: where one is still symbolic.
    """
    numbers = [size for size in shape if isinstance(size, int)]
    if len(numbers) < len(shape):
        static({str(dim): size for dim, size in enumerate(shape)})
    return numbers


def _local_size(signature: Signature, placement: Placement, mesh: Mesh) -> int:
    shape, dtype = signature
    local = _static(shape)
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


FLOPS: Mapping[str, Formula] = {
    "flow.pointwise": _pointwise,
    "flow.contract": _contract,
    "flow.reduce": _space,
}
"""Ops that are not here only move data; library ops declare theirs, or are assumed."""
