"""Values on their way between parts: sends and receives that run while functions do."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from irc.plan.parts import PartsPlan
from irc.schedule.tapes import Event
from irc.sharding.between import Message

Run: TypeAlias = Callable[[], object]

Key: TypeAlias = tuple[str, int]


class Transfers:
    """What one rank sends and receives; torch's tags tell messages of one pair apart.

    Args:
        plan: the plan.
        rank: of this process.
    """

    def __init__(self, plan: PartsPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
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
        return self._numbers[name] * self._plan.num_micro_batches + micro_batch

    def _send(self, key: Key, register: torch.Tensor, channel: Any) -> Run:
        tag, copy = self._tag(key), channel.copy(self._rank)
        moves = [
            (message.target, *_packed(register, message.source_part))
            for message in sorted(channel.sends(self._rank), key=_order)
        ]

        def start() -> None:
            works: list[Any] = []
            for peer, part, packed in moves:
                if packed is not part:
                    packed.copy_(part)
                works.append(dist.isend(_bytes(packed), peer, tag=tag).wait)  # type: ignore[union-attr]
            self._sent[key] = works
            if copy is not None:
                self._meet(key, register[copy.source_part], is_source=True)

        return start

    def _post(self, key: Key, register: torch.Tensor, channel: Any) -> Run:
        tag, copy = self._tag(key), channel.copy(self._rank)
        moves = [
            (message.source, *_packed(register, message.target_part))
            for message in sorted(channel.receives(self._rank), key=_order)
        ]

        def start() -> None:
            works: list[Any] = []
            for peer, part, packed in moves:
                works.append(dist.irecv(_bytes(packed), peer, tag=tag).wait)  # type: ignore[union-attr]
                if packed is not part:
                    works.append(_copying(part, packed))
            self._coming[key] = works
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
