"""Moves of a checked step's values out of their slots and back, each as late as it may be.

What is wrong in a tape is not to go well by chance: a value is stored when its store is waited for,
so that a slot that is written again too early has spoilt it by then; it is fetched as it is outside
when its fetch begins, and is in its slot when that is waited for. Meanwhile the slot holds nothing
that anything could read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from irc.runtime.outside import Move, Outside, Run, outside_of
from irc.schedule.tapes import Event, Place


class LateMoves:
    """Moves values between slots and memory of this process, whatever the plan says of where."""

    def __init__(self) -> None:
        self._outside: dict[Outside, torch.Tensor] = {}
        self._coming: dict[Place, torch.Tensor] = {}

    def step(self, events: Sequence[Move]) -> Run:
        """Return what does moves."""
        runs = [self._run(*each) for each in events]

        def run() -> None:
            for each in runs:
                each()

        return run

    def _run(self, event: Event, register: torch.Tensor) -> Run:
        place, outside = event.place, outside_of(event)
        assert place is not None

        def store() -> None:
            self._outside[outside] = register.clone()

        def fetch() -> None:
            # What was never stored is nothing, as in memory that was just set aside.
            value = self._outside.get(outside)
            self._coming[place] = torch.zeros_like(register) if value is None else value.clone()
            register.copy_(spoilt(register))

        def fetched() -> None:
            register.copy_(self._coming.pop(place))

        steps = {"store": _nothing, "stored": store, "fetch": fetch, "fetched": fetched}
        return steps[event.what]


def spoilt(register: torch.Tensor) -> torch.Tensor:
    """Return bytes that no function makes, as a value of a register's kind."""
    kind = register.dtype
    if kind.is_floating_point or kind.is_complex:
        return torch.full_like(register, float("nan"))
    if kind == torch.bool:
        return ~register
    return torch.full_like(register, torch.iinfo(kind).max)


def _nothing() -> None:
    return None
