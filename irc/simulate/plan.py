"""Predicting a plan: its actions on the streams of a rank.

All ranks run the same text at the same time, so one stands for them: with a compute stream, and a
link for each mesh axis that its group shares. A collective begins when it is started, and a wait
ends when it has, with all of its bucket. What overlaps is not free: on one host the ranks' compute
and transport share the cores, since each rank's messages are copied by a core too; on a device they
slow each other down as its table says
(`irc.cluster.interference`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from irc.cluster.ports import Ports
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.plan.schema import Call, Kernels, Library, Plan, Start, Step, Wait, touched
from irc.simulate.actions import Cores, Resource, SimAction, Timeline
from irc.simulate.engine import simulate

StepSeconds: TypeAlias = Callable[[Step], float]

SHARED = "shared"


@dataclass(frozen=True)
class Contention:
    """What the streams of a rank share.

    Attributes:
        resource: of all of them; None where each runs as if alone.
        kinds: of what a collective uses, by mesh axis: ``link`` or ``nic``; two axes of one kind
            share a port of the device.
        threads: of a host's cores, those that a rank computes with.
    """

    resource: Resource | None = None
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    threads: int = 1

    @staticmethod
    def of(cluster: Cluster, mesh: Mesh, ranks: int | None = None) -> Contention:
        """Return that of the ranks of a mesh: a host's cores, or the table of a device.

        Args:
            cluster: that they are on.
            mesh: of a plan.
            ranks: that share the cores, where other plans run beside that one: with its own.
        """
        device = cluster.device
        if device.cores:
            threads = device.threads(mesh.num_ranks if ranks is None else ranks)
            return Contention(Cores(device.cores / threads), threads=threads)
        kinds = {
            axis: "nic" if cluster.crosses_nodes(mesh, axis) else "link" for axis in mesh.names
        }
        return Contention(Ports(device.interference), kinds)

    def weight(self, ranks: int) -> float:
        """Return for how many an action counts that so many ranks do at a time.

        Each wants cores of a host; a device has only its own.
        """
        return ranks if isinstance(self.resource, Cores) else 1

    def weight_of_messages(self, ranks: int) -> float:
        """Return for how many a collective counts in which so many ranks are.

        Each sends and receives with one core. The time of a collective was measured with as many as
        there are, so that it is no longer for them alone.
        """
        if not isinstance(self.resource, Cores):
            return 1
        return min(self.resource.count, ranks / self.threads)


@dataclass(frozen=True)
class Prediction:
    """A simulated call.

    Attributes:
        actions: what was simulated, as the engine has it.
        timeline: when each started and ended; its peak is arena bytes in use.
        ranks: how many ranks do the same at the same time.
    """

    actions: tuple[SimAction, ...]
    timeline: Timeline
    ranks: int

    @property
    def seconds(self) -> float:
        """Predicted time of a call."""
        return self.timeline.seconds

    @property
    def peak_bytes(self) -> float:
        """The most that a rank has alive in its arena."""
        return max(self.timeline.peak.values(), default=0.0)


def stated_seconds(step: Step) -> float:
    """Return the time that the plan states for a step; nothing where it states none."""
    return 0.0 if isinstance(step, Wait) else step.seconds or 0.0


def predict(
    plan: Plan,
    seconds: StepSeconds = stated_seconds,
    contention: Contention = Contention(),
    *,
    ranks: int | None = None,
) -> Prediction:
    """Simulate one call of a plan.

    Args:
        plan: what every rank runs.
        seconds: the time of a step; of a collective, once all have started it.
        contention: what its streams share; by default each runs as if alone.
        ranks: that share the cores, where other plans run beside this one: with its own.
    """
    build = _Builder(plan, seconds, contention, ranks)
    for time, (position, step) in enumerate(build.steps):
        build.add(time, position, step)
    resources = {} if contention.resource is None else {SHARED: contention.resource}
    actions = tuple(build.actions)
    return Prediction(actions, simulate(actions, resources), build.ranks)


class _Builder:
    def __init__(
        self, plan: Plan, seconds: StepSeconds, contention: Contention, ranks: int | None
    ) -> None:
        self.plan, self.seconds, self.contention = plan, seconds, contention
        self.ranks = plan.device_mesh.num_ranks if ranks is None else ranks
        self.actions: list[SimAction] = []
        # Actions on links that a wait comes after, by position of the start: all of a bucket.
        self.collectives: dict[int, list[int]] = {}
        self.buckets: dict[str, list[int]] = {}
        self.steps = steps(plan)
        self.born, self.dies = _lives(plan, [step for _, step in self.steps])

    def add(self, time: int, position: int, step: Step) -> None:
        match step:
            case Start():
                self._collective(time, position, step)
            case Wait():
                self._on(time, f"wait {step.id}", 0.0, tuple(self.collectives[step.start]))
            case _:
                self._on(time, label(self.plan, step), self.seconds(step), ())

    def _on(self, time: int, name: str, seconds: float, after: tuple[int, ...]) -> int:
        self.actions.append(
            SimAction(
                name,
                "compute",
                seconds,
                after,
                SHARED if seconds else None,
                (("arena", self.born.get(time, 0)),),
                (("arena", self.dies.get(time, 0)),),
                weight=self.contention.weight(self.ranks),
            )
        )
        return len(self.actions) - 1

    def _collective(self, time: int, position: int, start: Start) -> None:
        axis = start.attrs["axis"]
        issued = self._on(time, f"start {start.id}", 0.0, ())
        self.actions.append(
            SimAction(
                label(self.plan, start),
                f"link {axis}",
                self.seconds(start),
                (issued,),
                SHARED,
                weight=self.contention.weight_of_messages(self.ranks),
                kind=self.contention.kinds.get(axis, "link"),
            )
        )
        self.collectives[position] = self._together(start, len(self.actions) - 1)

    def _together(self, start: Start, index: int) -> list[int]:
        """Return the actions of a bucket, which will be all of them when its last has started."""
        if (name := start.attrs.get("bucket")) is None:
            return [index]
        members = self.buckets.setdefault(name, [])
        members.append(index)
        if len(members) == start.attrs["bucket_size"]:
            del self.buckets[name]
        return members


def steps(plan: Plan) -> list[tuple[int, Step]]:
    """Return the actions of a plan, launches one by one, each with its action's position."""
    numbered: list[tuple[int, Step]] = []
    for position, action in enumerate(plan.actions):
        parts = action.calls if isinstance(action, Kernels) else (action,)
        numbered += [(position, part) for part in parts]
    return numbered


def label(plan: Plan, step: Step) -> str:
    """Name a step by what it runs and its id."""
    return f"{op_of(plan, step)} {step.id}"


def op_of(plan: Plan, step: Step) -> str:
    """Return what a step runs: a kernel, an op of a library, a collective, a copy."""
    match step:
        case Call():
            return plan.kernels[step.kernel].name
        case Library() | Start():
            return step.op
        case _:
            return step.kind


def lifetimes(plan: Plan, order: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """Return for each buffer of the arena the positions of the first and last step that touch it.

    Args:
        plan: whose buffers they are.
        order: its steps, as :func:`steps` has them.
    """
    spans: dict[int, tuple[int, int]] = {}
    for time, step in enumerate(order):
        for index in touched(step, plan.actions):
            root = plan.root(index)
            if plan.buffers[root].storage == "arena":
                first, _ = spans.get(root, (time, time))
                spans[root] = (first, time)
    return spans


def _lives(plan: Plan, order: Sequence[Step]) -> tuple[dict[int, int], dict[int, int]]:
    """Return arena bytes born and dying at each step."""
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    for root, (first, last) in lifetimes(plan, order).items():
        size = plan.buffers[root].size_bytes
        born[first] = born.get(first, 0) + size
        dies[last] = dies.get(last, 0) + size
    return born, dies
