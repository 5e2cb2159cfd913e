"""How long the values of a rank are alive in its registers, and which slot each has.

Positions are those of actions in the rank's order. Values of one register are alive in intervals;
these are coloured with as few slots as they overlap (left-edge algorithm). A value of a register
that is moved is alive in several parts: between two of them it lies outside.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from irc.schedule.tapes import Place, Route


@dataclass
class Value:
    """A value in a register of a rank, or the part of its life that it spends in one slot.

    Attributes:
        uses: positions of the actions that make or read it, ascending.
        arrives: the route by which it comes, None for what is made here.
        sent: routes by which it goes, with the stage of the schedule at the other end.
        slot: of its register.
        follows: what was in its slot before.
        back: the next part of its life; this part ends with its move outside.
        came: the part before, where this one begins with its way back.
        outside: which place outside it lies in behind this part.
    """

    stage: int
    register: str
    micro_batch: int
    uses: list[int]
    arrives: Route | None = None
    sent: list[tuple[Route, int]] = field(default_factory=list[tuple[Route, int]])
    slot: int = -1
    follows: Value | None = None
    back: Value | None = None
    came: Value | None = None
    outside: int = -1

    @property
    def first(self) -> int:
        """Where it is made, or first read."""
        return self.uses[0]

    @property
    def last(self) -> int:
        """Where it is read last."""
        return self.uses[-1]

    @property
    def place(self) -> Place:
        """Its slot."""
        return Place(self.stage, self.register, self.slot)

    def at(self, position: int) -> Value:
        """Return the part of its life that a use is in."""
        return self if self.back is None or position <= self.last else self.back.at(position)

    def parts(self) -> Iterator[Value]:
        """Yield all parts of its life."""
        yield self
        if self.back is not None:
            yield from self.back.parts()

    def waits(self, ahead: int) -> Iterator[int]:
        """Yield for how many actions its slot would be another's between its uses, where for any.

        Args:
            ahead: for how many actions it stays while it is stored, and is back before it is used.
        """
        for before, after in pairwise(self.uses):
            if (wait := _wait(before, after, ahead)) > 0:
                yield wait

    def divide(self, least: int, ahead: int) -> None:
        """Let it leave its slot wherever that would be another's for so many actions."""
        for i in range(1, len(self.uses)):
            if _wait(self.uses[i - 1], self.uses[i], ahead) >= least:
                own, rest = self.uses[:i], self.uses[i:]
                self.uses = own
                self.back = Value(self.stage, self.register, self.micro_batch, rest, came=self)
                self.back.divide(least, ahead)
                return

    def span(self, ahead: int, more: int) -> tuple[int, int]:
        """Return when its slot is its own: from the first position to behind the last.

        Args:
            ahead: how many actions a move, or a message, may take before and after.
            more: actions that messages may take beyond that.
        """
        # What comes from elsewhere is under way before it is read; what goes is, after.
        before = ahead + more if self.arrives else ahead if self.came else 0
        after = ahead + more if self.sent else ahead if self.back else 0
        return self.first - before, self.last + after + 1


def _wait(before: int, after: int, ahead: int) -> int:
    """Return how many actions between two uses a slot is free where its value leaves it."""
    return after - before - 1 - 2 * ahead


def divided(values: Sequence[Value], ahead: int, more: int) -> list[Value]:
    """Let values of a register leave their slots, so that it takes the fewest slots.

    Of values that wait the longer ones leave first, and no more of them than it takes. Where no
    slot is saved none leaves. Arguments are those of :func:`assign_slots`.
    """
    waits = sorted({wait for value in values for wait in value.waits(ahead)}, reverse=True)

    def apart(least: int) -> list[Value]:
        copies = [replace(value) for value in values]
        for value in copies:
            value.divide(least, ahead)
        return [part for value in copies for part in value.parts()]

    def slots(least: int) -> int:
        spans = sorted(part.span(ahead, more) for part in apart(least))
        return coloured(spans)[1]

    if not waits or (fewest := slots(waits[-1])) == slots(waits[0] + 1):
        return list(values)
    # The more may leave, the fewer slots are taken.
    chosen = waits[bisect_left(waits, True, key=lambda least: slots(least) == fewest)]
    for value in values:
        value.divide(chosen, ahead)
    return [part for value in values for part in value.parts()]


def assign_slots(values: Iterable[Value], ahead: int, more: int) -> int:
    """Give each value of a register a slot, and return how many it takes.

    Args:
        values: of one register, their lives divided.
        ahead: how many actions a move, or a message, may take before and after.
        more: actions that messages may take beyond that.
    """
    values = sorted(values, key=lambda v: (v.first, v.micro_batch))
    spans = [value.span(ahead, more) for value in values]
    slots, count = coloured(spans)
    occupant: dict[int, Value] = {}
    for value, slot in zip(values, slots, strict=True):
        value.slot, value.follows = slot, occupant.get(slot)
        occupant[slot] = value
    return count


def assign_outside(values: Iterable[Value]) -> int:
    """Give each value of a register its place outside, and return how many it takes."""
    gone = sorted((v.last, v.back.first, v) for v in values if v.back is not None)
    places, count = coloured([(begin, end) for begin, end, _ in gone])
    for (_, _, value), place in zip(gone, places, strict=True):
        value.outside = place
    return count


def coloured(spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Colour intervals, ordered by their first position, that do not hold their second.

    Returns the colour of each and how many there are: no more than intervals overlap, where they
    are in the order in which they begin.

    >>> coloured([(0, 2), (1, 3), (2, 4)])
    ([0, 1, 0], 2)
    """
    free: list[tuple[int, int]] = []
    colours: list[int] = []
    count = 0
    for begin, end in spans:
        if free and free[0][0] <= begin:
            _, colour = heapq.heappop(free)
        else:
            colour, count = count, count + 1
        colours.append(colour)
        heapq.heappush(free, (end, colour))
    return colours, count
