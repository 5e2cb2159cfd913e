"""Tapes whose values leave their slots: fewer slots, and nothing is lost; faults are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from irc.schedule.named import generate
from irc.schedule.tape_check import check_tapes, tape_fault
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Event, Tape
from tests.schedule.test_tapes import NAMES, check, wiring


def moved(name: str, ranks: int, micro_batches: int, ahead: int = 1) -> tuple[Tape, ...]:
    schedule = generate(name, ranks=ranks, micro_batches=micro_batches)
    plain = wiring(len(schedule.paths[0]))
    every = tuple(
        frozenset(n for f in functions.values() for n in (*f.reads, *f.makes))
        for functions in plain.functions
    )
    return tapes_of(schedule, replace(plain, moved=every), ahead=ahead)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_tapes_keep_all_rules(name: str, ahead: int) -> None:
    tapes = moved(name, 4, 16, ahead)
    check_tapes(tapes)
    for tape in tapes:
        check(tape)
        whats = [event.what for event in tape.events]
        assert whats.count("store") == whats.count("stored") == whats.count("fetch")


@pytest.mark.parametrize("micro_batches", [8, 16, 64])
def test_slots_do_not_grow_with_micro_batches(micro_batches: int) -> None:
    """One is used, one is stored, one is fetched; outside there is a place for each."""
    for tape in moved("gpipe", 2, micro_batches):
        for key, count in tape.slots.items():
            if key[1] == "saved0":
                assert count == 3
                assert tape.outside[key] == micro_batches


def test_a_stage_of_1f1b_holds_as_much_wherever_it_is() -> None:
    slots = [tape.slots[rank, "saved0"] for rank, tape in enumerate(moved("1f1b", 8, 32))]
    assert slots == [3, 3, 3, 3, 3, 3, 2, 1]


def test_no_value_leaves_where_no_slot_is_saved() -> None:
    for tape in moved("1f1b", 2, 8):
        assert not tape.outside
        assert all(event.what not in ("store", "fetch") for event in tape.events)


def first(what: str) -> Callable[[Tape], int]:
    return lambda tape: next(i for i, event in enumerate(tape.events) if event.what == what)


def without(tape: Tape, at: int) -> Tape:
    return replace(tape, events=(*tape.events[:at], *tape.events[at + 1 :]))


def before(tape: Tape, at: int, other: int) -> Tape:
    events = list(tape.events)
    events.insert(other, events.pop(at))
    return replace(tape, events=tuple(events))


def shared(tape: Tape) -> Tape:
    """All places outside are one."""

    def change(event: Event) -> Event:
        return event._replace(outside=min(event.outside, 0))

    return replace(tape, events=tuple(map(change, tape.events)))


FAULTS: list[tuple[Callable[[Tape], Tape], str]] = [
    (lambda t: without(t, first("stored")(t)), "while what is there is being stored"),
    (lambda t: without(t, first("fetched")(t)), "while it is on its way"),
    (lambda t: before(t, first("fetch")(t), 0), "is fetched before it is outside"),
    (lambda t: before(t, first("store")(t), 0), "which holds another value"),
    (lambda t: without(t, first("store")(t)), "is not being stored"),
    (shared, "is stored where another value lies that is fetched later"),
    (lambda t: replace(t, events=t.events[: first("stored")(t)]), "nothing waits for"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_planted_faults_are_named(fault: Callable[[Tape], Tape], words: str) -> None:
    tape = moved("gpipe", 1, 8)[0]
    assert not tape_fault(tape)
    assert words in tape_fault(fault(tape))
