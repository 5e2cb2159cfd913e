"""Values on their way between parts: sends and receives that run while functions do."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from irc.plan.parts import PartsPlan
from irc.schedule.tapes import Event

Run: TypeAlias = Callable[[], object]

Key: TypeAlias = tuple[str, int, bool]


class Transfers:
    """What one rank sends and receives.

    Args:
        plan: the plan.
        rank: of this process.
    """

    def __init__(self, plan: PartsPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._pending: dict[Key, list[Any]] = {}
        names = sorted(channel.name for channel in plan.facts.channels)
        self._numbers = {name: number for number, name in enumerate(names)}

    def step(self, event: Event, register: torch.Tensor) -> Run:
        """Return what does an event of a tape.

        Args:
            event: any but a run.
            register: the slot of the value on this rank.
        """
        route, micro_batch = event.route, event.action.micro_batch
        assert route is not None
        key = (route.name, micro_batch, event.what in ("send", "sent"))
        pending = self._pending
        if event.what in ("arrive", "sent"):

            def wait() -> None:
                for work in pending.pop(key):
                    work.wait()

            return wait
        peers = self._plan.ranks[self._plan.schedule.rank_of[event.peer]]
        peer = peers[self._local]
        tag = self._numbers[route.name] * self._plan.num_micro_batches + micro_batch
        begin: Any = dist.isend if event.what == "send" else dist.irecv
        moved = register.view(-1).view(torch.uint8)

        def start() -> None:
            pending[key] = [begin(moved, peer, tag=tag)]

        return start

    @property
    def _local(self) -> int:
        return next(r.index(self._rank) for r in self._plan.ranks if self._rank in r)
