"""Which collectives of a block are joined, so that it ends first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Generic, TypeAlias, TypeVar

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation

from irc.cluster.topology import Collective
from irc.cost.model import ClusterCost, collective_kind
from irc.cost.prices import Prices
from irc.dialects.comm import CHUNK, AllGatherOp, AllReduceOp, CollectiveOp, ReduceScatterOp, WaitOp
from irc.dialects.flow import FlowOp
from irc.sharding.bucketed import kind_of, priced_bytes, there_behind

Kind: TypeAlias = tuple[str, str, str, str]
"""Op, axis, reduction, dtype: what collectives of one bucket have in common."""

JOINED = (AllReduceOp, AllGatherOp, ReduceScatterOp)
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
        ready: position of the op behind which its operand is there; -1 for an argument.
        due: position of the first op that reads its result.
        origin: where what it moves is computed: as ``ready``, of the first of several collectives
            one behind the other, as boxings over several axes are.
        end: where that is read: as ``due``, of the last of them.
        num_bytes: by which it is priced: what a rank holds where its buffer is full.
        is_returned: nothing in the block reads its result, which has its memory in any case.
    """

    start: CollectiveOp
    wait: WaitOp
    ready: int
    due: int
    origin: int
    end: int
    num_bytes: int
    is_returned: bool = False


def collected(block: Block, *, packs: bool = True) -> dict[Kind, list[Member]]:
    """Return the collectives of a block that may go into buckets, those of one kind together.

    Args:
        block: level spmd.
        packs: they are copied into one tensor, so that no wait for an operand moves.
    """
    position = {op: i for i, op in enumerate(block.ops)}
    members: dict[Kind, list[Member]] = {}
    behind = there_behind(block)
    for op in position:
        if not isinstance(op, JOINED) or CHUNK in op.attributes or op.bucket is not None:
            continue
        wait = op.outputs[0].get_user_of_unique_use()
        if not isinstance(wait, WaitOp) or not prod(op.result_tensor.static_shape()):
            continue
        ready = behind(op, position)
        if packs and isinstance(owner := op.x.owner, Operation):
            ready = max(ready, position[owner])
        due = _due(wait, position)
        size = priced_bytes(op)
        ends = _origin(op, position), _due(_last(wait), position)
        is_returned = due == len(position) - 1
        member = Member(op, wait, ready, due, *ends, size, is_returned)
        members.setdefault(kind_of(op), []).append(member)
    return members


def _due(wait: WaitOp, position: Mapping[Operation, int]) -> int:
    return min((position[use.operation] for use in wait.outputs[0].uses), default=len(position))


def _origin(op: CollectiveOp, position: Mapping[Operation, int]) -> int:
    owner = op.x.owner
    while isinstance(owner, WaitOp) and isinstance(before := owner.pending.owner, CollectiveOp):
        owner = before.x.owner
    return position[owner] if isinstance(owner, Operation) else -1


def _last(wait: WaitOp) -> WaitOp:
    """Return the wait of the last of some collectives that stand one behind the other."""
    reader = wait.outputs[0].get_user_of_unique_use()
    if not isinstance(reader, CollectiveOp):
        return wait
    after = reader.outputs[0].get_user_of_unique_use()
    return _last(after) if isinstance(after, WaitOp) else wait


@dataclass(frozen=True)
class Unit:
    """Collectives that begin together at no cost: what they move is computed at the same time.

    What is gathered is read at the same time, too: none is held longer for the others.
    """

    members: tuple[Member, ...]

    @cached_property
    def start(self) -> CollectiveOp:
        """The first of them."""
        return self.members[0].start

    @cached_property
    def ready(self) -> int:
        """When all operands are there."""
        return max(member.ready for member in self.members)

    @cached_property
    def due(self) -> int:
        """Of the first that is read."""
        return min(member.due for member in self.members)

    @cached_property
    def num_bytes(self) -> int:
        """Of all."""
        return sum(member.num_bytes for member in self.members)

    @cached_property
    def is_returned(self) -> bool:
        """True where all are."""
        return all(member.is_returned for member in self.members)


Part = TypeVar("Part", Member, Unit)


def buckets(members: Iterable[Part], full: float) -> list[list[Part]]:
    """Part members into those that are joined: two and more, in the order of their operands.

    Gathered values hold memory from the first to the last reader of their bucket, so a bucket of
    all-gathers gives no more bytes than the largest of them, but for those that are returned.

    Args:
        members: of one kind; what is as large as a full bucket is sent alone.
        full: bytes from which on a bucket takes no more.

    >>> from unittest.mock import Mock
    >>> op = Mock()
    >>> a, b, c = (Member(op, op, *at, *at, 10) for at in ((0, 5), (2, 9), (5, 8)))
    >>> [len(each) for each in buckets([c, b, a], 100)], buckets([a, c], 100)
    ([2], [])
    """
    ordered = sorted(members, key=lambda each: each.ready)
    # What is gathered early is held early: no more of it than the largest by itself.
    gathers = [each.num_bytes for each in ordered if isinstance(each.start, AllGatherOp)]
    most = max(gathers, default=1 << 62)
    closed: list[list[Part]] = []
    current: list[Part] = []
    held, size, due = 0, 0, 1 << 62
    for member in ordered:
        if member.num_bytes >= full:
            continue
        own = 0 if member.is_returned else member.num_bytes
        if current and (held + own > most or member.ready >= due):
            closed.append(current)
            current, held, size, due = [], 0, 0, 1 << 62
        current.append(member)
        held, size, due = held + own, size + member.num_bytes, min(due, member.due)
        if size >= full:
            closed.append(current)
            current, held, size, due = [], 0, 0, 1 << 62
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
    return _best(timing, members, [m for m in members if timing.is_dear(m)])


def best_groups(
    cost: ClusterCost, block: Block, members: Sequence[Member], known: Mapping[str, FuncOp]
) -> list[list[Member]]:
    """Return which collectives the library begins as one, without copies; lists of two and more.

    Args:
        cost: of its mesh.
        block: level spmd.
        members: its collectives of one kind.
        known: the functions of the module, which it may call.
    """
    timing = _Timing(cost, block, members, known, packs=False)
    units = _units(members, timing)
    timing = _Timing(cost, block, units, known, packs=False, compute=timing.compute)
    # Larger ones keep the link busy by themselves, and each may be read as soon as it is there.
    small = [unit for unit in units if unit.is_returned or timing.is_dear(unit)]
    chosen = _best(timing, units, small)
    inside = {unit.start for group in chosen for unit in group}
    chosen += [[unit] for unit in units if unit.start not in inside]
    flat = [[member for unit in group for member in unit.members] for group in chosen]
    return [group for group in flat if len(group) > 1]


def _units(members: Sequence[Member], timing: _Timing[Member]) -> list[Unit]:
    """Put together what begins together anyway, but for what is waited for at once."""
    alike: dict[tuple[int, int], list[Member]] = {}
    for member in members:
        is_awaited = isinstance(member.start, AllGatherOp) or timing.is_bare(member)
        alike.setdefault((member.origin, member.end if is_awaited else -1), []).append(member)
    units: list[Unit] = []
    for each in alike.values():
        current: list[Member] = []
        for member in sorted(each, key=lambda m: m.ready):
            if current and member.ready >= min(m.due for m in current):
                units.append(Unit(tuple(current)))
                current = []
            current.append(member)
        units.append(Unit(tuple(current)))
    return units


def _best(
    timing: _Timing[Part], members: Sequence[Part], small: Sequence[Part]
) -> list[list[Part]]:
    choices: list[list[list[Part]]] = []
    for size in SIZES:
        # Many sizes part the members alike.
        if (each := buckets(small, size)) and each not in choices:
            choices.append(each)
    if not choices:
        return []
    tried = [(timing.seconds(each), len(each), each) for each in choices]
    alone = timing.seconds([])
    most = min([alone, *(seconds for seconds, _, _ in tried)]) + timing.near_s
    near = [(n, each) for seconds, n, each in tried if seconds <= most]
    # Fewer collectives than alone, at no cost: also where the link would have been fast enough.
    joined = [(len(members) - sum(map(len, each)) + n, each) for n, each in near]
    return min(joined, key=lambda pair: pair[0])[1] if joined else []


class _Timing(Generic[Part]):
    """When a block ends: compute in its order, the collectives of one kind on their link.

    Args:
        packs: what is joined is copied into one tensor, and out of it; otherwise the library begins
            it as one.
        compute: as another one of the block has it.
    """

    def __init__(
        self,
        cost: ClusterCost,
        block: Block,
        members: Sequence[Part],
        known: Mapping[str, FuncOp],
        *,
        packs: bool = True,
        compute: list[float] | None = None,
    ) -> None:
        self._cost, self._members, self._known = cost, members, known
        self._prices = Prices(cost)
        self._block, self._packs = block, packs
        if compute is not None:
            self.compute = compute
        self._called: dict[str, float] = {}
        self._kind: Collective = collective_kind(members[0].start)
        first: CollectiveOp = members[0].start
        self._axis = first.axis
        self._alone: dict[CollectiveOp, float] = {m.start: self._sent([m]) for m in members}
        self.apart = sum(self._alone.values())
        self._launch_s = cost.cluster.device.launch_s
        # Processes of one host take its cores for their transport: nothing is hidden.
        self._hides = not cost.cluster.device.cores

    @property
    def near_s(self) -> float:
        """By how much later a block may end for fewer collectives.

        Where compute hides them, by no more than one of them takes: a part of all of them grows
        with the depth, and allowed buckets of many layers, which keep the link from collectives of
        other kinds. This clock does not see these, and layers wait for them.
        """
        near = TIE * self.apart
        return min(near, self.apart / len(self._members)) if self._hides else near

    @cached_property
    def compute(self) -> list[float]:
        """Seconds of each op, by position; most blocks have nothing to join and never ask."""
        return [self._op_seconds(op) for op in self._block.ops]

    def is_bare(self, member: Member) -> bool:
        """Return whether compute waits for a collective, although it begins when it can."""
        between = self.compute[member.origin + 1 : member.end]
        return sum(between) < self._alone[member.start]

    def is_dear(self, member: Part) -> bool:
        """Return whether beginning a collective takes longer than the copies into a bucket."""
        return self._cost.collective_seconds(self._kind, 1, self._axis) > self._copies(
            member.num_bytes
        )

    def _copies(self, num_bytes: int) -> float:
        # What is gathered comes out strided, and what is scattered goes in so.
        times = 2 if self._kind == "all_reduce" else 4
        return times * num_bytes / self._cost.cluster.device.bytes_per_s

    def seconds(self, joined: Sequence[Sequence[Part]]) -> float:
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
        for position in range(-1, len(self.compute)):
            for index in dues.get(position, ()):
                clock = max(clock, ends[index])
            clock += self.compute[position] if position >= 0 else 0.0
            for index in begins.get(position, ()):
                copies, seconds = self._group_seconds(groups[index])
                # Beginning one takes the host, or a kernel's place, whatever is hidden of the rest.
                clock += self._launch_s + copies + (0.0 if self._hides else seconds)
                free = ends[index] = max(clock, free) + (seconds if self._hides else 0.0)
        return max([clock, *ends.values()])

    def _group_seconds(self, group: Sequence[Part]) -> tuple[float, float]:
        if len(group) == 1:
            return 0.0, self._alone[group[0].start]
        if not self._packs:
            return 0.0, self._sent(group)
        total = sum(part.num_bytes for part in group)
        sent = self._cost.collective_seconds(self._kind, total, self._axis)
        return self._copies(total) + self._launch_s, sent

    def _sent(self, group: Sequence[Part]) -> float:
        """Return the seconds of collectives that are begun as one."""
        members = [
            m for part in group for m in (part.members if isinstance(part, Unit) else [part])
        ]
        sizes = (member.num_bytes for member in members)
        total = self._cost.joined_bytes(self._kind, sizes, self._axis)
        return sum(self._cost.start_seconds(m.start, within_bytes=total) for m in members)

    def _op_seconds(self, op: Operation) -> float:
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            if name not in self._called:
                ops = self._known[name].body.block.ops
                self._called[name] = sum(map(self._op_seconds, ops))
            return self._called[name]
        if not isinstance(op, FlowOp) or op.name.startswith("comm."):
            return 0.0
        return self._prices.alone(op)
