"""Predicting plans."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.interference import Interference
from irc.cluster.ports import Ports
from irc.cluster.presets import PRESETS
from irc.dialects import comm
from irc.dialects.placement import Mesh
from irc.plan.schema import Plan, Start, Step, Wait
from irc.simulate.actions import Cores, SimAction
from irc.simulate.engine import simulate
from irc.simulate.plan import SHARED, Contention, StepSeconds, label, predict, steps
from tests.plan.programs import Task, build_plan, mlp, sharded

SHARDED = build_plan(sharded(), seconds=lambda _: 1.0)


def overlapping(between: int):
    """A collective of 3 s with ``between`` launches of 1 s before its wait, and one after."""
    t = Task("data=2")
    x = t.argument("input", "x", (16,))
    pending = t.start(comm.AllReduceOp, x, (16,), axis="data", fn="sum")
    y = x
    for _ in range(between):
        y = t.pointwise("neg", y)
    z = t.pointwise("add", t.wait(pending), y)
    return build_plan(t.finish(z), seconds=lambda op: 3.0 if op.name == "comm.all_reduce" else 1.0)


@pytest.mark.parametrize(("between", "seconds"), [(0, 4), (1, 4), (3, 4), (5, 6)])
def test_overlap_hides_the_shorter(between: int, seconds: float) -> None:
    assert predict(overlapping(between)).seconds == seconds


def test_ranks_that_share_cores_slow_each_other_down() -> None:
    plan = overlapping(3)
    assert predict(plan, contention=Contention(Cores(8))).seconds == 4.0
    # Two cores: a core of each rank computes or moves bytes; 3 s of both take 6, and 1 s is left.
    assert predict(plan, contention=Contention(Cores(2))).seconds == pytest.approx(7.0)
    # One core: 2 ranks x 4 launches + one collective of 3, all of it in turn.
    assert predict(plan, contention=Contention(Cores(1))).seconds == pytest.approx(11.0)


def test_what_overlaps_on_a_device_slows_each_other_down() -> None:
    """Compute at half, the link at a third of its speed: 3 launches in 6 s, then 1 s is left."""
    table = Interference.of([{"compute": 2.0, "link": 3.0}, {"compute": 1.0, "nic": 1.5}])
    plan = overlapping(3)
    assert predict(plan, contention=Contention(table)).seconds == pytest.approx(6 + 1 + 1)
    between = Contention(table, {"data": "nic"})
    assert predict(plan, contention=between).seconds == pytest.approx(3 + 1 + 1)
    # Without a row, they run as alone.
    assert predict(plan, contention=Contention(table, {"data": "d2h"})).seconds == 4.0


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [({}, 5.0), ({"data": "nic"}, 3.0), ({"data": "nic", "tensor": "nic"}, 5.0)],
)
def test_two_axes_share_a_port(kinds: dict[str, str], seconds: float) -> None:
    """Collectives of 3 s and 2 s: over links of a node, over two ports, and both over a network."""
    t = Task("data=2,tensor=2")
    x = t.argument("input", "x", (16,))
    pending = [
        t.start(comm.AllReduceOp, x, (16,), axis=axis, fn="sum") for axis in ("data", "tensor")
    ]
    z = t.pointwise("add", *map(t.wait, pending))
    takes = {"data": 3.0, "tensor": 2.0}
    plan = build_plan(t.finish(z), seconds=lambda op: takes.get(op.plain.get("axis", ""), 0.0))
    assert predict(plan, contention=Contention(Ports(), kinds)).seconds == pytest.approx(seconds)


def test_contention_of_a_cluster() -> None:
    mesh = Mesh.parse("data=2,tensor=8")
    kinds = Contention.of(PRESETS["2x8xA100"], mesh).kinds
    assert kinds == {"data": "nic", "tensor": "link"}
    # On a host of two cores four ranks of one thread want twice as many as there are.
    host = Contention.of(PRESETS["this-host"], Mesh.parse("data=4"))
    assert host == Contention(Cores(2.0))
    assert Contention.of(PRESETS["this-host"], Mesh.parse("data=2"), 4) == host


def test_the_peak_is_within_the_arena() -> None:
    for module in (mlp(), sharded()):
        plan = build_plan(module, seconds=lambda _: 1e-3)
        prediction = predict(plan)
        assert 0 < prediction.peak_bytes <= plan.arena_bytes


def test_a_large_mesh_is_one_rank() -> None:
    t = Task("data=512")
    x = t.argument("input", "x", (16,))
    y = t.collective(comm.AllReduceOp, x, (16,), axis="data", fn="sum")
    plan = build_plan(t.finish(y), seconds=lambda _: 2.0)
    prediction = predict(plan)
    assert (prediction.ranks, prediction.seconds, len(prediction.actions)) == (512, 2.0, 3)


def test_many_ranks_share_the_cores_of_a_host() -> None:
    """Two launches on 32 ranks of one core each take 16 times as long on two cores."""
    t = Task("data=32")
    x = t.argument("input", "x", (16,))
    y = t.pointwise("neg", t.pointwise("neg", x))
    plan = build_plan(t.finish(y), seconds=lambda _: 1.0)
    assert predict(plan).seconds == 2.0
    assert predict(plan, contention=Contention(Cores(2))).seconds == 32.0


def enumerated(plan: Plan, seconds: StepSeconds, cores: float | None) -> tuple[float, float]:
    """Simulate each rank and each group by itself: time, and the most one rank has alive.

    The groups that move something at a time were measured so, with all cores.
    """
    mesh, actions = plan.device_mesh, list[SimAction]()
    ends: dict[tuple[int, int], int] = {}
    alone = predict(plan, seconds)
    memory = {action.name: (action.allocates, action.frees) for action in alone.actions}

    def on(rank: int, name: str, takes: float, after: tuple[int, ...] = ()) -> int:
        born, dies = (tuple((f"{rank}", n) for _, n in each) for each in memory[name])
        shared = SHARED if takes and cores is not None else None
        actions.append(SimAction(name, f"rank {rank}", takes, after, shared, born, dies))
        return len(actions) - 1

    for position, step in steps(plan):
        for rank in range(mesh.num_ranks):
            if isinstance(step, Wait):
                on(rank, f"wait {step.id}", 0.0, (ends[step.start, rank],))
            elif isinstance(step, Start):
                ends[position, rank] = on(rank, f"start {step.id}", 0.0)
            else:
                on(rank, label(plan, step), seconds(step))
        if isinstance(step, Start):
            groups = list(mesh.groups(step.attrs["axis"]))
            weight = min(cores or inf, mesh.num_ranks) / len(groups)
            for group in groups:
                issued = tuple(ends[position, rank] for rank in group)
                shared = SHARED if cores is not None else None
                stream = f"link {step.attrs['axis']} {group[0]}"
                moved = SimAction(step.id, stream, seconds(step), issued, shared, weight=weight)
                actions.append(moved)
                ends.update({(position, rank): len(actions) - 1 for rank in group})
    timeline = simulate(actions, {} if cores is None else {SHARED: Cores(cores)})
    return timeline.seconds, max(timeline.peak.values())


@given(st.lists(st.floats(0, 9), min_size=8, max_size=8), st.sampled_from([None, 1.0, 3.0, 5.5]))
@settings(max_examples=60, deadline=None)
def test_one_rank_stands_for_all(times: list[float], cores: float | None) -> None:
    plan = SHARDED

    def seconds(step: Step) -> float:
        return times[plan_steps.index(step) % len(times)]

    plan_steps = [step for _, step in steps(plan)]
    folded = predict(plan, seconds, Contention(None if cores is None else Cores(cores)))
    every = enumerated(plan, seconds, cores)
    assert folded.seconds == pytest.approx(every[0], rel=1e-9)
    assert folded.peak_bytes == every[1]


def test_a_launch_is_a_step_of_its_own() -> None:
    prediction = predict(build_plan(mlp(), seconds=lambda _: 1.0))
    assert prediction.seconds == 8.0
    assert [a.name for a in prediction.actions][:2] == ["matmul_5x9x6 n0/n0", "relu_5x9 n0/n1"]


@pytest.mark.parametrize(("attrs", "seconds"), [
    ({}, 7),
    ({"bucket": "b", "bucket_size": 2, "bucket_bytes": 128}, 8),
])  # fmt: skip
def test_a_wait_is_for_all_of_a_bucket(attrs: dict[str, object], seconds: float) -> None:
    """Two of 3 s, one behind the other; what the first gives is read at once, for 1 s."""
    t = Task("data=2")
    x = t.argument("input", "x", (16,))
    first, second = (
        t.start(comm.AllReduceOp, x, (16,), axis="data", fn="sum", **attrs) for _ in range(2)
    )
    y = t.pointwise("neg", t.wait(first))
    z = t.pointwise("add", t.wait(second), y)
    plan = build_plan(t.finish(z), seconds=lambda op: 3.0 if op.name == "comm.all_reduce" else 1.0)
    assert predict(plan).seconds == seconds
