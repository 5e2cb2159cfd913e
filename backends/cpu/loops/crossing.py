"""Which kernels read along one dim and write along another, and in what panels."""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cpu.loops.nest import Nest, Step
from irc.backends.cpu.loops.schedule import Schedule
from irc.backends.cpu.loops.sizes import typical
from irc.backends.cpu.loops.streaming import LINE
from irc.dialects.types import ITEM_BYTES

BLOCK = 4
"""Squares of a panel along the operand's fast dim: lines that the hardware fetches together."""
LENGTH = 256
"""Elements of a panel along the result's fast dim: few of its lines are stored in two parts. Twice
as many, and half as many, were slower."""
MOST_LANES = 16
LEAST = 8
"""Extents below which a square would be mostly empty."""


@dataclass(frozen=True)
class Crossing:
    """What is turned.

    Attributes:
        along: the dim along which results are stored.
        across: the dim along which the turned operands lie.
        turned: the loads that are turned.
        lanes: the side of a square.
        length: elements of a panel along the result.
        width: elements of a panel along the operands.
    """

    along: int
    across: int
    turned: tuple[Step, ...]
    lanes: int
    length: int
    width: int

    @property
    def scratch_bytes(self) -> int:
        """Room for one panel of each turned operand."""
        return sum(self.panel_bytes(step) for step in self.turned)

    def pitch(self, step: Step) -> int:
        """Elements from row to row of a turned panel: a line more than a row has.

        So rows do not share sets of the cache, and a vector may reach beyond the last one.
        """
        assert step.access is not None
        return self.length + LINE // ITEM_BYTES[step.access.dtype]

    def panel_bytes(self, step: Step) -> int:
        """Bytes of one panel, in whole lines."""
        assert step.access is not None
        size = self.width * self.pitch(step) * ITEM_BYTES[step.access.dtype]
        return -(-size // LINE) * LINE


def find_crossing(nest: Nest, schedule: Schedule) -> Crossing | None:
    """Return what a kernel turns; None where it reduces, or reads the way it writes."""
    stores = [step.access for step in nest.steps if step.kind == "store"]
    loads = [step for step in nest.steps if step.kind == "load"]
    if nest.reduced or not stores or any(a.blocks for a in nest.accesses):
        return None
    fast = [[d for d, s in enumerate(a.strides) if s == 1] for a in stores if a is not None]
    if any(len(dims) != 1 or dims != fast[0] for dims in fast):
        return None
    (along,) = fast[0]
    ways: dict[int, list[Step]] = {}
    for step in loads:
        if (across := _across(step, along, nest)) is not None:
            ways.setdefault(across, []).append(step)
    if not ways:
        return None
    across, turned = max(ways.items(), key=lambda way: len(way[1]))
    if min(typical(nest.extents[along]), typical(nest.extents[across])) < LEAST:
        return None
    lanes = min(max(schedule.lanes, 2), MOST_LANES)
    length, width = (
        min(-(-extent // lanes) * lanes if isinstance(extent, int) else most, most)
        for extent, most in ((nest.extents[along], LENGTH), (nest.extents[across], BLOCK * lanes))
    )
    return Crossing(along, across, tuple(turned), lanes, length, width)


def _across(step: Step, along: int, nest: Nest) -> int | None:
    """Return the dim along which a load lies, where that is not the one it is written along."""
    access = step.access
    assert access is not None
    if access.index_strides or access.bounds or access.strides[along] in (0, 1):
        return None
    dims = [d for d, s in enumerate(access.strides) if s == 1 and typical(nest.extents[d]) > 1]
    return dims[0] if len(dims) == 1 else None
