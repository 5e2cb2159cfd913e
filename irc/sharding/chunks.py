"""Collectives beside products, cut into pieces: each a collective and a product of its own.

While the product of one piece is computed, the collective of another is under way. PyTorch calls
this async tensor parallel; the decomposition is that of Wang et al. 2023, "Overlap Communication
with Dependent Computation via Decomposition".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from irc.dialects.attributes import to_attribute, to_python
from irc.dialects.comm import (
    CHUNK,
    AllGatherOp,
    CollectiveOp,
    PendingType,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.types import TensorType
from irc.sharding.pieces import Cut, Pieces, cut_of_product, joined

CHUNKS = "irc.chunks"
"""Of a module, what was cut: see :func:`told`."""


@dataclass(frozen=True)
class Group:
    """A collective that may be cut, and its wait."""

    start: CollectiveOp
    wait: WaitOp

    def among(self, values: Mapping[SSAValue, SSAValue]) -> Group:
        """Return the group of other ops, given which values stand for those of these."""
        start = values[self.start.outputs[0]].owner
        wait = values[self.wait.outputs[0]].owner
        assert isinstance(start, CollectiveOp)
        assert isinstance(wait, WaitOp)
        return Group(start, wait)


def group_of(op: Operation) -> Group | None:
    """Return a collective of a kind that may be cut, with its wait; no piece, and of no bucket."""
    if not isinstance(op, AllGatherOp | ReduceScatterOp):
        return None
    if CHUNK in op.attributes or op.bucket is not None:
        return None
    wait = op.outputs[0].get_user_of_unique_use()
    if not isinstance(wait, WaitOp):
        return None
    return Group(op, wait)


def cuts_of(group: Group, pieces: Pieces, ranks: int, degree: int) -> Iterator[Cut]:
    """Yield how what is computed on may be cut: the gathered value, or what is scattered.

    Args:
        group: of a block.
        pieces: what is known of the block.
        ranks: of the collective's axis.
        degree: how many pieces.
    """
    start = group.start
    assert isinstance(start, AllGatherOp | ReduceScatterOp)
    own = start.dim
    is_gather = isinstance(start, AllGatherOp)
    whole = group.wait.outputs[0] if is_gather else start.x
    shape = tensor(whole).static_shape()
    for dim in range(len(shape)):
        cut = Cut(dim, degree, ranks if dim == own else 1)
        if not cut.fits(shape) or shape[dim] < 2:
            continue
        readers = (use.operation for use in whole.uses)
        if (
            any(cut_of_product(reader, whole, cut) for reader in readers)
            if is_gather
            else pieces.is_computed(whole, cut)
        ):
            yield cut


def cut_group(group: Group, cut: Cut, pieces: Pieces) -> None:
    """Put pieces in the place of a collective and of the products beside it.

    Args:
        group: of a block.
        cut: one of :func:`cuts_of`.
        pieces: what is known of the block; changed.
    """
    if isinstance(group.start, AllGatherOp):
        _cut_gather(group, cut, pieces)
    else:
        _cut_scatter(group, cut, pieces)


def told(group: Group, cut: Cut, saved_s: float | None, runs: int = 1) -> DictionaryAttr:
    """Return what was decided of a group, of a function that runs so often in a call.

    It is what ``irc explain`` reads.
    """
    start = group.start
    facts: dict[str, object] = {
        "id": id_of(group.wait),
        "op": start.name,
        "axis": start.axis,
        "degree": cut.degree,
        "dim": cut.dim,
        "loc": loc_of(start),
    }
    if saved_s is not None:
        facts |= {"saved_s": saved_s, "runs": runs}
    return DictionaryAttr({key: to_attribute(value) for key, value in facts.items()})


def tell(module: ModuleOp, said: Sequence[DictionaryAttr]) -> None:
    """Add what was decided to what the module says."""
    if said:
        rows = cast("ArrayAttr[Attribute]", module.attributes.get(CHUNKS, ArrayAttr([])))
        module.attributes[CHUNKS] = ArrayAttr([*rows, *said])


def told_of(module: ModuleOp) -> dict[str, int]:
    """Return the degrees of what was cut of a module, by id."""
    rows = module.attributes.get(CHUNKS)
    return {} if rows is None else {row["id"]: row["degree"] for row in to_python(rows)}


def _cut_gather(group: Group, cut: Cut, pieces: Pieces) -> None:
    start, wait = group.start, group.wait
    source, whole = start.x, wait.outputs[0]
    parts = [
        pieces.of(source, replace(cut, ranks=1), number, start, start)
        for number in range(cut.degree)
    ]
    starts = [_started(group, cut, number, part) for number, part in enumerate(parts)]
    gathered = [_waited(group, number, each, wait) for number, each in enumerate(starts)]
    pieces.know(whole, cut, gathered)
    readers = list(dict.fromkeys(use.operation for use in whole.uses))
    block = wait.parent
    assert isinstance(block, Block)
    order = {op: i for i, op in enumerate(block.ops)}
    rest: list[Operation] = []
    for reader in sorted(readers, key=order.__getitem__):
        moved = cut_of_product(reader, whole, cut)
        if moved is None or not isinstance(reader, FlowOp):
            rest.append(reader)
            continue
        results = [pieces.computed(reader, moved, number, reader) for number in range(cut.degree)]
        result = joined(results, moved, reader, reader)
        reader.outputs[0].replace_all_uses_with(result)
        pieces.know(result, moved, results)
        _erase(reader)
    if rest:
        value = joined(gathered, cut, wait, rest[0])
        whole.replace_all_uses_with(value)
        pieces.know(value, cut, gathered)
    _erase(wait)
    _erase(start)


def _cut_scatter(group: Group, cut: Cut, pieces: Pieces) -> None:
    start, wait = group.start, group.wait
    source = start.x
    assert isinstance(source.owner, FlowOp)
    starts: list[FlowOp] = []
    for number in range(cut.degree):
        piece = pieces.computed(source.owner, cut, number, start)
        starts.append(_started(group, cut, number, piece))
    scattered = [_waited(group, number, each, wait) for number, each in enumerate(starts)]
    mine = replace(cut, ranks=1)
    value = joined(scattered, mine, wait, wait)
    wait.outputs[0].replace_all_uses_with(value)
    pieces.know(value, mine, scattered)
    _erase(wait)
    _erase_unused(start)


def _started(group: Group, cut: Cut, number: int, value: SSAValue) -> FlowOp:
    start = group.start
    whole = start.result_tensor
    kind = TensorType.of(cut.piece_shape(whole.static_shape()), whole.dtype)
    begun = type(start).make([value], [PendingType(kind)], **start.plain)
    name = f"{id_of(group.wait)}.piece{number}"
    begun.attributes |= {k: v for k, v in start.attributes.items() if k != "sbp"}
    begun.attributes["id"] = StringAttr(f"{name}.start")
    begun.attributes[CHUNK] = StringAttr(f"{number} of {cut.degree}")
    _block(start).insert_op_before(begun, start)
    return begun


def _waited(group: Group, number: int, start: FlowOp, before: Operation) -> SSAValue:
    pending = start.outputs[0].type
    assert isinstance(pending, PendingType)
    awaited = WaitOp.make(start.outputs, [pending.tensor])
    awaited.attributes |= {k: v for k, v in group.wait.attributes.items() if k != "sbp"}
    awaited.attributes["id"] = StringAttr(f"{id_of(group.wait)}.piece{number}")
    _block(before).insert_op_before(awaited, before)
    return awaited.outputs[0]


def _block(op: Operation) -> Block:
    block = op.parent
    assert isinstance(block, Block)
    return block


def _erase(op: Operation) -> None:
    op.detach()
    op.erase()


def _erase_unused(op: Operation) -> None:
    """Erase an op that nothing reads, and what only it has read."""
    waiting = [op]
    while waiting:
        each = waiting.pop()
        before = dict.fromkeys(v.owner for v in each.operands if isinstance(v.owner, FlowOp))
        _erase(each)
        waiting += [own for own in before if all(v.first_use is None for v in own.results)]
