"""Schedules on classes of ranks: against the schedule's own timeline, and against all ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product as cartesian
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, computed
from irc.schedule.named import generate
from irc.schedule.timeline import Times, peaks, play
from irc.schedule.vocabulary import with_vocabulary
from irc.simulate.actions import SimAction
from irc.simulate.columns import Column, columns_of, folded
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.engine import simulate
from irc.simulate.schedule import Simulation, simulate_schedule

ROOT = Path(__file__).resolve().parents[2]

NAMES = ["gpipe", "1f1b", "interleaved:2", "gis:2", "breadth-first:2", "zb-h1", "zb-h2", "zb-v",
         "v-half", "v-min", "dualpipe", "dualpipe-v"]  # fmt: skip

SECONDS = st.floats(0.125, 8)


@st.composite
def schedules(draw: st.DrawFn, names: Sequence[str] = tuple(NAMES)) -> Schedule:
    """A schedule by name, of sizes that it has, some with a vocabulary over all ranks."""
    name = draw(st.sampled_from(list(names)))
    ranks = draw(st.sampled_from([2, 4]))
    schedule = generate(name, ranks=ranks, micro_batches=ranks * draw(st.integers(2, 3)))
    if name in ("1f1b", "zb-h1", "gpipe") and draw(st.booleans()):
        return with_vocabulary(schedule, draw(st.sampled_from([1, 2])))
    return schedule


@st.composite
def timed(draw: st.DrawFn) -> tuple[Schedule, Times]:
    schedule = draw(schedules())
    kinds = [[draw(SECONDS) for _ in range(schedule.num_stages)] for _ in range(3)]
    transfer = draw(st.sampled_from([0.0, 0.25, 1.7]))
    overlap = draw(st.sampled_from([1.0, 0.8]))
    return schedule, Times(*kinds, None, transfer, draw(SECONDS), draw(SECONDS), overlap)


@given(timed())
@settings(max_examples=150, deadline=None)
def test_times_are_those_of_the_schedule_itself(case: tuple[Schedule, Times]) -> None:
    """Where messages only have a latency, to the last bit."""
    schedule, times = case
    simulation = simulate_schedule(schedule, Costs.of(times, schedule.num_stages))
    assert simulation.played().spans == play(schedule, times).spans
    assert simulation.seconds == play(schedule, times).makespan
    assert simulation.played().work == pytest.approx(play(schedule, times).work)


@given(schedules(), st.sampled_from([0.0, 0.25, 1.0]))
@settings(max_examples=80, deadline=None)
def test_memory_is_that_of_the_schedule_itself(schedule: Schedule, share: float) -> None:
    """In activations of a stage, with what W keeps; the slots are the same by count."""
    stage = StageCosts({"F": 1.0, "I": 1.0, "W": 1.0}, saved_bytes=4.0, kept_bytes=4.0 * share)
    simulation = simulate_schedule(schedule, Costs([stage]))
    for rank, most in enumerate(peaks(schedule, weight_share=share, chunks=1)):
        assert simulation.peak_bytes(rank) == 4.0 * most


def test_slots_of_1f1b_are_its_depth() -> None:
    stage = StageCosts({"F": 1.0, "B": 2.0}, saved_bytes=1.0, slots=4)
    simulation = simulate_schedule(generate("1f1b", ranks=4, micro_batches=8), Costs([stage]))
    assert [simulation.slots(f"saved values of stage {s}") for s in range(4)] == [4, 3, 2, 1]
    assert [simulation.peak_bytes(s) for s in range(4)] == [4, 3, 2, 1]
    assert [simulation.reserved_bytes(s) for s in range(4)] == [4, 4, 4, 4]


# ------------------------------------------------------------------------- against all the ranks


def every_rank(
    schedule: Schedule, costs: Costs, mesh: Mesh, slow: Mapping[tuple[int, int], float]
) -> tuple[float, dict[tuple[int, int], float]]:
    """Simulate every rank by itself: the time, and the peak by rank of the schedule and of mesh.

    Ranks of the tensor axis meet after each function, all of a stage for the gradients; each rank
    sends to the one with its own coordinates.
    """
    rank_of = {part: r for r, own in enumerate(schedule.ranks) for part in computed(own)}
    needs = {
        part: [next(a for a in any_of if a in rank_of) for any_of in schedule.before(part)]
        for part in rank_of
    }
    keys: dict[object, int] = {}
    actions: list[tuple[SimAction, list[object]]] = []
    slots: dict[str, int] = {}

    def add(key: object, after: Iterable[object], action: SimAction) -> None:
        keys[key] = len(actions)
        actions.append((action, list(after)))

    def register(name: str, count: int | None) -> tuple[str, int]:
        if count is not None:
            slots[name] = count
        return name, 1

    for part in rank_of:
        rank, stage = rank_of[part], costs.stage(part.stage)
        came = [n.stage for n in needs[part] if n.stage != part.stage]
        goes = [r.stage for r in rank_of if part in needs[r] and r.stage != part.stage]
        here = {s for s in (*came, *goes) if schedule.rank_of[s] == rank}
        kept, arena = stage.kept_bytes, stage.arena(part.kind)
        saves = stage.saved_bytes if part.kind == "F" else 0.0
        frees = {"I": stage.saved_bytes - kept, "B": stage.saved_bytes, "W": kept}
        born = arena + saves + sum(costs.way(part.stage, t).num_bytes for t in goes)
        dies = arena + frees.get(part.kind, 0.0)
        dies += sum(costs.way(s, part.stage).num_bytes for s in came)
        for i in range(mesh.num_ranks):
            me, seconds = f"{rank}/{i}", stage.of(part.kind) * slow.get((rank, i), 1.0)
            after = [
                (n, part.stage if n.stage in came and n.stage not in here else "meet", i)
                for n in needs[part]
            ]
            takes = [register(f"out {part.stage} {t} {i}", costs.way(part.stage, t).slots)
                     for t in goes]  # fmt: skip
            run = SimAction(str(part), me, seconds, (), None, ((me, born),), (), tuple(takes))
            add((part, "run", i), after, run)
        for i in range(mesh.num_ranks):
            me = f"{rank}/{i}"
            gives = [register(f"{'out' if s in here else 'in'} {s} {part.stage} {i}",
                              costs.way(s, part.stage).slots) for s in came]  # fmt: skip
            meet = SimAction("meet", me, 0.0, frees=((me, dies),), gives=tuple(gives))
            add((part, "meet", i), [(part, "run", j) for j in mesh.group_of(i, "tensor")], meet)
            for t in (t for t in goes if t not in here):
                way, to = costs.way(part.stage, t), schedule.rank_of[t]
                born_there, dies_here = ((f"{to}/{i}", way.num_bytes),), ((me, way.num_bytes),)
                send = SimAction(
                    "send", f"{me} to {to}", way.seconds, (), None, born_there, dies_here,
                    ((f"in {part.stage} {t} {i}", 1),), ((f"out {part.stage} {t} {i}", 1),),
                    lag=way.latency_s,
                )  # fmt: skip
                add((part, t, i), [(part, "meet", i)], send)
    # Sums of a rank follow each other, in the order in which the stages end.
    ends = {part.stage: (i, part) for i, part in enumerate(rank_of) if part.kind in "BW"}
    last = {stage: part for stage, (_, part) in sorted(ends.items(), key=lambda item: item[1])}
    for stage, part in last.items():
        meets = [(part, "meet", i) for i in range(mesh.num_ranks)]
        add(
            stage,
            meets,
            SimAction("sum", f"sums of {rank_of[part]}", costs.stage(stage).reduce_seconds),
        )
    for stage, i in cartesian(last, range(mesh.num_ranks)):
        rank = schedule.rank_of[stage]
        factor = max(slow.get((rank, j), 1.0) for j in mesh.group_of(i, "tensor"))
        seconds = costs.stage(stage).update_seconds * factor
        after = list(last) if costs.norm else [stage]
        add((stage, "update", i), after, SimAction("update", f"{rank}/{i}", seconds))
    resolved = [replace(a, after=tuple(keys[key] for key in after)) for a, after in actions]
    timeline = simulate(resolved, slots=slots)
    places = cartesian(range(len(schedule.ranks)), range(mesh.num_ranks))
    return timeline.seconds, {(r, i): timeline.peak[f"{r}/{i}"] for r, i in places}


@st.composite
def costed(draw: st.DrawFn) -> tuple[Schedule, Costs]:
    """Schedules with transfers of any kind; where slots are few, of one stage a rank."""
    slots = draw(st.sampled_from([None, 1, 2]))
    names = ["gpipe", "1f1b", "zb-h1"]
    if slots is None:
        names += ["interleaved:2", "zb-v", "v-half", "breadth-first:2"]
    name = draw(st.sampled_from(names))
    ranks = draw(st.sampled_from([2, 4])) if slots is None else draw(st.integers(2, 4))
    schedule = generate(name, ranks=ranks, micro_batches=2 * ranks)
    size = st.integers(0, 9).map(float)
    stages = [
        StageCosts(
            {kind: draw(SECONDS) for kind in "FIW"}, {kind: draw(size) for kind in "FIW"},
            saved_bytes=9.0 + draw(size), kept_bytes=draw(size), weight_bytes=0.0,
            reduce_seconds=draw(SECONDS), update_seconds=draw(SECONDS),
        )
        for _ in range(schedule.num_stages)
    ]  # fmt: skip
    way = Transfer(draw(SECONDS), draw(st.sampled_from([0.0, 0.5])), draw(size), slots)
    return schedule, Costs(stages, way, norm=draw(st.booleans()))


SLOW = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 5)), st.sampled_from([1.25, 2.0, 3.0]), max_size=4
)


@given(costed(), SLOW)
@settings(max_examples=100, deadline=None)
def test_classes_are_as_all_ranks(
    case: tuple[Schedule, Costs], slow: dict[tuple[int, int], float]
) -> None:
    """Three columns of two ranks each at every rank of the schedule, some of them slow."""
    schedule, costs = case
    mesh = Mesh.parse("data=3,tensor=2")
    slow = {at: factor for at, factor in slow.items() if at[0] < len(schedule.ranks)}
    columns = columns_of(mesh, slow)
    assert sum(column.count for column in columns) == 3
    simulation = simulate_schedule(schedule, costs, columns)
    seconds, peak = every_rank(schedule, costs, mesh, slow)
    assert simulation.seconds == pytest.approx(seconds, rel=1e-12)
    for rank in range(len(schedule.ranks)):
        ours = {simulation.peak_bytes(rank, column) for column in range(len(columns))}
        assert ours == {peak[rank, i] for i in range(mesh.num_ranks)}
        for column in range(len(columns)):
            assert simulation.peak_bytes(rank, column) <= simulation.reserved_bytes(rank, column)


def test_ranks_that_are_alike_are_one_class() -> None:
    mesh = Mesh.parse("data=64,tensor=16")
    assert columns_of(mesh, {}) == (Column(64),)
    slow = {(3, 17): 1.5, (3, 20): 1.2, (3, 33): 1.5, (5, 40): 2.0}
    assert columns_of(mesh, slow) == (
        Column(62), Column(1, {3: 1.5}), Column(1, {3: 1.5, 5: 2.0}),
    )  # fmt: skip
    assert columns_of(mesh, {(0, 0): 2.0, (0, 16): 2.0})[1] == Column(2, {0: 2.0})
    assert columns_of(Mesh.parse("tensor=8"), {(0, 3): 2.0}) == (Column(1, {0: 2.0}),)
    assert folded([Column(2), Column(1, {1: 2.0}), Column(3)]) == (Column(5), Column(1, {1: 2.0}))


def simple(**stage: float) -> Costs:
    return Costs([StageCosts({"F": 1.0, "B": 2.0}, **stage)])  # pyright: ignore[reportArgumentType]


def test_a_slow_rank_is_waited_for_where_gradients_meet() -> None:
    """The fast columns end their backward when they would alone, and update with the slow one."""
    schedule = generate("1f1b", ranks=2, micro_batches=4)
    costs = simple(reduce_seconds=1.0, update_seconds=0.5)
    alone = simulate_schedule(schedule, costs)
    assert alone.seconds == play(schedule).makespan + 1.5
    simulation = simulate_schedule(schedule, costs, [Column(7), Column(1, {1: 2.0})])
    assert simulation.played(0).makespan == play(schedule).makespan
    slow = play(schedule, Times((1.0, 2.0), (1.0, 2.0), (1.0, 2.0))).makespan
    assert simulation.played(1).makespan == slow
    assert simulation.seconds == slow + 1.5
    assert simulation.bubble(0, 0) > alone.bubble(0)


def test_a_slow_link_delays_its_column_alone() -> None:
    schedule = generate("gpipe", ranks=2, micro_batches=2)
    costs = Costs([StageCosts({"F": 1.0, "B": 1.0})], Transfer(latency_s=1.0))
    simulation = simulate_schedule(
        schedule, costs, [Column(3), Column(1, slow_links={(0, 1): 3.0})]
    )
    assert [simulation.played(column).makespan for column in (0, 1)] == [8.0, 10.0]


def test_the_norm_of_all_gradients_is_a_barrier() -> None:
    """Stage 1 has its gradients first, and updates only when stage 0 has its own."""
    schedule = generate("1f1b", ranks=2, micro_batches=2)
    stage = StageCosts({"F": 1.0, "B": 2.0}, update_seconds=5.0)
    updates = {
        norm: [
            start
            for action, start in zip(simulation.actions, simulation.timeline.starts, strict=True)
            if action.name.endswith("update")
        ]
        for norm in (False, True)
        for simulation in [simulate_schedule(schedule, Costs([stage], norm=norm))]
    }
    assert updates == {False: [9.0, 7.0], True: [9.0, 9.0]}


def test_a_link_passes_one_value_at_a_time() -> None:
    """Four results of 1 s each over a link that takes 3 s for one: the last arrives at 13."""
    schedule = generate("gpipe", ranks=2, micro_batches=4)
    costs = Costs([StageCosts({"F": 1.0, "B": 1.0})], Transfer(seconds=3.0))
    last = simulate_schedule(schedule, costs).played().spans[1][3]
    assert last == (13.0, 14.0)
    costs = Costs([StageCosts({"F": 1.0, "B": 1.0})], Transfer(latency_s=3.0))
    assert simulate_schedule(schedule, costs).played().spans[1][3] == (7.0, 8.0)


def test_one_slot_makes_the_sender_wait() -> None:
    """Rank 1 takes 3 s for each F; rank 0 runs ahead by as many results as there are slots."""
    schedule = generate("gpipe", ranks=2, micro_batches=4)
    stages = [StageCosts({"F": 1.0, "B": 1.0}), StageCosts({"F": 3.0, "B": 1.0})]
    starts: dict[int | None, list[float]] = {}
    for slots in (None, 2, 1):
        simulation = simulate_schedule(
            schedule, Costs(stages, Transfer(num_bytes=1.0, slots=slots))
        )
        starts[slots] = [start for start, _ in simulation.played().spans[0][:4]]
        most = simulation.slots("inputs of stage 1 from 0")
        assert most == (3 if slots is None else slots)
        assert simulation.peak_bytes(1) == most
    assert starts == {None: [0, 1, 2, 3], 2: [0, 1, 2, 3], 1: [0, 1, 4, 7]}


def test_too_few_slots_name_the_ranks_and_what_they_need() -> None:
    stage = StageCosts({"F": 1.0, "B": 1.0}, slots=3)
    schedule = generate("1f1b", ranks=4, micro_batches=8)
    with pytest.raises(IrcError) as error:
        simulate_schedule(schedule, Costs([stage]))
    assert error.value.code == "schedule-slots"
    assert "rank 0 waits for a slot that it would free itself later" in str(error.value)
    assert "saved values of stage 0 has 3 and needs 4 slots" in str(error.value)


def test_a_cycle_of_slots_names_both_ranks() -> None:
    """Rank 1 runs its second micro-batch first; with one slot the first is in its way."""
    ranks = [
        [Action(0, k, i) for k, i in (("F", 0), ("F", 1), ("B", 1), ("B", 0))],
        [Action(1, k, i) for k, i in (("F", 1), ("B", 1), ("F", 0), ("B", 0))],
    ]
    schedule = Schedule(tuple(map(tuple, ranks)), ((0, 1), (0, 1)))
    stage = StageCosts({"F": 1.0, "B": 1.0})
    with pytest.raises(IrcError) as error:
        simulate_schedule(schedule, Costs([stage], Transfer(num_bytes=1.0, slots=1)))
    text = str(error.value)
    assert "link from rank 0 to rank 1 and rank 1 wait for each other" in text
    assert "0F1 to 1 on link from rank 0 to rank 1 waits for a slot of inputs of stage 1" in text
    assert "inputs of stage 1 from 0 has 1 and needs 2 slots" in text
    assert simulate_schedule(schedule, Costs([stage], Transfer(num_bytes=1.0, slots=2))).seconds


def test_a_value_that_stays_on_its_rank_is_held_once() -> None:
    """The V of ZB-V turns on the last rank: from stage p-1 to p nothing is sent."""
    schedule = generate("zb-v", ranks=2, micro_batches=4)
    costs = Costs([StageCosts({"F": 1.0, "I": 1.0, "W": 1.0})], Transfer(1.0, 0.0, 1.0))
    simulation = simulate_schedule(schedule, costs)
    sent = {action.name.partition(" ")[0] for action in simulation.actions if " to " in action.name}
    assert not any(name.startswith("1F") for name in sent)
    assert simulation.slots("results of stage 1 for 2") == 1
    assert simulation.slots("inputs of stage 2 from 1") == 0


def large(name: str) -> tuple[float, Simulation]:
    """16 stages, 256 micro-batches, 16,384 ranks; the time that this process spent."""
    schedule = generate(name, ranks=16, micro_batches=256)
    stage = StageCosts(
        {"F": 1.0, "I": 1.0, "W": 1.0}, {"F": 3e6}, saved_bytes=5e6, kept_bytes=2e6,
        weight_bytes=1e8, reduce_seconds=3.0, update_seconds=1.0,
    )  # fmt: skip
    columns = columns_of(Mesh.parse("data=64,tensor=16"), {})
    begin = time.process_time()
    simulation = simulate_schedule(schedule, Costs([stage], Transfer(0.1, 0.02, 1e6)), columns)
    return time.process_time() - begin, simulation


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_16_stages_of_256_micro_batches_on_16384_ranks_take_a_second(name: str) -> None:
    _, simulation = large(name)
    assert len(simulation.actions) > 15_000
    assert simulation.slots("saved values of stage 0") == 16
    # In a process of its own: what other tests left in this one is no part of its time.
    program = (
        "from tests.simulate.test_schedule import large\n"
        f"print(min(large({name!r})[0] for _ in range(5)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 1.0
