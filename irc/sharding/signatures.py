"""SBP signatures of an op, generated from its rule and strategies (OneFlow, arXiv:2110.15032).

A *signature* says how one mesh axis holds each operand and result so that every rank computes its
part from what it has. On a mesh, each axis takes one signature of its own: the axes nest, in mesh
order, and the op on the shards of one axis is the same op on smaller tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from itertools import product as cartesian
from math import prod

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp, FlowOp, names_of, tensor
from irc.dialects.placement import AxisPlacement, B, Broadcast, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.ops.rule import Rule, TensorTerm, static
from irc.ops.rules import op_signatures, rule_of
from irc.ops.strategies import AS_IT_IS, ONE_AXIS, Strategy, strategies_of
from irc.sharding.shards import chunk_lengths, local_shape

RULE = AS_IT_IS
"""The strategy name of a signature whose local program is the op itself, as by its rule."""

NEVER_EMPTY = names_of(ConvolutionOp, PoolOp, AttentionOp, ExternOp)
"""Libraries refuse empty batches here."""


@dataclass(frozen=True)
class Signature:
    """How one mesh axis holds the operands and results of an op.

    Attributes:
        operands: the placement of each operand on the axis.
        results: the placement of each result.
        strategy: ``rule``, or the name of the strategy whose local program it needs.
        split: the factor that the axis splits; empty where it splits none.
        size: the size of that factor.
        even: true where only equal shards are legal (the factor leads a merged dim).
        filled: true where every rank needs at least one element.
    """

    operands: tuple[AxisPlacement, ...]
    results: tuple[AxisPlacement, ...]
    strategy: str = RULE
    split: str = ""
    size: int = 1
    even: bool = False
    filled: bool = False

    def __str__(self) -> str:
        sides = (", ".join(map(str, side)) for side in (self.operands, self.results))
        name = "" if self.strategy == RULE else f" by {self.strategy}"
        return " -> ".join(f"({side})" for side in sides) + name


@dataclass(frozen=True)
class NdSignature:
    """How a mesh holds the operands and results of an op.

    Attributes:
        operands: the placement of each operand.
        results: the placement of each result.
        strategy: for each mesh axis ``rule``, or the name of a strategy.
        splits: for each mesh axis the factor that it splits, or the empty text.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    strategy: tuple[str, ...]
    splits: tuple[str, ...]

    def __str__(self) -> str:
        sides = (", ".join(map(str, side)) for side in (self.operands, self.results))
        names = sorted(set(self.strategy) - {RULE})
        return " -> ".join(f"({side})" for side in sides) + (f" by {names}" if names else "")


def axis_signatures(op: FlowOp) -> list[Signature]:
    """Return the signatures of an op on one mesh axis: all-B first, then splits, then partials.

    Raises:
        RuleError: where a size is still symbolic.
    """
    rule = rule_of(op)
    operands, results = op_signatures(op)
    shapes = [shape for shape, _ in operands], [shape for shape, _ in results]
    sizes = static(rule.factor_sizes(*shapes))
    dtypes = [dtype for _, dtype in operands], [dtype for _, dtype in results]
    choices = [_replicated(rule)]
    choices += [
        _split(rule, name, sizes[name], op.name) for name in rule.splittable() if sizes[name] > 1
    ]
    choices += [_passing(rule, group, Partial("sum")) for group in rule.linear]
    choices += [
        _passing(rule, group, kind)
        for group in rule.monotone
        for kind in (Partial("max"), Partial("min"))
    ]
    choices += [_of_strategy(strategy) for strategy in strategies_of(op)]
    return [s for s in choices if _typed(s.operands, dtypes[0]) and _typed(s.results, dtypes[1])]


def _replicated(rule: Rule) -> Signature:
    return Signature((B,) * len(rule.operands), (B,) * len(rule.results))


def _split(rule: Rule, factor: str, size: int, name: str) -> Signature:
    kind = rule.reduction(factor)
    without: AxisPlacement = B if kind is None else Partial(kind)
    return Signature(
        tuple(_on(term, factor, B) for term in rule.operands),
        tuple(_on(term, factor, without) for term in rule.results),
        split=factor,
        size=size,
        even=rule.compound(factor),
        # The maximum of nothing is not a number.
        filled=kind in ("max", "min") or name in NEVER_EMPTY,
    )


def _on(term: TensorTerm, factor: str, otherwise: AxisPlacement) -> AxisPlacement:
    for dim, names in enumerate(term):
        if names and names[0] == factor:
            return Split(dim)
    return otherwise


def _passing(rule: Rule, group: tuple[int, ...], kind: Partial) -> Signature:
    operands = tuple(kind if i in group else B for i in range(len(rule.operands)))
    return Signature(operands, (kind,) * len(rule.results))


def _of_strategy(strategy: Strategy) -> Signature:
    (size,) = static({strategy.name: strategy.size}).values()
    return Signature(
        strategy.operands,
        strategy.results,
        strategy=strategy.name,
        split=f"<{strategy.name} {strategy.split}>" if strategy.split else f"<{strategy.name}>",
        size=size,
        even=strategy.even,
        filled=size > 0,
    )


def _typed(placed: Sequence[AxisPlacement], dtypes: Sequence[str]) -> bool:
    """Partial sums of bools and maxima of complex numbers do not exist."""
    return not any(
        isinstance(p, Partial)
        and ((p.reduction == "sum" and dtype == "i1") or (p.reduction != "sum" and dtype[0] == "c"))
        for p, dtype in zip(placed, dtypes, strict=True)
    )


def signatures(
    op: FlowOp,
    mesh: Mesh,
    *,
    uneven: bool = False,
    limit: int = 512,
    choices: Sequence[Signature] | None = None,
) -> list[NdSignature]:
    """Return the signatures of an op on a mesh, all-B first, in a fixed order.

    The product of the axes' signatures, less those whose shards do not come out even, or mix kinds
    of partial values in one tensor. Axes of size 1 only broadcast.

    Args:
        op: a flow op whose sizes are numbers.
        mesh: the mesh.
        uneven: allow ceil-sized chunks too, where the op's local program does.
        limit: keep so many; the first to go are those with partial operands on many axes.
        choices: what an axis may do, all-B first; by default, whatever the op allows.
    """
    choices = axis_signatures(op) if choices is None else choices
    if not mesh.axes:
        alone = Placement(())
        return [NdSignature((alone,) * len(op.inputs), (alone,) * len(op.outputs), (), ())]
    per_axis = [choices if size > 1 else choices[:1] for _, size in mesh.axes]
    combined = [c for c in cartesian(*per_axis) if _divides(c, mesh, uneven)]
    nd_signatures = [s for c in combined if (s := combine(c, mesh)) and _exchanges(op, c, s, mesh)]
    if len(nd_signatures) > limit:
        nd_signatures = sorted(nd_signatures, key=lambda s: _num_partial(s.operands))[:limit]
    return nd_signatures


def combine(chosen: Sequence[Signature], mesh: Mesh) -> NdSignature | None:
    """Nest one signature for each mesh axis.

    None where a tensor would mix kinds of partial, or the op strategies: each has its own program.
    """
    if not _one_program(chosen):
        return None
    operands = [_placed(mesh, column) for column in zip(*(s.operands for s in chosen), strict=True)]
    results = [_placed(mesh, column) for column in zip(*(s.results for s in chosen), strict=True)]
    if any(_mixes(placement) for placement in (*operands, *results)):
        return None
    return NdSignature(
        tuple(operands),
        tuple(results),
        tuple(s.strategy for s in chosen),
        tuple(s.split for s in chosen),
    )


def _one_program(chosen: Sequence[Signature]) -> bool:
    """True where the axes' strategies are one, and several axes may take it."""
    own = [s.strategy for s in chosen if s.strategy != RULE]
    return len(own) < 2 or (len(set(own)) == 1 and own[0] not in ONE_AXIS)


def _placed(mesh: Mesh, column: Sequence[AxisPlacement]) -> Placement:
    return Placement.in_mesh_order(tuple(zip(mesh.names, column, strict=True)))


def _mixes(placement: Placement) -> bool:
    return len({p.reduction for p in placement if isinstance(p, Partial)}) > 1


def _num_partial(placements: Sequence[Placement]) -> int:
    return max((len(p.partial_axes()) for p in placements), default=0)


def _divides(chosen: Sequence[Signature], mesh: Mesh, uneven: bool) -> bool:
    by: dict[str, list[int]] = {}
    for signature, (_, size) in zip(chosen, mesh.axes, strict=True):
        if signature.split:
            by.setdefault(signature.split, []).append(size)
    for signature in chosen:
        parts = by.get(signature.split, [])
        if signature.size % prod(parts) == 0:
            continue
        if not uneven or signature.even:
            return False
        if signature.filled and min(chunk_lengths(signature.size, parts)) == 0:
            return False
    return True


def _exchanges(op: FlowOp, chosen: Sequence[Signature], placed: NdSignature, mesh: Mesh) -> bool:
    """True unless a local program with collectives would meet shards of several shapes.

    A strategy may split what another axis splits by the rule: together they have to come out even.
    """
    if not any(s.strategy != RULE and s.even for s in chosen):
        return True
    pairs = zip((*op.inputs, *op.outputs), (*placed.operands, *placed.results), strict=True)
    shapes = [(tensor(value).static_shape(), placement) for value, placement in pairs]
    try:
        for shape, placement in shapes:
            local_shape(shape, placement, mesh)
    except ValueError:
        return False
    return True


def match_signature(op: FlowOp, mesh: Mesh) -> NdSignature | None:
    """Return the signature that the placements in an op's types spell, or None.

    Each axis must be a signature of the op, and axes that split one dim must apply in the same
    order in every tensor: data inside tensor is another shard than tensor inside data.
    """
    return find_signature(
        op, mesh, *(list(map(_placement, side)) for side in (op.inputs, op.outputs))
    )


def find_signature(
    op: FlowOp,
    mesh: Mesh,
    operands: Sequence[Placement | None],
    results: Sequence[Placement | None],
) -> NdSignature | None:
    """Return the signature with these placements, or None; None is that of an opaque."""
    whole = Placement.replicated(mesh.names)
    operand_placements = [p or whole for p in operands]
    result_placements = [p or whole for p in results]
    if not mesh.axes:
        return NdSignature(tuple(operand_placements), tuple(result_placements), (), ())
    choices = axis_signatures(op)
    chosen: list[Signature] = []
    for axis in mesh.names:
        wanted = (
            tuple(_unordered(p[axis]) for p in operand_placements),
            tuple(_unordered(p[axis]) for p in result_placements),
        )
        signature = next((s for s in choices if (s.operands, s.results) == wanted), None)
        if signature is None:
            return None
        chosen.append(signature)
    if any(map(_mixes, (*operand_placements, *result_placements))) or not _one_order(
        (*operand_placements, *result_placements)
    ):
        return None
    if not _one_program(chosen) or not _divides(chosen, mesh, uneven=True):
        return None
    placed = NdSignature(
        tuple(operand_placements),
        tuple(result_placements),
        tuple(s.strategy for s in chosen),
        tuple(s.split for s in chosen),
    )
    return placed if _exchanges(op, chosen, placed, mesh) else None


def _one_order(placements: Sequence[Placement]) -> bool:
    """True where two axes that split one dim apply in the same order in every tensor."""
    first: set[tuple[str, str]] = set()
    for placement in placements:
        for dim in {p.dim for p in placement if isinstance(p, Split)}:
            first.update(combinations(placement.split_axes(dim), 2))
    return not any((after, before) in first for before, after in first)


def _unordered(placed: AxisPlacement) -> AxisPlacement:
    return Split(placed.dim) if isinstance(placed, Split) else placed


def _placement(value: SSAValue) -> Placement | None:
    return value.type.placement if isinstance(value.type, TensorType) else None


def is_replicated(signature: Signature) -> bool:
    """True for the signature that every op has: B everywhere."""
    return all(isinstance(p, Broadcast) for p in (*signature.operands, *signature.results))
