"""Tapes: against the schedule's own timeline, and against tapes of all ranks event by event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.placement import Mesh
from irc.schedule.actions import Schedule
from irc.schedule.named import generate
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Function, Route, Tape, Wiring
from irc.schedule.timeline import Times, play
from irc.simulate.columns import columns_of
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.mixes import MixedPorts
from irc.simulate.tapes import simulate_tapes
from irc.simulate.update import kind_of

SECONDS = st.sampled_from([0.5, 1.0, 1.25, 3.0])
NAMES = ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved:2", "v-half"]


def wiring(num_stages: int, *, splits: bool, skips: bool = False) -> Wiring:
    """Functions of a chain of stages: results go down, gradients up; a skip goes over a stage."""
    functions: list[dict[str, Function]] = []
    routes: list[Route] = []
    for stage in range(num_stages):
        comes = ("x",) if stage else ()
        back = ("dy",) if stage + 1 < num_stages else ()
        goes = ("y",) if stage + 1 < num_stages else ()
        up = ("dx",) if stage else ()
        if skips and stage == 2:
            comes = (*comes, "skip")
            routes.append(Route("skip", 0, 2, "y"))
        kept = ("kept",) if splits else ()
        own = {"F": Function(comes, (*goes, "saved"))}
        own["I" if splits else "B"] = Function((*back, "saved"), (*up, *kept))
        if splits:
            own["W"] = Function(kept, ())
        functions.append(own)
        if stage:
            routes.append(Route("x", stage - 1, stage, "y"))
            routes.append(Route("dy", stage, stage - 1, "dx"))
    # A route's name is its consumer's register: one for each stage.
    return Wiring(
        tuple(
            {
                kind: Function(
                    tuple(_named(name, stage) for name in each.reads),
                    tuple(_named(name, stage) for name in each.makes),
                )
                for kind, each in own.items()
            }
            for stage, own in enumerate(functions)
        ),
        tuple(
            Route(
                _named(r.name, r.consumer), r.producer, r.consumer, _named(r.register, r.producer)
            )
            for r in routes
        ),
    )


def _named(name: str, stage: int) -> str:
    return f"{name}{stage}"


class Case(NamedTuple):
    """A step."""

    schedule: Schedule
    tapes: tuple[Tape, ...]
    costs: Costs
    way: Transfer


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(NAMES))
    ranks = draw(st.sampled_from([2, 4]))
    schedule = generate(name, ranks=ranks, micro_batches=2 * ranks)
    wired = wiring(schedule.num_stages, splits=schedule.splits_backward, skips=draw(st.booleans()))
    tapes = tapes_of(schedule, wired, ahead=draw(st.integers(0, 2)))
    stages = [
        StageCosts(
            {kind: draw(SECONDS) for kind in "FIW"}, {kind: 8 * draw(SECONDS) for kind in "FIW"},
            weight_bytes=16.0, reduce_seconds=draw(SECONDS), update_seconds=draw(SECONDS),
        )
        for _ in range(schedule.num_stages)
    ]  # fmt: skip
    way = Transfer(draw(st.sampled_from([0.0, 0.5, 2.0])), draw(st.sampled_from([0.0, 0.25])))
    return Case(schedule, tapes, Costs(stages), way)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_a_tape_is_not_faster_than_its_schedule(case: Case) -> None:
    """Waiting for slots only delays; a rank runs its actions in the schedule's order."""
    costs = Costs([StageCosts(stage.seconds) for stage in case.costs.stages])
    free = simulate_tapes(case.schedule, case.tapes, costs, lambda *_: Transfer(), {})
    best = play(case.schedule, costs.times(case.schedule.num_stages))
    for own, theirs in zip(free.played().spans, best.spans, strict=True):
        for (begin, _), (least, _) in zip(own, theirs, strict=True):
            assert begin >= least - 1e-9
    slow = simulate_tapes(case.schedule, case.tapes, costs, lambda *_: case.way, {})
    assert slow.seconds >= free.seconds - 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_tapes_with_slots_enough_take_what_the_schedule_takes(name: str, latency: float) -> None:
    schedule = generate(name, ranks=4, micro_batches=8)
    tapes = tapes_of(
        schedule, wiring(schedule.num_stages, splits=schedule.splits_backward), ahead=100
    )
    costs = Costs([StageCosts({"F": 1.0, "I": 1.25, "W": 0.75})])
    way = Transfer(latency_s=latency)
    simulation = simulate_tapes(schedule, tapes, costs, lambda *_: way, {})
    times = Times((1.0,), (1.25,), (0.75,), transfer=latency)
    assert simulation.played().spans == play(schedule, times).spans


def test_a_value_shares_the_ports_that_functions_hold() -> None:
    """Between two stages of one micro-batch, F of 1 s, its result on its way for 1 s, F of 1 s.

    A collective that goes over the network all the time that a function runs does not meet the
    value of one micro-batch, and of two it meets the first one's, at half of the speed.
    """
    costs, way = Costs([StageCosts({"F": 1.0})]), Transfer(1.0, port="nic")
    held = {kind_of("F", stage): ((("compute", "nic"), 1.0),) for stage in (0, 1)}
    ends: list[float] = []
    for micro_batches in (1, 2):
        schedule = generate("gpipe", ranks=2, micro_batches=micro_batches)
        tapes = tapes_of(schedule, wiring(2, splits=schedule.splits_backward), ahead=100)
        for device in (None, MixedPorts(), MixedPorts(held)):
            simulation = simulate_tapes(schedule, tapes, costs, lambda *_: way, {}, device=device)
            (span,) = (s for s, a in zip(simulation.played().spans[1], schedule.ranks[1],
                                         strict=True)
                       if str(a) == f"1F{micro_batches - 1}")  # fmt: skip
            ends.append(span[1])
    assert ends == [3.0, 3.0, 3.0, 4.0, 4.0, pytest.approx(5.0)]


def every_rank(case: Case, mesh: Mesh, slow: Mapping[tuple[int, int], float]) -> float:
    """Run the tapes of all ranks, an event at a time, and return when the last has updated.

    A rank has a clock; ranks of the tensor axis leave each function together. What a link does
    first is what is ready first, which a rank's clock alone does not say, so links have no
    capacity here: messages only have a latency.
    """
    schedule = case.schedule
    inside = range(mesh.num_ranks)
    clock = {(r, i): 0.0 for r in range(len(case.tapes)) for i in inside}
    begun: dict[tuple[str, int, int, str], float] = {}
    ended: dict[int, float] = {}
    at = [0] * len(case.tapes)
    while any(at[r] < len(tape.events) for r, tape in enumerate(case.tapes)):
        moved = False
        for r, tape in enumerate(case.tapes):
            while at[r] < len(tape.events):
                event = tape.events[at[r]]
                if event.what == "run":
                    stage = case.costs.stage(event.action.stage)
                    ends = {
                        i: clock[r, i] + stage.of(event.action.kind) * slow.get((r, i), 1.0)
                        for i in inside
                    }
                    for i in inside:
                        clock[r, i] = max(ends[j] for j in mesh.group_of(i, "tensor"))
                    if event.action.kind in "BW":
                        ended[event.action.stage] = max(clock[r, i] for i in inside)
                else:
                    assert event.route is not None
                    key = event.route.name, event.action.micro_batch
                    if event.what in ("post", "send"):
                        for i in inside:
                            begun[*key, i, event.what] = clock[r, i]
                    elif (*key, 0, "send") in begun and (*key, 0, "post") in begun:
                        for i in inside:
                            both = max(begun[*key, i, "send"], begun[*key, i, "post"])
                            is_copy = schedule.rank_of[event.peer] == r
                            latency = 0.0 if is_copy else case.way.latency_s
                            clock[r, i] = max(clock[r, i], both + latency)
                    else:
                        break
                at[r] += 1
                moved = True
        assert moved
    done = list(clock.values())
    for r in range(len(case.tapes)):
        after = 0.0  # sums of a rank follow each other
        now = {i: clock[r, i] for i in inside}
        own = sorted((s for s in ended if schedule.rank_of[s] == r), key=lambda s: ended[s])
        for stage in own:
            after = max(after, ended[stage]) + case.costs.stage(stage).reduce_seconds
            for i in inside:
                factor = max(slow.get((r, j), 1.0) for j in mesh.group_of(i, "tensor"))
                seconds = case.costs.stage(stage).update_seconds * factor
                now[i] = max(now[i], after) + seconds
        done += now.values()
    return max(done)


@given(
    cases(),
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 5)), SECONDS, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_classes_are_as_all_ranks(case: Case, slow: dict[tuple[int, int], float]) -> None:
    case = case._replace(way=Transfer(latency_s=case.way.latency_s))
    mesh = Mesh.parse("data=3,tensor=2")
    slow = {at: max(x, 1.0) for at, x in slow.items() if at[0] < len(case.tapes)}
    columns = columns_of(mesh, slow)
    simulation = simulate_tapes(
        case.schedule, case.tapes, case.costs, lambda *_: case.way, {}, columns
    )
    assert simulation.seconds == pytest.approx(every_rank(case, mesh, slow))


@given(cases())
@settings(max_examples=50, deadline=None)
def test_memory_is_slots_and_arena_and_weights(case: Case) -> None:
    sizes = {key: 3.0 + key[0] for tape in case.tapes for key in tape.slots}
    simulation = simulate_tapes(case.schedule, case.tapes, case.costs, lambda *_: case.way, sizes)
    for rank, tape in enumerate(case.tapes):
        slots = sum(sizes[key] * count for key, count in tape.slots.items())
        stages = [s for s, own in case.schedule.rank_of.items() if own == rank]
        arena = max(case.costs.stage(a.stage).arena(a.kind) for a in case.schedule.ranks[rank])
        expected = slots + arena + 16.0 * len(stages)
        assert simulation.peak_bytes(rank) == simulation.reserved_bytes(rank) == expected


def test_a_link_passes_what_is_ready_first() -> None:
    """Each of 4 results takes 3 s; the second begins when the first has passed."""
    schedule = generate("gpipe", ranks=2, micro_batches=4)
    tapes = tapes_of(schedule, wiring(2, splits=False), ahead=9)
    costs = Costs([StageCosts({"F": 1.0, "B": 1.0})])
    simulation = simulate_tapes(schedule, tapes, costs, lambda *_: Transfer(3.0), {})
    assert [begin for begin, _ in simulation.played().spans[1][:4]] == [4.0, 7.0, 10.0, 13.0]
