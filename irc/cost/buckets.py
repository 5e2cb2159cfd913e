"""Which collectives of a block are joined, so that it ends first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation

from irc.cluster.topology import Collective
from irc.cost.model import ClusterCost
from irc.dialects.comm import CHUNK, AllGatherOp, AllReduceOp, CollectiveOp, ReduceScatterOp, WaitOp
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.types import ITEM_BYTES

Kind: TypeAlias = tuple[str, str, str, str]
"""Op, axis, reduction, dtype: what collectives of one bucket have in common."""

JOINED = (AllReduceOp, AllGatherOp, ReduceScatterOp)
KINDS: dict[str, Collective] = {
    AllReduceOp.name: "all_reduce",
    AllGatherOp.name: "all_gather",
    ReduceScatterOp.name: "reduce_scatter",
}
SIZES = tuple(1 << n for n in range(16, 31))
"""Bytes of full buckets that are tried: 64 KiB to 1 GiB."""
TIE = 0.02
"""Among sizes whose times differ by less, as a part of that of all collectives apart, the one with
the fewest collectives is taken."""


@dataclass(frozen=True)
class Member:
    """A collective that may go into a bucket.

    Attributes:
        start: the collective.
        wait: its wait.
        ready: position of the op that gives its operand; -1 for an argument.
        due: position of the first op that reads its result.
        num_bytes: by which it is priced: what a rank holds where its buffer is full.
    """

    start: CollectiveOp
    wait: WaitOp
    ready: int
    due: int
    num_bytes: int


def collected(block: Block) -> dict[Kind, list[Member]]:
    """Return the collectives of a block that may go into buckets, those of one kind together."""
    position = {op: i for i, op in enumerate(block.ops)}
    members: dict[Kind, list[Member]] = {}
    for op in position:
        if not isinstance(op, JOINED) or CHUNK in op.attributes:
            continue
        wait = op.outputs[0].get_user_of_unique_use()
        kinds = (tensor(op.inputs[0]), op.result_tensor)
        if not isinstance(wait, WaitOp) or not prod(kinds[1].static_shape()):
            continue
        owner = op.inputs[0].owner
        ready = position[owner] if isinstance(owner, Operation) else -1
        if isinstance(owner, WaitOp) and _kind(owner.inputs[0].owner) == _kind(op):
            ready = position[op]  # that wait may move down to here
        due = min((position[use.operation] for use in wait.outputs[0].uses), default=len(position))
        size = max(prod(kind.static_shape()) * ITEM_BYTES[kind.dtype] for kind in kinds)
        members.setdefault(_kind(op), []).append(Member(op, wait, ready, due, size))
    return members


def _kind(op: Operation | Block) -> Kind:
    if not isinstance(op, JOINED):
        return ("", "", "", "")
    return op.name, op.axis.data, str(op.plain.get("fn", "")), op.result_tensor.dtype


def buckets(members: Iterable[Member], full: float) -> list[list[Member]]:
    """Part members into those that are joined: two and more, in the order of their operands.

    Gathered values hold memory from the first to the last reader of their bucket, so a bucket of
    all-gathers gives no more bytes than the largest of them.

    Args:
        members: of one kind; what is as large as a full bucket is sent alone.
        full: bytes from which on a bucket takes no more.

    >>> from unittest.mock import Mock
    >>> op = Mock()
    >>> a, b, c = (Member(op, op, ready, due, 10) for ready, due in ((0, 5), (2, 9), (5, 8)))
    >>> [len(each) for each in buckets([c, b, a], 100)], buckets([a, c], 100)
    ([2], [])
    """
    ordered = sorted(members, key=lambda each: each.ready)
    # What is gathered early is held early: no more of it than the largest by itself.
    gathers = [each.num_bytes for each in ordered if isinstance(each.start, AllGatherOp)]
    most = max(gathers, default=1 << 62)
    closed: list[list[Member]] = []
    current: list[Member] = []
    for member in ordered:
        if member.num_bytes >= full:
            continue
        total = member.num_bytes + sum(each.num_bytes for each in current)
        if current and (total > most or member.ready >= min(each.due for each in current)):
            closed.append(current)
            current = []
        current = [*current, member]
        if sum(each.num_bytes for each in current) >= full:
            closed.append(current)
            current = []
    return [each for each in (*closed, current) if len(each) > 1]


def best_buckets(
    cost: ClusterCost, block: Block, members: Sequence[Member], known: Mapping[str, FuncOp]
) -> list[list[Member]]:
    """Return the buckets of the size by which a block ends first; none where they save nothing.

    Args:
        cost: of its mesh.
        block: level spmd.
        members: its collectives of one kind.
        known: the functions of the module, which it may call.
    """
    timing = _Timing(cost, block, members, known)
    small = [m for m in members if timing.is_dear(m)]
    choices: list[list[list[Member]]] = []
    for size in SIZES:
        # Many sizes part the members alike.
        if (each := buckets(small, size)) and each not in choices:
            choices.append(each)
    if not choices:
        return []
    tried = [(timing.seconds(each), len(each), each) for each in choices]
    alone = timing.seconds([])
    most = min([alone, *(seconds for seconds, _, _ in tried)]) + TIE * timing.apart
    near = [(n, each) for seconds, n, each in tried if seconds <= most]
    # Fewer collectives than alone, at no cost: also where the link would have been fast enough.
    joined = [(len(members) - sum(map(len, each)) + n, each) for n, each in near]
    return min(joined, key=lambda pair: pair[0])[1] if joined else []


class _Timing:
    """When a block ends: compute in its order, the collectives of one kind on their link."""

    def __init__(
        self,
        cost: ClusterCost,
        block: Block,
        members: Sequence[Member],
        known: Mapping[str, FuncOp],
    ) -> None:
        self._cost, self._members, self._known = cost, members, known
        self._block = block
        self._called: dict[str, float] = {}
        self._kind: Collective = KINDS[members[0].start.name]
        self._axis = members[0].start.axis.data
        self._alone = {m.start: cost.start_seconds(m.start) for m in members}
        self.apart = sum(self._alone.values())
        self._launch_s = cost.cluster.device.launch_s
        # Processes of one host take its cores for their transport: nothing is hidden.
        self._hides = not cost.cluster.device.cores

    @cached_property
    def _compute(self) -> list[float]:
        """Seconds of each op, by position; most blocks have nothing to join and never ask."""
        return [self._op_seconds(op) for op in self._block.ops]

    def is_dear(self, member: Member) -> bool:
        """Return whether beginning a collective takes longer than the copies into a bucket."""
        return self._cost.collective_seconds(self._kind, 1, self._axis) > self._copies(
            member.num_bytes
        )

    def _copies(self, num_bytes: int) -> float:
        # What is gathered comes out strided, and what is scattered goes in so.
        times = 2 if self._kind == "all_reduce" else 4
        return times * num_bytes / self._cost.cluster.device.bytes_per_s

    def seconds(self, joined: Sequence[Sequence[Member]]) -> float:
        """Return when the block ends with some buckets."""
        groups = [*joined]
        inside = {m.start for bucket in joined for m in bucket}
        groups += [[m] for m in self._members if m.start not in inside]
        begins: dict[int, list[int]] = {}
        dues: dict[int, list[int]] = {}
        for index, group in enumerate(groups):
            begins.setdefault(max(m.ready for m in group), []).append(index)
            dues.setdefault(min(m.due for m in group), []).append(index)
        ends: dict[int, float] = {}
        clock = free = 0.0
        for position in range(-1, len(self._compute)):
            for index in dues.get(position, ()):
                clock = max(clock, ends[index])
            clock += self._compute[position] if position >= 0 else 0.0
            for index in begins.get(position, ()):
                copies, seconds = self._group_seconds(groups[index])
                # Beginning one takes the host, or a kernel's place, whatever is hidden of the rest.
                clock += self._launch_s + copies + (0.0 if self._hides else seconds)
                free = ends[index] = max(clock, free) + (seconds if self._hides else 0.0)
        return max([clock, *ends.values()])

    def _group_seconds(self, group: Sequence[Member]) -> tuple[float, float]:
        if len(group) == 1:
            return 0.0, self._alone[group[0].start]
        total = sum(member.num_bytes for member in group)
        sent = self._cost.collective_seconds(self._kind, total, self._axis)
        return self._copies(total) + self._launch_s, sent

    def _op_seconds(self, op: Operation) -> float:
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            if name not in self._called:
                ops = self._known[name].body.block.ops
                self._called[name] = sum(map(self._op_seconds, ops))
            return self._called[name]
        if not isinstance(op, FlowOp) or op.name.startswith("comm."):
            return 0.0
        return self._cost.local_seconds(op)
