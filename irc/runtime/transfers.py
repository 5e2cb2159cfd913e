"""Values on their way between parts: sends and receives that run while functions do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import ref

import torch
import torch.distributed as dist

from irc.plan.parts import PartsPlan
from irc.runtime.collectives import Finish
from irc.runtime.links import Links
from irc.runtime.network_threads import defer_network_threads
from irc.schedule.tapes import Event
from irc.sharding.between import Channel, Message

Run: TypeAlias = Callable[[], object]

Key: TypeAlias = tuple[str, int]
Way: TypeAlias = tuple[str, int, int]
"""A channel, and the ranks that send and receive."""

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""


class Transfers:
    """What one rank sends and receives.

    Torch's tags tell messages of one pair of ranks apart. NCCL has none, and runs what goes between
    two ranks one after the other, in both directions: there each channel has a group of its own for
    each pair and direction, in which messages are received in the order in which they are sent.

    Args:
        plan: the plan.
        rank: of this process.
        in_order: messages have no tags, as over NCCL; every rank says the same.
        links: that messages take; by default those that are there.
    """

    def __init__(
        self,
        plan: PartsPlan,
        rank: int,
        *,
        in_order: bool = False,
        links: Links | None = None,
    ) -> None:
        self._plan, self._rank, self._links = plan, rank, links
        self._groups = _groups(plan, rank) if in_order else None
        self._sent: dict[Key, list[Any]] = {}
        self._coming: dict[Key, list[Any]] = {}
        # Of a value that stays on its rank, the end that came first.
        self._ends: dict[Key, torch.Tensor] = {}
        names = sorted(channel.name for channel in plan.facts.channels)
        self._numbers = {name: number for number, name in enumerate(names)}

    def step(self, event: Event, register: torch.Tensor) -> Run:
        """Return what does an event of a tape.

        Args:
            event: any but a run.
            register: the slot of the value on this rank.
        """
        route = event.route
        assert route is not None
        key = (route.name, event.action.micro_batch)
        if event.what in ("arrive", "sent"):
            return self._wait(key, self._coming if event.what == "arrive" else self._sent)
        here, there = event.action.stage, event.peer
        if event.what == "send":
            return self._send(key, register, self._plan.channel(route.name, here, there))
        return self._post(key, register, self._plan.channel(route.name, there, here))

    def _wait(self, key: Key, pending: dict[Key, list[Any]]) -> Run:
        def wait() -> None:
            for finish in pending.pop(key):
                finish()

        return wait

    def _tag(self, key: Key) -> int:
        name, micro_batch = key
        if self._groups is not None:
            return 0
        return self._numbers[name] * self._plan.num_micro_batches + micro_batch

    def _group(self, name: str, message: Message) -> Callable[[], Any]:
        if self._groups is None:
            return _whole_world
        return self._groups[name, message.source, message.target]

    def _send(self, key: Key, register: torch.Tensor, channel: Channel) -> Run:
        tag, copy = self._tag(key), channel.copy(self._rank)
        moves = [
            (message.target, self._group(key[0], message), *_packed(register, message.source_part))
            for message in sorted(channel.sends(self._rank), key=_order)
        ]

        carry = None
        if moves and self._links is not None:
            carry = self._links.message(channel, self._rank, _name(key))

        def begin() -> Finish:
            works: list[Run] = []
            for peer, group, part, packed in moves:
                if packed is not part:
                    packed.copy_(part)
                work: Any = dist.isend(_bytes(packed), peer, group=group(), tag=tag)
                works.append(work.wait)

            return _all_of(works)

        def start() -> None:
            self._sent[key] = [begin() if carry is None else carry(begin)]
            if copy is not None:
                self._meet(key, register[copy.source_part], is_source=True)

        return start

    def _post(self, key: Key, register: torch.Tensor, channel: Channel) -> Run:
        tag, copy = self._tag(key), channel.copy(self._rank)
        moves = [
            (message.source, self._group(key[0], message), *_packed(register, message.target_part))
            for message in sorted(channel.receives(self._rank), key=_order)
        ]

        arrive = None
        if moves and self._links is not None:
            arrive = self._links.arrival(channel, self._rank, _name(key))

        def start() -> None:
            works: list[Any] = []
            for peer, group, part, packed in moves:
                work: Any = dist.irecv(_bytes(packed), peer, group=group(), tag=tag)
                works.append(work.wait)
                if packed is not part:
                    works.append(_copying(part, packed))
            self._coming[key] = works if arrive is None else [arrive(_all_of(works))]
            if copy is not None:
                self._meet(key, register[copy.target_part], is_source=False)

        return start

    def _meet(self, key: Key, own: torch.Tensor, *, is_source: bool) -> None:
        """Copy what stays on this rank, once both its ends are there."""
        other = self._ends.pop(key, None)
        if other is None:
            self._ends[key] = own
        elif is_source:
            other.copy_(own)
        else:
            own.copy_(other)


def _groups(plan: PartsPlan, rank: int) -> Mapping[Way, Callable[[], Any]]:
    """Make a group for each channel, pair of ranks and direction that this rank is a part of."""
    place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
    ways: set[Way] = set()
    for event in plan.tapes[place].events:
        if event.route is None or event.what not in ("send", "post"):
            continue
        name, here, there = event.route.name, event.action.stage, event.peer
        if event.what == "send":
            messages = plan.channel(name, here, there).sends(rank)
        else:
            messages = plan.channel(name, there, here).receives(rank)
        ways |= {(name, message.source, message.target) for message in messages}
    groups: dict[Way, Callable[[], Any]] = {}
    for way in sorted(ways):  # in one order on all ranks, of which two make each
        group: Any = _library.new_group(list(way[1:]), use_local_synchronization=True)
        # torch lets go of its groups when the processes part: we hold none.
        groups[way] = ref(group)
    defer_network_threads()
    return groups


def _name(key: Key) -> str:
    name, micro_batch = key
    return f"{name} {micro_batch}"


def _all_of(runs: Sequence[Run]) -> Finish:
    def finish() -> None:
        for run in runs:
            run()

    return finish


def _whole_world() -> None:
    return None


def _order(message: Message) -> tuple[int, int]:
    return message.source, message.target


def _packed(register: torch.Tensor, where: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a slice of a register, and memory without gaps for it: its own where it has none."""
    part = register[where]
    return part, part if part.is_contiguous() else torch.empty(part.shape, dtype=part.dtype)


def _copying(part: torch.Tensor, packed: torch.Tensor) -> Run:
    return lambda: part.copy_(packed)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # What only moves, moves as bytes: gloo knows few dtypes.
    return tensor.reshape(-1).view(torch.uint8)
