"""Predicting a plan: its actions on the streams of its ranks.

Each rank has a compute stream, each mesh axis a link that its group shares. A collective begins
when all ranks of its group have started it, and a wait ends when it has. On one host the ranks'
compute and transport share the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from irc.plan.schema import Call, Kernels, Library, Plan, Start, Step, Wait, touched
from irc.simulate.engine import SimAction, Timeline, simulate

StepSeconds: TypeAlias = Callable[[Step], float]

MAX_RANKS = 16
"""Beyond, one rank stands for all: they run the same program, and only sharing tells them apart."""

CORES = "cores"


@dataclass(frozen=True)
class Prediction:
    """A simulated call.

    Attributes:
        actions: what was simulated, as the engine has it.
        timeline: when each started and ended; its peaks are arena bytes in use by rank.
        ranks: how many ranks were simulated.
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
        """The most that one rank has alive in its arena."""
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
) -> Prediction:
    """Simulate one call of a plan.

    Args:
        plan: what every rank runs.
        seconds: the time of a step; of a collective, once all have started it.
        cores: of the host that all ranks share; None gives each its own.
        threads: of each rank: what it takes of the cores while it computes.
    """
    mesh = plan.device_mesh
    ranks = mesh.num_ranks if mesh.num_ranks <= MAX_RANKS else 1
    build = _Builder(plan, seconds, ranks, None if cores is None else CORES)
    for time, (position, step) in enumerate(build.steps):
        build.add(time, position, step)
    capacity = {} if cores is None else {CORES: cores / threads}
    made = tuple(build.actions)
    return Prediction(made, simulate(made, capacity), ranks)


def predicted_seconds(plan: Plan, *, cores: float | None = None, threads: int = 1) -> float:
    """Return the predicted time of a call, from the times that the plan's actions state."""
    return predict(plan, cores=cores, threads=threads).seconds


class _Builder:
    def __init__(self, plan: Plan, seconds: StepSeconds, ranks: int, shared: str | None) -> None:
        self.plan, self.seconds, self.ranks, self.shared = plan, seconds, ranks, shared
        self.actions: list[SimAction] = []
        self.collectives: dict[tuple[int, int], int] = {}
        self.steps = steps(plan)
        self.born, self.dies = _lives(plan, [step for _, step in self.steps])

    def add(self, time: int, position: int, step: Step) -> None:
        match step:
            case Start():
                self._collective(time, position, step)
            case Wait():
                for rank in range(self.ranks):
                    end = self.collectives[step.start, rank]
                    self._on(rank, time, f"wait {step.id}", 0.0, (end,))
            case _:
                for rank in range(self.ranks):
                    self._on(rank, time, label(self.plan, step), self.seconds(step), ())

    def _on(self, rank: int, time: int, name: str, seconds: float, after: tuple[int, ...]) -> int:
        pool = f"rank {rank}"
        self.actions.append(
            SimAction(
                name,
                f"rank {rank} compute",
                seconds,
                after,
                self.shared if seconds else None,
                ((pool, self.born.get(time, 0)),),
                ((pool, self.dies.get(time, 0)),),
            )
        )
        return len(self.actions) - 1

    def _collective(self, time: int, position: int, start: Start) -> None:
        axis = start.attrs["axis"]
        issued = {
            rank: self._on(rank, time, f"start {start.id}", 0.0, ()) for rank in range(self.ranks)
        }
        whole = self.ranks == self.plan.device_mesh.num_ranks
        groups = self.plan.device_mesh.groups(axis) if whole else [[0]]
        for group in groups:
            self.actions.append(
                SimAction(
                    label(self.plan, start),
                    f"link {axis} of ranks {group[0]}..{group[-1]}",
                    self.seconds(start),
                    tuple(issued[rank] for rank in group),
                    self.shared,
                )
            )
            for rank in group:
                self.collectives[position, rank] = len(self.actions) - 1


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
