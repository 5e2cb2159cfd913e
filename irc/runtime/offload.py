"""Values of registers that lie outside of the device's memory between the functions that use them.

A rank moves a value when its tape says so: ``store`` begins to write it, ``stored`` waits for that,
``fetch`` begins to bring it back and ``fetched`` waits. All places outside are set aside before the
first step; each has bytes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from irc.errors import IrcError
from irc.plan.parts import PartsPlan
from irc.runtime.outside import Move, Moves, Run
from irc.schedule.tapes import Place, Tape


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
