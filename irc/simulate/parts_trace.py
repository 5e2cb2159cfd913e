"""A predicted step of a plan of several programs as a trace: functions with what they consist of.

The simulator runs a function as one action, and a rank of each place of the pipe axis. Here each
function is opened, and each rank drawn. Before a function a rank waits: for a value to be made, as
long as that is not on its way (a bubble), and then for the value itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from irc.cluster.topology import Cluster
from irc.plan.parts import PartsPlan
from irc.schedule.actions import Action, computed
from irc.simulate.actions import SimAction
from irc.simulate.call_trace import call_events, drawn_of
from irc.simulate.held import held_bytes
from irc.simulate.parts import OF_MICRO_BATCHES, contention_of, transfer_bytes
from irc.simulate.plan import Contention, Prediction, StepSeconds, predict, stated_seconds
from irc.simulate.schedule import Simulation
from irc.simulate.step_events import waited, where_of
from irc.trace.form import (
    BUBBLE,
    COMPUTE,
    SCHEDULE,
    TRANSFER,
    Held,
    Label,
    Trace,
    TraceEvent,
    Where,
)


def step_trace(
    plan: PartsPlan,
    simulation: Simulation,
    cluster: Cluster,
    seconds: StepSeconds = stated_seconds,
) -> Trace:
    """Return a predicted step.

    Args:
        plan: of several programs.
        simulation: its simulation.
        cluster: that it was simulated on.
        seconds: what that was simulated with.
    """
    step = _Step(plan, simulation, contention_of(plan, cluster), seconds)
    events: list[TraceEvent] = []
    held: list[Held] = []
    pools = list(held_bytes(simulation.actions, simulation.timeline))
    by_place = [
        [event for event in step.at(place) if event.end_s > event.begin_s]
        for place in range(len(plan.ranks))
    ]
    drawn, notes = drawn_of(plan.ranks, [len(own) for own in by_place])
    for place, ranks in enumerate(drawn):
        for rank in ranks:
            events += (event._replace(rank=rank) for event in by_place[place])
            held += (
                Held(rank, "registers and arena", at, size)
                for pool, at, size in pools
                if pool == f"rank {place}"
            )
    mesh = plan.mesh
    return Trace(
        "predicted", tuple(events), simulation.seconds, plan.hash, str(mesh), mesh.num_ranks,
        tuple(held), notes,
    )  # fmt: skip


def _moves(stream: str) -> str | None:
    return TRANSFER if stream.startswith("link") or " of rank " in stream else None


class _Step:
    def __init__(
        self,
        plan: PartsPlan,
        simulation: Simulation,
        contention: Contention,
        seconds: StepSeconds,
    ) -> None:
        self.plan, self.simulation = plan, simulation
        self.actions, self.timeline = simulation.actions, simulation.timeline

        @cache
        def predicted(part: int, kind: str) -> Prediction:
            return predict(plan.parts[part][kind].plan, seconds, contention)

        self.predicted = predicted

    def at(self, place: int) -> Iterator[TraceEvent]:
        """Yield the events of a rank at a place, as rank 0."""
        runs = {str(action): action for action in computed(self.plan.schedule.ranks[place])}
        stages = self.plan.parts_at(place)
        before = 0.0
        for index, action in enumerate(self.actions):
            begin, end = self.timeline.starts[index], self.timeline.ends[index]
            if action.stream == f"rank {place}":
                where = where_of(action.name, runs)
                yield from waited(self.actions, self.timeline, index, before, where, _moves)
                before = end
                if end > begin:
                    yield TraceEvent(0, SCHEDULE, "function", Label(action.name), begin, end, where)
                    yield from self._inside(action, runs, stages, (begin, end), where)
            elif action.stream.endswith(f" of rank {place}"):
                track = action.stream.partition(" ")[0]
                yield TraceEvent(0, track, "transfer", Label(action.name), begin, end)
        yield from self._carried(place)
        yield TraceEvent(
            0, COMPUTE, BUBBLE, Label("end of the step"), before, self.simulation.seconds
        )

    def _inside(
        self,
        action: SimAction,
        runs: dict[str, Action],
        stages: dict[int, int],
        span: tuple[float, float],
        where: Where,
    ) -> Iterator[TraceEvent]:
        """Yield what the functions of an action consist of, from its begin to its end."""
        assert where.stage is not None
        part = stages[where.stage]
        if (run := runs.get(action.name)) is not None:
            kinds = [self.plan.wiring.kind(run.kind, run.micro_batch)]
        else:
            kinds = [kind for kind in self.plan.parts[part] if kind not in OF_MICRO_BATCHES]
        calls = [(self.plan.parts[part][kind].plan, self.predicted(part, kind)) for kind in kinds]
        at, alone = span[0], sum(predicted.seconds for _, predicted in calls)
        slow = (span[1] - at) / alone if alone else 1.0
        for function, predicted in calls:
            yield from call_events(function, predicted, at, where, slow)
            at += slow * predicted.seconds

    def _carried(self, place: int) -> Iterator[TraceEvent]:
        """Yield the values that come to a place."""
        spans = {
            action.name: (self.timeline.starts[i], self.timeline.ends[i])
            for i, action in enumerate(self.actions)
            if action.stream.startswith("link")
        }
        for tape in self.plan.tapes:
            for event in tape.events:
                if event.what != "send" or event.route is None:
                    continue
                if self.plan.schedule.rank_of[event.peer] != place:
                    continue
                number, stage = event.action.micro_batch, event.action.stage
                name = f"{event.route.name} of micro-batch {number}"
                begin, end = spans[name]
                size = transfer_bytes(self.plan, event.route.name, stage, event.peer)
                label = Label(name, num_bytes=size)
                where = Where("", number, event.peer)
                if end > begin:
                    track = f"link from stage {stage}"
                    yield TraceEvent(0, track, "transfer", label, begin, end, where)
