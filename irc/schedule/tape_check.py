"""Whether a rank's tape keeps what is in its slots: played without values, each rule once.

A function reads what was put into its slot for its micro-batch, and nothing that is still on its
way there. A slot is written again when what was in it has been sent and is outside. What is fetched
has been stored whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from irc.errors import IrcError
from irc.schedule.tapes import Event, Place, Tape

Content: TypeAlias = tuple[str, int]
"""The register that a value is in, and its micro-batch."""
Outside: TypeAlias = tuple[int, str, int]
"""A place outside: the stage and name of its register, and which of them."""


def tape_fault(tape: Tape) -> str:
    """Return the first thing that is wrong with a tape; nothing where it keeps all rules.

    >>> from irc.schedule.actions import Action
    >>> action, place = Action(0, "F", 0), Place(0, "saved0", 0)
    >>> run = Event("run", action, makes={"saved0": place})
    >>> store = Event("store", action, place=place, outside=0)
    >>> fetch = Event("fetch", action, place=place, outside=0)
    >>> tape_fault(Tape((run, store, fetch), {(0, "saved0"): 1}))
    "'saved0' of stage 0 of micro-batch 0 is fetched before it is outside"
    """
    played = _Played()
    for event in tape.events:
        for fault in played.faults(event):
            return fault
    left = [*played.coming, *played.stores, *(p for p, count in played.sends.items() if count)]
    return f"nothing waits for {_named(left[0])} at the end" if left else ""


def check_tapes(tapes: tuple[Tape, ...]) -> None:
    """Check the tapes of all ranks.

    Raises:
        IrcError: ``schedule-registers``.
    """
    for rank, tape in enumerate(tapes):
        if fault := tape_fault(tape):
            raise IrcError("schedule-registers", f"rank {rank} of the pipe axis: {fault}")


@dataclass
class _Played:
    """What is where, as far as a tape was played.

    Attributes:
        held: what each slot holds.
        coming: what is on its way into a slot.
        sends: by slot, how many sends of it are under way.
        stores: by slot that is being stored, the place outside.
        outside: what each place outside holds.
    """

    held: dict[Place, Content] = field(default_factory=dict[Place, Content])
    coming: dict[Place, Content] = field(default_factory=dict[Place, Content])
    sends: dict[Place, int] = field(default_factory=dict[Place, int])
    stores: dict[Place, Outside] = field(default_factory=dict[Place, Outside])
    outside: dict[Outside, Content] = field(default_factory=dict[Outside, Content])

    def faults(self, event: Event) -> Iterator[str]:
        """Do an event, and yield what is wrong with it."""
        number, place = event.action.micro_batch, event.place
        if event.what == "run":
            for own in event.reads.values():
                yield from self._read(own, number, f"{event.action}")
            for own in event.makes.values():
                yield from self._written(own, number)
                self.held[own] = own.register, number
            return
        assert place is not None
        content, beyond = (place.register, number), (place.stage, place.register, event.outside)
        value = f"{_named(place)} of micro-batch {number}"
        match event.what:
            case "post":
                yield from self._written(place, number)
                self.coming[place] = content
            case "arrive" | "fetched":
                if self.coming.pop(place, None) != content:
                    yield f"{value} is waited for, and is not on its way"
                self.held[place] = content
            case "send":
                yield from self._read(place, number, "a send")
                self.sends[place] = self.sends.get(place, 0) + 1
            case "sent":
                self.sends[place] = self.sends.get(place, 0) - 1
                if self.sends[place] < 0:
                    yield f"{value} is waited for, and is not being sent"
            case "store":
                yield from self._read(place, number, "a store")
                if beyond in self.outside:
                    yield f"{value} is stored where another value lies that is fetched later"
                self.stores[place] = beyond
            case "stored":
                if self.stores.pop(place, None) != beyond:
                    yield f"{value} is waited for, and is not being stored"
                self.outside[beyond] = content
            case "fetch":
                if self.outside.pop(beyond, None) != content:
                    yield f"{value} is fetched before it is outside"
                yield from self._written(place, number)
                self.coming[place] = content

    def _read(self, place: Place, number: int, reader: str) -> Iterator[str]:
        what = f"{_named(place)} of micro-batch {number}"
        if place in self.coming:
            yield f"{reader} reads {what} while it is on its way"
        elif self.held.get(place) != (place.register, number):
            yield f"{reader} reads {what} from slot {place.slot}, which holds another value"

    def _written(self, place: Place, number: int) -> Iterator[str]:
        what = f"slot {place.slot} of {_named(place)} is written for micro-batch {number}"
        if place in self.coming:
            yield f"{what} while a value is on its way there"
        if self.sends.get(place):
            yield f"{what} while what is there is being sent"
        if place in self.stores:
            yield f"{what} while what is there is being stored"
        self.held.pop(place, None)


def _named(place: Place) -> str:
    return f"'{place.register}' of stage {place.stage}"
