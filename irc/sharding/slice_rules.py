"""How an op is computed on slices of its operands: its own rule, on one axis that is no ranks.

A batch in two halves is what a mesh axis of size 2 that splits it gives two ranks, except that one
device computes both: the signatures that shard an op among ranks say as well how it is sliced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from xdsl.ir import Operation

from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    LocalChunkOp,
    PermuteOp,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import FlowOp
from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Split
from irc.ops.rule import RuleError
from irc.sharding.pieces import Cut
from irc.sharding.signatures import RULE, NdSignature, Signature, axis_signatures, combine


class SliceRule(NamedTuple):
    """How slices of an op's results come of slices of its operands.

    Attributes:
        operands: for each operand the dim that is sliced; None where each slice reads all of it.
        results: for each result the dim along which it is in slices, or how parts of it add up.
        signature: of the op, as on a mesh.
    """

    operands: tuple[int | None, ...]
    results: tuple[Split | Partial, ...]
    signature: NdSignature


def slice_rule(op: FlowOp, dims: Sequence[int | None], mesh: Mesh) -> SliceRule | None:
    """Return how an op of level spmd, no exchange, is computed on slices; None where it cannot be.

    Args:
        op: of fixed sizes.
        dims: for each operand the dim along which it is in slices; None where it is whole.
        mesh: one axis, whose size is the number of slices.
    """
    try:
        choices = axis_signatures(op)
    except (KeyError, RuleError):  # control flow
        return None
    (_, ways), *_ = mesh.axes
    fitting = [each for each in choices if _fits(each, dims, ways)]
    if not fitting:
        return None
    best = min(fitting, key=lambda each: sum(isinstance(p, Split) for p in each.operands))
    results = tuple(p for p in best.results if isinstance(p, Split | Partial))
    if len(results) < len(best.results):
        return None
    operands = tuple(p.dim if isinstance(p, Split) else None for p in best.operands)
    signature = combine([best], mesh)
    return None if signature is None else SliceRule(operands, results, signature)


def splatted(op: FlowOp, dim: int, mesh: Mesh) -> NdSignature | None:
    """Return the signature by which an op gives a slice of its result from whole operands."""
    (_, ways), *_ = mesh.axes
    for each in axis_signatures(op):
        if each.strategy == RULE and each.size % ways == 0 and each.results == (Split(dim),):
            return combine([each], mesh) if all(p == B for p in each.operands) else None
    return None


def _fits(signature: Signature, dims: Sequence[int | None], ways: int) -> bool:
    if signature.strategy != RULE or not signature.split or signature.size % ways:
        return False
    return all(
        dim is None or _dim(placed) == dim
        for dim, placed in zip(dims, signature.operands, strict=True)
    )


def _dim(placed: AxisPlacement) -> int | None:
    return placed.dim if isinstance(placed, Split) else None


DIVIDING = ReduceScatterOp | LocalChunkOp
EXCHANGES = (
    AllReduceOp,
    AllGatherOp,
    ReduceScatterOp,
    AllToAllOp,
    PermuteOp,
    LocalChunkOp,
    WaitOp,
)


def exchanged(op: FlowOp, cut: Cut, ranks: Mesh) -> Cut | None:
    """Return how what an exchange gives is sliced where its operand is; None where it cannot be.

    Slices of what ranks join along the batch have a run of each rank's samples, and those of what
    they divide are runs of these (:class:`irc.sharding.pieces.Cut`).

    Args:
        op: one of :data:`EXCHANGES`.
        cut: of its operand.
        ranks: the mesh that it runs on.
    """
    if isinstance(op, WaitOp | AllReduceOp | PermuteOp):
        return cut
    plain = op.plain
    joins = plain["dim"] if isinstance(op, AllGatherOp) else plain.get("concat_dim")
    divides = plain["dim"] if isinstance(op, DIVIDING) else plain.get("split_dim")
    size, parts = ranks.size(plain["axis"]), cut.ranks
    if cut.dim == divides:
        if parts % size:
            return None
        parts //= size
    if cut.dim == joins:
        parts *= size
    return replace(cut, ranks=parts)


def ranks_of_samples(ops: Iterable[Operation], ranks: Mesh) -> int:
    """Return among how many ranks exchanges divide dim 0, where the samples of a batch are."""
    axes = {
        op.axis
        for op in ops
        if isinstance(op, AllGatherOp | AllToAllOp | DIVIDING)
        and 0 in [op.plain.get(key) for key in ("dim", "split_dim", "concat_dim")]
    }
    return prod(ranks.size(axis) for axis in axes)
