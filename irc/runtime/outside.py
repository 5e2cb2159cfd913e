"""Activations that lie outside the device: where, and how many bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch

from irc.schedule.tapes import Event, Place, Tape

Outside: TypeAlias = tuple[int, str, int]
"""A place outside: the stage and name of its register, and which of them."""

Run: TypeAlias = Callable[[], object]

Move: TypeAlias = tuple[Event, torch.Tensor]
"""An event, and the slot that it moves a value from or to."""


class Moves(Protocol):
    """Moves values between slots and places outside."""

    def step(self, events: Sequence[Move]) -> Run:
        """Return what does some events of a tape that follow each other.

        Args:
            events: all of one of :data:`irc.schedule.tapes.MOVES`, each with its slot.
        """
        ...


def places_outside(tape: Tape, registers: Mapping[Place, torch.Tensor]) -> dict[Outside, int]:
    """Return the bytes of each place outside of a rank."""
    return {
        (stage, name, number): _num_bytes(registers[Place(stage, name, 0)])
        for (stage, name), count in tape.outside.items()
        for number in range(count)
    }


def device_of_slots(registers: Mapping[Place, torch.Tensor]) -> torch.device:
    """Return where a rank's slots lie: the host where it has none."""
    return next((each.device for each in registers.values()), torch.device("cpu"))


def outside_of(event: Event) -> Outside:
    """Return the place outside that a move is to or from."""
    assert event.place is not None
    return event.place.stage, event.place.register, event.outside


def bytes_of(register: torch.Tensor) -> torch.Tensor:
    """Return a register as bytes: its own memory."""
    return register.reshape(-1).view(torch.uint8)


def _num_bytes(register: torch.Tensor) -> int:
    return register.numel() * register.element_size()
