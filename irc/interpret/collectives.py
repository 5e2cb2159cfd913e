"""Collectives over virtual ranks: from what every rank holds to what every rank holds after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from xdsl.ir import Operation

from irc.dialects.flow import FlowOp
from irc.dialects.placement import Mesh
from irc.errors import InternalError

if TYPE_CHECKING:
    import torch

Ranks: TypeAlias = "list[torch.Tensor]"
Group: TypeAlias = "Callable[..., list[torch.Tensor]]"
"""From attributes and the parts of one group of each operand to the group's results, both in group
order."""


def run_collective(op: Operation, operands: Sequence[Ranks], mesh: Mesh) -> Ranks:
    """Run a ``comm`` op on all ranks.

    Args:
        op: a collective's start, ``comm.local_chunk`` or ``comm.rank_index``.
        operands: what each rank holds of each operand.
        mesh: the mesh.

    Raises:
        InternalError: where ranks do not fit: an axis that the mesh lacks, sizes that do not
        divide.
    """
    import torch

    assert isinstance(op, FlowOp), op.name
    attrs = op.plain
    if attrs["axis"] not in mesh.names:
        raise InternalError(f"{op.name} runs over axis '{attrs['axis']}', which mesh {mesh} lacks")
    results: list[Any] = [None] * mesh.num_ranks
    for group in mesh.groups(attrs["axis"]):
        if op.name == "comm.rank_index":
            outputs = [torch.tensor(index) for index in range(len(group))]
        else:
            held = [[parts[rank] for rank in group] for parts in operands]
            outputs = COLLECTIVES[op.name](attrs, *held)
        for rank, value in zip(group, outputs, strict=True):
            results[rank] = value
    return results


def _reduced(attrs: Mapping[str, Any], parts: Ranks) -> torch.Tensor:
    match attrs["fn"]:
        case "sum":
            return reduce(lambda a, b: a + b, parts)
        case "max":
            return reduce(lambda a, b: a.maximum(b), parts)
        case "min":
            return reduce(lambda a, b: a.minimum(b), parts)
        case other:
            raise InternalError(f"a collective reduces by sum, max or min, not {other}")


def _chunks(value: torch.Tensor, count: int, dim: int) -> Ranks:
    if value.shape[dim] % count:
        raise InternalError(f"dim {dim} of {tuple(value.shape)} does not divide by {count} ranks")
    return [part.clone() for part in value.chunk(count, dim)]


def _all_reduce(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    whole = _reduced(attrs, parts)
    return [whole.clone() for _ in parts]


def _all_gather(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    import torch

    whole = torch.cat(parts, attrs["dim"])
    return [whole.clone() for _ in parts]


def _reduce_scatter(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    return _chunks(_reduced(attrs, parts), len(parts), attrs["dim"])


def _all_to_all(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    import torch

    sent = [_chunks(part, len(parts), attrs["split_dim"]) for part in parts]
    return [
        torch.cat([chunks[receiver] for chunks in sent], attrs["concat_dim"])
        for receiver in range(len(parts))
    ]


def _dispatch_rows(attrs: Mapping[str, Any], parts: Ranks, going: Ranks, coming: Ranks) -> Ranks:
    """Chunk s of what a rank gets are the rows that rank s marked for it; the others are zeros."""
    import torch

    ranks = range(len(parts))
    return [
        torch.stack([
            _kept(parts[sender], going[sender][receiver], coming[receiver][sender])
            for sender in ranks
        ])
        for receiver in ranks
    ]  # fmt: skip


def _combine_rows(attrs: Mapping[str, Any], parts: Ranks, going: Ranks, coming: Ranks) -> Ranks:
    """Chunk s goes to rank s, which adds up what is marked, in the order of the ranks."""
    ranks = range(len(parts))
    return [
        reduce(
            lambda a, b: a + b,
            [
                _kept(parts[sender][receiver], going[sender][receiver], coming[receiver][sender])
                for sender in ranks
            ],
        )
        for receiver in ranks
    ]


def _kept(rows: torch.Tensor, going: torch.Tensor, coming: torch.Tensor) -> torch.Tensor:
    """Keep the rows that are sent and expected: where ranks disagree, numbers are wrong here."""
    import torch

    marks = going & coming
    return torch.where(marks.reshape(-1, *(1,) * (rows.ndim - 1)), rows, rows.new_zeros(()))


def _permute(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    """Rank r's part goes to rank ``targets[r]``; ranks that none goes to get zeros."""
    results = [part.new_zeros(part.shape) for part in parts]
    for part, target in zip(parts, attrs["targets"], strict=True):
        if target >= 0:
            results[target] = part.clone()
    return results


def _local_chunk(attrs: Mapping[str, Any], parts: Ranks) -> Ranks:
    return [_chunks(part, len(parts), attrs["dim"])[index] for index, part in enumerate(parts)]


COLLECTIVES: Mapping[str, Group] = {
    "comm.all_reduce": _all_reduce,
    "comm.all_gather": _all_gather,
    "comm.reduce_scatter": _reduce_scatter,
    "comm.all_to_all": _all_to_all,
    "comm.dispatch_rows": _dispatch_rows,
    "comm.combine_rows": _combine_rows,
    "comm.permute": _permute,
    "comm.local_chunk": _local_chunk,
}
