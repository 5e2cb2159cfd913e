"""Predicting a plan: its actions on the streams of a rank.

All ranks run the same text at the same time, so one stands for them: with a compute stream, and a
link for each mesh axis that its group shares. A collective begins when it is started, and a wait
ends when it has. On one host the ranks' compute and transport share the cores: an action then
weighs as much as there are ranks, a collective as there are groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from irc.plan.schema import Call, Kernels, Library, Plan, Start, Step, Wait, touched
from irc.simulate.actions import SimAction, Timeline
from irc.simulate.engine import simulate

StepSeconds: TypeAlias = Callable[[Step], float]

CORES = "cores"


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
    *,
    cores: float | None = None,
    threads: int = 1,
    ranks: int | None = None,
) -> Prediction:
    """Simulate one call of a plan.

    Args:
        plan: what every rank runs.
        seconds: the time of a step; of a collective, once all have started it.
        cores: of the host that all ranks share; None gives each its own.
        threads: of each rank: what it takes of the cores while it computes.
        ranks: that share the cores, where other plans run beside this one: with its own.
    """
    build = _Builder(plan, seconds, None if cores is None else CORES, ranks)
    for time, (position, step) in enumerate(build.steps):
        build.add(time, position, step)
    capacity = {} if cores is None else {CORES: cores / threads}
    actions = tuple(build.actions)
    return Prediction(actions, simulate(actions, capacity), build.ranks)


def predicted_seconds(
    plan: Plan, *, cores: float | None = None, threads: int = 1, ranks: int | None = None
) -> float:
    """Return the predicted time of a call, from the times that the plan's actions state."""
    return predict(plan, cores=cores, threads=threads, ranks=ranks).seconds


class _Builder:
    def __init__(
        self, plan: Plan, seconds: StepSeconds, shared: str | None, ranks: int | None
    ) -> None:
        self.plan, self.seconds, self.shared = plan, seconds, shared
        self.ranks = plan.device_mesh.num_ranks if ranks is None else ranks
        self.actions: list[SimAction] = []
        self.collectives: dict[int, int] = {}
        self.steps = steps(plan)
        self.born, self.dies = _lives(plan, [step for _, step in self.steps])

    def add(self, time: int, position: int, step: Step) -> None:
        match step:
            case Start():
                self._collective(time, position, step)
            case Wait():
                self._on(time, f"wait {step.id}", 0.0, (self.collectives[step.start],))
            case _:
                self._on(time, label(self.plan, step), self.seconds(step), ())

    def _on(self, time: int, name: str, seconds: float, after: tuple[int, ...]) -> int:
        self.actions.append(
            SimAction(
                name,
                "compute",
                seconds,
                after,
                self.shared if seconds else None,
                (("arena", self.born.get(time, 0)),),
                (("arena", self.dies.get(time, 0)),),
                weight=self.ranks,
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
                self.shared,
                weight=self.ranks // self.plan.device_mesh.size(axis),
            )
        )
        self.collectives[position] = len(self.actions) - 1


def steps(plan: Plan) -> list[tuple[int, Step]]:
    """Return the actions of a plan, launches one by one, each with its action's position."""
    found: list[tuple[int, Step]] = []
    for position, action in enumerate(plan.actions):
        parts = action.calls if isinstance(action, Kernels) else (action,)
        found += [(position, part) for part in parts]
    return found


def label(plan: Plan, step: Step) -> str:
    """Name a step for a trace."""
    match step:
        case Call():
            return f"{plan.kernels[step.kernel].name} {step.id}"
        case Library() | Start():
            return f"{step.op} {step.id}"
        case _:
            return f"{step.kind} {step.id}"


def _lives(plan: Plan, order: Sequence[Step]) -> tuple[dict[int, int], dict[int, int]]:
    """Return arena bytes born and dying at each step."""
    spans: dict[int, tuple[int, int]] = {}
    for time, step in enumerate(order):
        for index in touched(step, plan.actions):
            root = plan.root(index)
            if plan.buffers[root].storage == "arena":
                first, _ = spans.get(root, (time, time))
                spans[root] = (first, time)
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    for root, (first, last) in spans.items():
        size = plan.buffers[root].size_bytes
        born[first] = born.get(first, 0) + size
        dies[last] = dies.get(last, 0) + size
    return born, dies
