"""Tapes: slots are never shared by values that live together, and no rank waits for ever."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from irc.errors import IrcError
from irc.schedule.named import generate
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Function, Place, Route, Tape, Wiring, play_tapes


def wiring(stages: int) -> Wiring:
    """A chain of stages, each with what its backward functions read."""
    functions: list[Mapping[str, Function]] = []
    for k in range(stages):
        out = [f"cut{k}.{k + 1}"] if k < stages - 1 else []
        own = [f"cut{k - 1}.{k}"] if k else []
        back = [f"gradient.{name}" for name in out]
        input_gradients = [f"gradient.{name}" for name in own]
        functions.append(
            {
                "F": Function(tuple(own), (*out, "saved0")),
                "B": Function((*back, "saved0"), tuple(input_gradients)),
                "I": Function((*back, "saved0"), (*input_gradients, "saved1")),
                "W": Function(("saved0", "saved1"), ()),
            }
        )
    routes = [Route(f"cut{k}.{k + 1}", k, k + 1, f"cut{k}.{k + 1}") for k in range(stages - 1)]
    routes += [
        Route(f"gradient.cut{k}.{k + 1}", k + 1, k, f"gradient.cut{k}.{k + 1}")
        for k in range(stages - 1)
    ]
    return Wiring(tuple(functions), tuple(routes), frozenset(r.name for r in routes))


NAMES = ("gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe-v")


def check(tape: Tape) -> None:
    """Play a tape, and see that each function reads what was put there for it."""
    held: dict[Place, tuple[str, int]] = {}
    pending: dict[Place, int] = {}
    for event in tape.events:
        number = event.action.micro_batch
        if event.what == "run":
            for name, place in event.reads.items():
                assert held[place] == (place.register, number), (name, event.action)
            for place in event.makes.values():
                assert not pending.get(place), f"{place} is still being sent"
                held[place] = (place.register, number)
            continue
        assert event.place is not None
        if event.what in ("arrive", "fetched"):
            held[event.place] = (event.place.register, number)
        elif event.what == "send":
            assert held[event.place] == (event.place.register, number)
            pending[event.place] = pending.get(event.place, 0) + 1
        elif event.what == "sent":
            pending[event.place] -= 1
    assert not any(pending.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (2, 8), (4, 8), (4, 16)])
def test_functions_read_what_was_made_for_them(name: str, ranks: int, micro_batches: int) -> None:
    schedule = generate(name, ranks=ranks, micro_batches=micro_batches)
    for tape in tapes_of(schedule, wiring(len(schedule.paths[0]))):
        check(tape)


def test_slots_are_those_of_the_schedule() -> None:
    """1F1B holds as many micro-batches as there are stages behind, GPipe all."""
    for name, expected in (("1f1b", [4, 3, 2, 1]), ("gpipe", [8] * 4)):
        schedule = generate(name, ranks=4, micro_batches=8)
        tapes = tapes_of(schedule, wiring(4))
        assert [tape.slots[rank, "saved0"] for rank, tape in enumerate(tapes)] == expected


def test_values_on_one_rank_are_read_where_they_lie() -> None:
    """In a V the two stages at its foot are on one rank: nothing is sent between them."""
    schedule = generate("zb-v", ranks=2, micro_batches=4)
    last = tapes_of(schedule, wiring(4))[1]
    sent = {event.route.name for event in last.events if event.route is not None}
    assert "cut1.2" not in sent
    assert "cut0.1" in sent


def test_a_tape_without_its_receive_is_stuck() -> None:
    schedule = generate("1f1b", ranks=2, micro_batches=4)
    first, last = tapes_of(schedule, wiring(2))
    events = tuple(e for e in first.events if e.what != "send")
    stuck = play_tapes((Tape(events, first.slots), last))
    assert [(rank, event.what) for rank, event in stuck] == [(0, "arrive"), (1, "arrive")]


def test_what_nothing_makes_is_refused() -> None:
    schedule = generate("1f1b", ranks=2, micro_batches=4)
    whole = wiring(2)
    lost = Wiring(whole.functions, whole.routes[1:], whole.aligned)
    with pytest.raises(IrcError, match="which nothing before it on its rank makes") as caught:
        tapes_of(schedule, lost)
    assert caught.value.code == "schedule-order"


def test_work_for_an_action_does_not_grow_with_the_stages() -> None:
    """With 64 stages and 256 micro-batches all routes were gone through for each value."""

    def calls(stages: int) -> float:
        schedule, own = generate("1f1b", ranks=stages, micro_batches=stages), wiring(stages)
        count = 0

        def called(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(called)
        try:
            tapes_of(schedule, own)
        finally:
            sys.setprofile(None)
        return count / sum(map(len, schedule.ranks))

    assert calls(24) < 1.5 * calls(6)


def test_routes_of_a_stage_are_those_of_all_that_begin_or_end_there() -> None:
    own = wiring(4)
    around = Route("cut0.1", 0, 2, "cut0.1", over=(1,))
    own = Wiring(own.functions, (*own.routes, around), own.aligned)
    for skipped in ((), (1,), (0, 1), (1, 2)):
        every = list(own.routes_of(skipped))
        for route in own.routes:
            stage, register = route.producer, route.register
            leaving = [r for r in every if (r.producer, r.register) == (stage, register)]
            assert list(own.routes_from(stage, register, skipped)) == leaving
            stage, name = route.consumer, route.name
            coming = [r for r in every if (r.consumer, r.name) == (stage, name)]
            assert list(own.routes_to(stage, name, skipped)) == coming
