"""What a choice of placements takes once it runs: collectives under compute, before any lowering.

A search adds up the seconds of ops and boxings. The plan that is made of its choice moves the
collectives at the edges of blocks to their callers, begins each as early as its operand is there,
and waits for it as late as it may (passes ``hoist-collectives`` and ``order``). Here the same is
done with the prices of the search alone, and says of each net how much of its boxings is left bare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from irc.dialects.placement import Mesh
from irc.schedule.overlap import Task, list_schedule
from irc.search.graph import Graph
from irc.search.solved import Plan
from irc.sharding.trees import Trees
from irc.simulate.actions import SimAction, Timeline
from irc.simulate.chosen_ops import Body, Collective, bodies
from irc.simulate.engine import simulate
from irc.simulate.plan import SHARED, Contention


@dataclass
class Bare:
    """The collectives of a net.

    Attributes:
        seconds: of all of them, each alone.
        bare_s: that they add to a call.
    """

    seconds: float = 0.0
    bare_s: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """A simulated choice.

    Attributes:
        seconds: of a call.
        compute_s: of all that is no collective.
        nets: what the boxings of nets add, by position; those without collectives are left out.
    """

    seconds: float
    compute_s: float
    nets: Mapping[int, Bare]


def step_seconds(plan: Plan, within: Mesh | None = None) -> float | None:
    """Return the simulated seconds of a call of a plan of one mesh.

    None where compute and communication add up: processes of one host take each other's cores, and
    a stage of a pipeline runs each of its functions in its own time.

    Args:
        plan: a choice of placements.
        within: the mesh of the whole run, where that of the plan is one stage's.
    """
    graph = plan.graph
    cluster = graph.options.cost.cluster
    if graph.facts.runs is not None or cluster.device.cores:
        return None
    contention = Contention.of(cluster, within or graph.mesh)
    return estimate(graph, plan.solution.choice, plan.trees, contention).seconds


def estimate(graph: Graph, choice: Sequence[int], trees: Trees, contention: Contention) -> Estimate:
    """Simulate a choice of a program that is no stage of a pipeline.

    Args:
        graph: the problem.
        choice: the option of each node.
        trees: the boxings of a value for all its readers.
        contention: what compute and collectives share.
    """
    known = bodies(graph, choice, trees)
    runs: dict[str, list[_Run]] = {}
    totals: dict[str, float] = {}
    for name, body in known.items():
        runs[name], totals[name] = _ordered(body, runs, totals)
    return _simulated(runs["forward"], contention)


@dataclass(frozen=True)
class _Run:
    """Something that is issued: compute, a collective, or a wait for the one of that number."""

    seconds: float = 0.0
    begins: Collective | None = None
    number: int = -1


def _ordered(
    body: Body, runs: Mapping[str, Sequence[_Run]], totals: Mapping[str, float]
) -> tuple[list[_Run], float]:
    """Return what a function issues, its calls written out, and the seconds of all of it."""
    tasks: list[Task] = []
    givers: dict[int, int] = {}  # by slot, the task that gives it
    items: list[int] = []
    for number, item in enumerate(body.items):
        after = tuple(dict.fromkeys(givers[slot] for slot in item.reads if slot in givers))
        collective = item.collective
        seconds = totals[item.callee] if item.callee else item.seconds
        axis = collective.axis if collective is not None else None
        tasks.append(Task(after, collective.seconds if collective is not None else seconds, axis))
        items.append(number)
        if collective is not None:
            tasks.append(Task((len(tasks) - 1,), waits_for=len(tasks) - 1))
            items.append(number)
        givers.update(dict.fromkeys(item.gives, len(tasks) - 1))
    issued: list[_Run] = []
    count = 0
    numbers: dict[int, int] = {}
    for position in list_schedule(tasks):
        item = body.items[items[position]]
        if item.callee:
            own = runs[item.callee]
            for run in own:
                number = run.number + count if run.number >= 0 else -1
                _issue(issued, _Run(run.seconds, run.begins, number))
            count += sum(run.begins is not None for run in own)
        elif item.collective is None:
            _issue(issued, _Run(item.seconds))
        elif tasks[position].waits_for is None:
            numbers[items[position]] = count
            _issue(issued, _Run(begins=item.collective, number=count))
            count += 1
        else:
            _issue(issued, _Run(number=numbers[items[position]]))
    return issued, sum(task.seconds for task in tasks)


def _issue(issued: list[_Run], run: _Run) -> None:
    """Append a run; compute behind compute is one."""
    if issued and run.number < 0 and issued[-1].number < 0:
        issued[-1] = _Run(issued[-1].seconds + run.seconds)
    else:
        issued.append(run)


@dataclass
class _Timed:
    """The actions of a call, and what each of them is."""

    actions: list[SimAction] = field(default_factory=list[SimAction])
    collectives: dict[int, tuple[int, Collective]] = field(
        default_factory=dict[int, tuple[int, Collective]]
    )
    last: int = -1

    def on_compute(self, seconds: float, after: tuple[int, ...] = ()) -> None:
        shared = SHARED if seconds else None
        self.actions.append(SimAction("", "compute", seconds, after, shared))
        self.last = len(self.actions) - 1

    def begin(self, number: int, collective: Collective, kind: str) -> None:
        after = (self.last,) if self.last >= 0 else ()
        stream = f"link {collective.axis}"
        self.actions.append(SimAction("", stream, collective.seconds, after, SHARED, kind=kind))
        self.collectives[number] = len(self.actions) - 1, collective


def _simulated(runs: Sequence[_Run], contention: Contention) -> Estimate:
    timed = _Timed()
    for run in runs:
        if run.begins is not None:
            timed.begin(run.number, run.begins, contention.kinds.get(run.begins.axis, "link"))
        elif run.number >= 0:
            timed.on_compute(0.0, (timed.collectives[run.number][0],))
        else:
            timed.on_compute(run.seconds)
    resources = {} if contention.resource is None else {SHARED: contention.resource}
    timeline = simulate(timed.actions, resources)
    compute = sum(run.seconds for run in runs)
    exposed = timeline.seconds - compute
    return Estimate(timeline.seconds, compute, _nets(timed, timeline, exposed))


def _nets(timed: _Timed, timeline: Timeline, exposed_s: float) -> dict[int, Bare]:
    """Share what a call takes beside its compute among nets.

    While compute waits, what runs on the link that it waits for is bare. What is left is compute
    that was slowed: shared by how long each collective was hidden.
    """
    bare = _waited_for(timed, timeline)
    nets: dict[int, Bare] = {}
    hidden: dict[int, float] = {}
    for position, collective in timed.collectives.values():
        own = nets.setdefault(collective.net, Bare())
        own.seconds += collective.seconds
        own.bare_s += bare.get(position, 0.0)
        span = timeline.ends[position] - timeline.starts[position] - bare.get(position, 0.0)
        hidden[collective.net] = hidden.get(collective.net, 0.0) + max(span, 0.0)
    slowed, total = exposed_s - sum(bare.values()), sum(hidden.values())
    if slowed > 0 and total > 0:
        for net, seconds in hidden.items():
            nets[net].bare_s += slowed * seconds / total
    return nets


def _waited_for(timed: _Timed, timeline: Timeline) -> dict[int, float]:
    """Return by collective the seconds in which it ran and compute waited on its link."""
    queues: dict[str, list[int]] = {}
    bare: dict[int, float] = {}
    free = 0.0
    for position, action in enumerate(timed.actions):
        if action.stream != "compute":
            queues.setdefault(action.stream, []).append(position)
            continue
        begin = timeline.starts[position]
        if begin > free:
            queue = queues[timed.actions[action.after[0]].stream]
            for running in reversed(queue):
                if timeline.ends[running] <= free:
                    break
                start, end = timeline.starts[running], timeline.ends[running]
                both = min(end, begin) - max(start, free)
                if both > 0:
                    bare[running] = bare.get(running, 0.0) + both
        free = timeline.ends[position]
    return bare
