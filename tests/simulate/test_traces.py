"""Traces of predictions: durations and order are those of the simulator, and all time is told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

import irc
from irc.cluster.presets import PRESETS
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.report.overlap import collectives
from irc.schedule.named import generate
from irc.simulate.call_trace import MOST_EVENTS, call_trace, drawn_of
from irc.simulate.columns import Column
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.parts import predict_step
from irc.simulate.parts_trace import step_trace
from irc.simulate.plan import Contention, predict, stated_seconds, steps
from irc.simulate.schedule import simulate_schedule
from irc.simulate.schedule_trace import schedule_trace
from irc.trace.form import SPENT, Trace
from irc.trace.spent import by_rank
from tests.simulate.test_command import Net
from tests.simulate.test_parts import planned


def check_form(trace: Trace) -> None:
    """No two events of a track overlap, and what ranks spend adds up to the step on each."""
    tracks: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in trace.events:
        tracks.setdefault((event.rank, event.track), []).append((event.begin_s, event.end_s))
        assert (event.kind in SPENT) == (event.track in ("compute", "host"))
        assert 0 <= event.begin_s < event.end_s <= trace.step_s * (1 + 1e-9)
    for own in tracks.values():
        assert all(a[1] <= b[0] * (1 + 1e-9) for a, b in pairwise(sorted(own)))
    for spent in by_rank(trace).values():
        assert sum(spent.values()) == pytest.approx(trace.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("mesh", "pin"), [("tensor=2", "tensor = S(1)"), ("data=2", "data = S(0)")]
)
def test_a_call_is_the_actions_of_the_simulator(tmp_path: Path, mesh: str, pin: str) -> None:
    irc.export_plan(Net().eval(), (torch.randn(8, 64),), out=tmp_path / "plan", mesh=mesh,
                    cluster="demo-gpus", pins=f'"x" = [{pin}]')  # fmt: skip
    loaded = load_plan(tmp_path / "plan")
    prediction = predict(
        loaded.plan, contention=Contention.of(PRESETS["demo-gpus"], loaded.plan.device_mesh)
    )
    assert prediction.seconds == loaded.plan.predicted_s
    trace = call_trace(loaded.plan, prediction, loaded.hash)
    check_form(trace)
    assert (trace.step_s, trace.plan, trace.mesh) == (prediction.seconds, loaded.hash, mesh)
    assert trace.drawn == (0, 1)
    own = [e for e in trace.events if e.rank == 0]
    spans = {(e.label.id, e.kind): (e.begin_s, e.end_s) for e in own}
    computes = [i for i, action in enumerate(prediction.actions) if action.stream == "compute"]
    for (_, step), index in zip(steps(loaded.plan), computes, strict=True):
        span = prediction.timeline.starts[index], prediction.timeline.ends[index]
        if span[1] > span[0]:
            assert spans[step.id, "kernel"] == span
            assert span[1] - span[0] == pytest.approx(stated_seconds(step))
    # What is bare is what the report of overlap says of it, with the line of the model.
    for row in collectives(loaded.plan):
        assert isinstance(row.start, Start)
        name = row.start.id.removesuffix(".start")
        begin, end = spans[name, "collective"]
        assert end - begin == pytest.approx(row.end_s - row.begin_s)
        bare = [e.seconds for e in own if (e.label.id, e.kind) == (name, "exposed collective")]
        assert sum(bare) == pytest.approx(row.bare_s)
        assert "test_command.py:" in next(e.label.line for e in own if e.label.id == name)


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ("pipe=2", "1f1b"),
        pytest.param("pipe=2,tensor=2", "zb-h1", marks=pytest.mark.slow),
        pytest.param("pipe=2,data=2", "interleaved:2", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_its_functions_opened(mesh: str, schedule: str) -> None:
    plan, _ = planned("gpt", mesh, schedule)
    prediction = predict_step(plan, PRESETS["8xH100"])
    trace = step_trace(plan, prediction, PRESETS["8xH100"])
    check_form(trace)
    assert trace.step_s == prediction.seconds
    assert trace.drawn == tuple(range(plan.mesh.num_ranks))
    for place, ranks in enumerate(plan.ranks):
        busy = prediction.busy(place)
        for rank in ranks:
            own = [e for e in trace.events if e.rank == rank]
            functions = [e for e in own if e.track == "schedule"]
            assert sum(e.seconds for e in functions) == pytest.approx(busy)
            names = [e.label.name for e in functions]
            tape = plan.tapes[place].events
            order = [str(event.action) for event in tape if event.what == "run"]
            assert [name for name in names if "update" not in name] == order
            # Each op is inside of its function, and has its micro-batch and stage.
            inside = [e for e in own if e.kind in ("kernel", "exposed collective")]
            assert sum(e.seconds for e in inside) == pytest.approx(busy)
            places = {(e.phase, e.where.micro_batch, e.where.stage) for e in inside}
            phases = {phase for phase, _, _ in places}
            assert phases == {"forward", "backward", "update"}
            assert all(stage is not None for _, _, stage in places)
            idle = by_rank(trace)[rank]
            rest = idle["bubble"] + idle["exposed transfer"]
            assert rest == pytest.approx(prediction.seconds - busy)
    sent = {a.name for a in prediction.actions if a.stream.startswith("link") and a.seconds}
    assert {e.label.name for e in trace.events if e.track.startswith("link from stage")} == sent
    assert all(e.label.num_bytes for e in trace.events if e.track.startswith("link"))


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_a_schedule_is_traced_in_the_same_form(name: str) -> None:
    simulation = simulate_schedule(
        generate(name, ranks=2, micro_batches=4),
        Costs(
            [StageCosts({"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}, reduce_seconds=3.0,
                        update_seconds=1.0, saved_bytes=8.0)],
            Transfer(0.5, 0.25),
        ),
        [Column(3), Column(1, {0: 2.0})],
    )  # fmt: skip
    trace = schedule_trace(simulation, "data=4")
    check_form(trace)
    assert trace.drawn == (0, 1, 2, 3)
    assert trace.notes == {
        "ranks": "each of the schedule is drawn for columns 0 (x3), columns 1 (x1)"
    }
    for place in range(2):
        for column in range(2):
            own = by_rank(trace)[2 * place + column]
            assert own["kernel"] == pytest.approx(simulation.busy(place, column))
            assert own["exposed collective"] > 0
    tracks = {(event.rank, event.track) for event in trace.events}
    assert {(0, "comm gradients"), (1, "link from rank 1"), (3, "schedule")} <= tracks
    assert {rank for rank, *_ in trace.held} == {0, 1, 2, 3}


def test_ranks_that_do_the_same_are_drawn_once_where_there_are_many() -> None:
    assert drawn_of([range(4)], [1000]) == ([(0, 1, 2, 3)], {})
    drawn, notes = drawn_of([range(8, 4096)], [1000])
    assert drawn == [(8,)]
    assert notes == {"drawn": "one rank of 4088 that do the same"}


def test_of_all_places_of_a_pipeline_as_many_ranks_are_drawn() -> None:
    """A place of few events would fit with all of its ranks, one of many would not."""
    places, fewest = [(0, 1), (2, 3)], MOST_EVENTS // 4
    assert drawn_of(places, [fewest, fewest])[0] == places
    assert drawn_of(places, [fewest, 2 * fewest])[0] == [(0,), (2,)]
    assert drawn_of([(0,), (1,)], [MOST_EVENTS, MOST_EVENTS]) == ([(0,), (1,)], {})
