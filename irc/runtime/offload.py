"""Values of registers that lie outside of the device's memory between the functions that use them.

A rank moves a value when its tape says so: ``store`` begins to write it, ``stored`` waits for that,
``fetch`` begins to bring it back and ``fetched`` waits. All places outside are set aside before the
first step; each has bytes of its own.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch

from irc.errors import IrcError
from irc.plan.parts import PartsPlan
from irc.schedule.tapes import Event, Place, Tape

Run: TypeAlias = Callable[[], object]

Outside: TypeAlias = tuple[int, str, int]
"""A place outside: the stage and name of its register, and which of them."""


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


class NoMoves:
    """Of a plan without offload."""

    def step(self, events: Sequence[Move]) -> Run:
        """Refuse.

        Raises:
            IrcError: ``plan-corrupt``.
        """
        raise IrcError("plan-corrupt", "a tape moves values, and the plan does not say where to")


def moves_of(plan: PartsPlan, tape: Tape, registers: Mapping[Place, torch.Tensor]) -> Moves:
    """Return what moves the values of a rank, as its plan says.

    Args:
        plan: the plan.
        tape: of the rank.
        registers: by slot.

    Raises:
        IrcError: ``offload-storage``, ``offload-unsupported``.
    """
    match plan.facts.offload:
        case "disk":
            from irc.runtime.offload_disk import DiskMoves

            return DiskMoves(tape, registers)
        case "host":
            from irc.runtime.offload_host import HostMoves

            return HostMoves(tape, registers)
        case _:
            return NoMoves()


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
