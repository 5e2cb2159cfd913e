"""Collectives of one bucket that stay ops of their own: one call of the library begins them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Operation

from irc.dialects.comm import CollectiveOp, WaitOp
from irc.dialects.flow import PointwiseOp, id_of, tensor
from irc.dialects.types import ITEM_BYTES


class Places:
    """Where the ops of a block stand while collectives of it are put together, bucket by bucket.

    A bucket moves few ops, and not far: what stands between them is numbered again, not the block.

    Args:
        block: level spmd.

    Attributes:
        block: the same.
        position: of each op.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._ops = list(block.ops)
        self.position: dict[Operation, int] = {op: i for i, op in enumerate(self._ops)}
        starts = (op for op in self._ops if isinstance(op, CollectiveOp))
        self._last = {op.bucket: op for op in starts if op.bucket is not None}

    def behind(self, op: CollectiveOp) -> int:
        """Return behind which op a collective's operand may be there, as :func:`there_behind`."""
        return _behind(op, self.position, self._last.__getitem__)

    def first_from(self, place: int, inside: Iterable[object]) -> Operation:
        """Return the first op from a place on that is none of some."""
        left_out = {*inside}
        while self._ops[place] in left_out:
            place += 1
        return self._ops[place]

    def moved(self, bucket: str, last: CollectiveOp, touched: Iterable[int]) -> None:
        """Note that a bucket is together.

        Args:
            bucket: its name.
            last: of its collectives.
            touched: where what moved stood, and what it was put in front of.
        """
        self._last[bucket] = last
        touched = [*touched]
        first, end = min(touched), max(touched)
        op = self._ops[first - 1].next_op if first else self.block.first_op
        for place in range(first, end + 1):
            assert op is not None
            self._ops[place], self.position[op] = op, place
            op = op.next_op


def put_together(
    members: Sequence[tuple[CollectiveOp, WaitOp]],
    num_bytes: int | None = None,
    places: Places | None = None,
) -> None:
    """Let collectives of a block begin as one, where the first of them would if it can.

    The order of the text says which comes first on a link.

    Args:
        members: two or more, alike by :func:`kind_of`, each with its wait, of which none is read
            before all operands are there.
        num_bytes: by which they are priced; None: those of all.
        places: of the ops of the block, for several buckets of it; None: they are numbered here.
    """
    starts = [start for start, _ in members]
    block = starts[0].parent
    assert block is not None
    if num_bytes is None:
        num_bytes = sum(map(priced_bytes, starts))
    places = Places(block) if places is None else places
    position = places.position
    first = min(position[op] for op in starts)
    place = max([first, *(1 + places.behind(op) for op in starts)])
    before = places.first_from(place, {*starts, *(op.x.owner for op in starts)})
    touched = [position[before], *(position[op] for op in starts)]
    for start in starts:
        operand = start.x.owner
        # Of a boxing over several axes: what the collective before gives is awaited here.
        if isinstance(operand, WaitOp) and position[operand] >= place:
            touched.append(position[operand])
            operand.detach()
            block.insert_op_before(operand, before)
    for start in starts:
        start.properties["bucket"] = StringAttr(id_of(starts[0]))
        start.properties["bucket_size"] = IntegerAttr(len(members), i64)
        start.properties["bucket_bytes"] = IntegerAttr(num_bytes, i64)
        start.detach()
        block.insert_op_before(start, before)
    for _, wait in members:
        if position[wait] < place:
            touched += [position[wait], position[_move_to_reader(block, wait)]]
    places.moved(id_of(starts[0]), starts[-1], touched)


def there_behind(block: Block) -> Callable[[CollectiveOp, Mapping[Operation, int]], int]:
    """Return what says, by the positions of ops, behind which a collective's operand may be there.

    That is the op that gives it, and of another collective, whose wait may move, the last that
    begins with it; -1 for an argument.
    """
    last: dict[str, CollectiveOp] = {}

    def last_of(bucket: str) -> CollectiveOp:
        # Few ask: what a boxing over several axes moves on.
        if not last:
            starts = (each for each in block.ops if isinstance(each, CollectiveOp))
            last.update({each.bucket: each for each in starts if each.bucket is not None})
        return last[bucket]

    return lambda op, position: _behind(op, position, last_of)


def _behind(
    op: CollectiveOp, position: Mapping[Operation, int], last_of: Callable[[str], CollectiveOp]
) -> int:
    owner = op.x.owner
    if isinstance(owner, WaitOp) and isinstance(begun := owner.pending.owner, CollectiveOp):
        if kind_of(begun) == kind_of(op):
            return position[op]  # it may be put into a bucket itself
        owner = begun if begun.bucket is None else last_of(begun.bucket)
    return position[owner] if isinstance(owner, Operation) else -1


def kind_of(op: CollectiveOp) -> tuple[str, str, str, str]:
    """Return what collectives of one bucket have in common: op, axis, reduction, dtype."""
    return op.name, op.axis, str(op.plain.get("fn", "")), op.result_tensor.dtype


def priced_bytes(op: CollectiveOp) -> int:
    """Return the bytes that a collective is priced by: what a rank holds where it is full."""
    kinds = (tensor(op.x), op.result_tensor)
    return max(prod(kind.static_shape()) * ITEM_BYTES[kind.dtype] for kind in kinds)


def wait_late(block: Block) -> None:
    """Put waits, and casts of what is awaited, in front of what reads them.

    So whatever may begin before a value is read stands in front of its wait.
    """
    position = {op: i for i, op in enumerate(block.ops)}
    # By what stays, the first of those that were put in front of it: others go in front of them.
    heads: dict[Operation, Operation] = {}
    anchors: dict[Operation, Operation] = {}
    for op in reversed(list(block.ops)):
        if isinstance(op, WaitOp) or _is_cast_of_awaited(op):
            readers = [use.operation for value in op.results for use in value.uses]
            stay = [anchors.get(reader, reader) for reader in readers]
            first = min(stay, default=block.last_op, key=position.__getitem__)
            assert first is not None
            op.detach()
            block.insert_op_before(op, heads.get(first, first))
            heads[first], anchors[op] = op, first


def _is_cast_of_awaited(op: Operation) -> bool:
    is_cast = isinstance(op, PointwiseOp) and op.fn == "cast"
    return is_cast and isinstance(op.operands[0].owner, WaitOp)


def _move_to_reader(block: Block, wait: WaitOp) -> Operation:
    """Put a wait in front of the first op that reads it, or of the last; return that."""
    readers = {use.operation for use in wait.outputs[0].uses}
    following = wait.next_op
    while following not in readers and following is not block.last_op:
        assert following is not None
        following = following.next_op
    assert following is not None
    wait.detach()
    block.insert_op_before(wait, following)
    return following
