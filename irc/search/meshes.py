"""The shape of the mesh: every way to arrange the devices on one to three axes, ranked.

The mesh whose axes are the cluster's own levels is planned in full. What its ops do along an axis
are then the *ways* (`irc.search.options`) from which the axes of the other meshes choose, so that
each takes a fraction of the time; ways that win somewhere are kept for the meshes after it.

Meshes of one and two axes are a line, by the size of the inner axis. The search walks it from the
cluster's own mesh both ways, and a way ends at a mesh whose bound is far behind the best, or that
holds no plan where another one did. A mesh of three axes refines two of two axes, which share its
plans but for launches: it is tried in the order of the better of them, not at all where both are
far behind, and no longer where several in a row were no better. A winner of one or two axes is
planned in full again. Nothing depends on a clock, and a mesh that is not planned says why.

Plans are searched with compute and communication added up, of which a step hides most. So the
meshes whose plans are near the best are compared by their simulated steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, prod

from xdsl.dialects.builtin import ModuleOp

from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.dialects.flow import FlowOp
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.facts import Facts
from irc.search.graph import Wishes
from irc.search.on_mesh import search
from irc.search.options import Key, Way, Ways, ways_of
from irc.search.relaxation import Worse
from irc.search.solved import Plan, Shortage, TooSmall

NAMES = (("data",), ("data", "tensor"), ("data", "context", "tensor"))
"""Names of the axes, outermost first; the search gives them their meaning."""

FAR = 1.05
"""A mesh of three axes is not tried where both that it refines take so many times the best."""

MAX_NEAR = 3
"""So many plans are kept, to be simulated."""

MAX_FINE = 3
MAX_VAIN = 2
"""So many meshes of three axes are tried, and so many in a row that are no better end it."""


@dataclass(frozen=True)
class Tried:
    """One mesh of the search.

    Attributes:
        mesh: its axes.
        seconds: of its plan, added up; infinite where there is none.
        step_s: of its simulated step; None where that was not asked for, or the plan is not near
            the best.
        num_bytes: what a device holds at the worst moment.
        gap: between the plan and the bound.
        is_full: every signature was looked at, not only the ways that won elsewhere.
        note: why there is no plan.
        is_tried: it was planned, or a bound or the memory ended that; otherwise it was left out.
    """

    mesh: Mesh
    seconds: float = inf
    num_bytes: int = 0
    gap: float = 0.0
    is_full: bool = False
    note: str = ""
    is_tried: bool = True
    step_s: float | None = None


@dataclass(frozen=True)
class Ranking:
    """All meshes, best first, and the plan of the best: of the simulated ones, then of others."""

    tried: tuple[Tried, ...]
    plan: Plan
    cost: ClusterCost


def factorisations(devices: int, most: int = 3) -> list[Mesh]:
    """Return all meshes of a number of devices on one to ``most`` axes of two ranks and more.

    >>> [str(mesh) for mesh in factorisations(8)][:4]
    ['data=8', 'data=2,tensor=4', 'data=4,tensor=2', 'data=2,context=2,tensor=2']
    """
    meshes: list[Mesh] = []
    for number in range(1, most + 1):
        meshes += [
            Mesh(tuple(zip(NAMES[number - 1], sizes, strict=True)))
            for sizes in _factors(devices, number)
        ]
    return meshes


def _factors(devices: int, number: int) -> Iterator[tuple[int, ...]]:
    if number == 1:
        if devices > 1:
            yield (devices,)
        return
    for first in range(2, devices // 2 + 1):
        if devices % first == 0:
            for rest in _factors(devices // first, number - 1):
                yield first, *rest


def _inner(mesh: Mesh) -> int:
    return mesh.axes[1][1] if len(mesh.axes) > 1 else 1


def _skew(mesh: Mesh) -> float:
    """Return how much larger one of the two outer axes is than the other."""
    (_, outer), (_, inner), *_ = mesh.axes
    return max(outer / inner, inner / outer)


def level_mesh(cluster: Cluster, devices: int) -> Mesh:
    """Return the mesh whose axes are the levels of a cluster, two at most: nodes, and devices.

    >>> from irc.cluster.presets import PRESETS
    >>> str(level_mesh(PRESETS["8x8xH100"], 64))
    'data=8,tensor=8'
    """
    inside = [link.devices for link in cluster.links if link.devices < devices]
    inside = [size for size in inside if size > 1 and devices % size == 0]
    if not inside:
        return Mesh((("data", devices),))
    return Mesh((("data", devices // inside[0]), ("tensor", inside[0])))


def coarser(mesh: Mesh) -> list[Mesh]:
    """Return the meshes that one refines: those with two neighbouring axes as one.

    >>> [str(mesh) for mesh in coarser(Mesh.parse("data=2,context=3,tensor=5"))]
    ['data=6,tensor=5', 'data=2,tensor=15']
    """
    sizes = [size for _, size in mesh.axes]
    joined = [[*sizes[:i], a * b, *sizes[i + 2 :]] for i, (a, b) in enumerate(pairwise(sizes))]
    return [Mesh(tuple(zip(NAMES[len(s) - 1], s, strict=True))) for s in joined]


def search_meshes(
    module: ModuleOp,
    cluster: Cluster,
    devices: int,
    wishes: Wishes,
    *,
    node_limit: int = 10_000,
    max_fine: int = MAX_FINE,
    step_s: Callable[[Plan], float | None] | None = None,
) -> Ranking:
    """Find the best mesh of a number of devices, and its plan.

    Args:
        module: level flow.
        cluster: the machines.
        devices: how many of their devices to use.
        wishes: what the user fixes, on any mesh.
        node_limit: branch-and-bound nodes for each mesh.
        max_fine: so many meshes of three axes are tried.
        step_s: simulates the step of a plan (`irc.simulate.choice.step_seconds`), by which meshes
            near the best are compared; None: by seconds added up.

    Raises:
        IrcError: ``sharding-infeasible``, where no mesh has a plan that fits.
    """
    return _MeshSearch(module, cluster, wishes, node_limit, max_fine, step_s).run(devices)


def _rank(tried: Tried) -> tuple[bool, float, int]:
    step_s = tried.step_s
    return step_s is None, tried.seconds if step_s is None else step_s, len(tried.mesh.axes)


@dataclass
class _MeshSearch:
    module: ModuleOp
    cluster: Cluster
    wishes: Wishes
    node_limit: int
    max_fine: int
    step_s: Callable[[Plan], float | None] | None = None
    near: list[tuple[float, Plan, ClusterCost]] = field(
        default_factory=list[tuple[float, Plan, ClusterCost]]
    )
    tried: dict[str, Tried] = field(default_factory=dict[str, Tried])
    ways: dict[Key, frozenset[Way]] = field(default_factory=dict[Key, "frozenset[Way]"])
    best: tuple[float, Plan, ClusterCost] | None = None

    def __post_init__(self) -> None:
        self._facts = Facts(self.module)
        self._shortage = Shortage()

    def run(self, devices: int) -> Ranking:
        level = level_mesh(self.cluster, devices)
        every = factorisations(devices)
        self._walk(level, [mesh for mesh in every if len(mesh.axes) < 3])
        self._try_fine([mesh for mesh in every if len(mesh.axes) == 3])
        if self.best is None:
            raise self._nothing(devices)
        self._simulate()
        winner = self.best[2].mesh
        # Of three axes that takes longer than all the others together.
        if len(winner.axes) < 3 and not self.tried[str(winner)].is_full:
            self._try(winner, None)
            self._simulate()
        _, plan, cost = self.best
        order = sorted(self.tried.values(), key=_rank)
        return Ranking(tuple(order), plan, cost)

    def _simulate(self) -> None:
        """Make that plan near the best the best whose simulated step is shortest."""
        if self.step_s is None or self.best is None:
            return
        steps: list[tuple[float, int]] = []
        for number, (_, plan, cost) in enumerate(self.near):
            name = str(cost.mesh)
            step_s = self.tried[name].step_s
            if step_s is None:
                step_s = self.step_s(plan)
                self.tried[name] = replace(self.tried[name], step_s=step_s)
            if step_s is not None:
                steps.append((step_s, number))
        if steps:
            self.best = self.near[min(steps)[1]]

    def _keep(self, seconds: float, plan: Plan, cost: ClusterCost) -> None:
        """Keep a plan where it is near the best."""
        if self.step_s is None:
            return
        others = [each for each in self.near if each[2].mesh != cost.mesh]
        kept = sorted([*others, (seconds, plan, cost)], key=lambda each: each[0])
        limit = FAR * kept[0][0]
        self.near = [each for each in kept if each[0] <= limit][:MAX_NEAR]

    def _walk(self, level: Mesh, line: list[Mesh]) -> None:
        """Try the meshes of a line from one of them on, both ways."""
        line.sort(key=_inner)
        start = line.index(level)
        self._try(level, None)
        for way in (line[start + 1 :], line[:start][::-1]):
            before = level
            for number, mesh in enumerate(way):
                if number and self._is_hopeless(before):
                    self._skip(mesh, f"{before} next to it: {self.tried[str(before)].note}")
                else:
                    self._try(mesh, self.ways)
                before = mesh

    def _is_hopeless(self, mesh: Mesh) -> bool:
        """Return whether a mesh has no plan, or none near the best, where another mesh has one."""
        return self.best is not None and self.tried[str(mesh)].seconds > FAR * self.best[0]

    def _try_fine(self, meshes: list[Mesh]) -> None:
        """Try meshes of three axes, most promising first."""
        limit = FAR * (self.best[0] if self.best else inf)
        promise = {mesh: min(self.tried[str(m)].seconds for m in coarser(mesh)) for mesh in meshes}
        order = sorted(
            meshes, key=lambda mesh: (promise[mesh], -self._alignment(mesh), _skew(mesh))
        )
        number = vain = 0
        for mesh in order:
            if promise[mesh] > limit:
                self._skip(mesh, "the meshes that it refines are far behind")
            elif number >= self.max_fine or vain >= MAX_VAIN:
                self._skip(mesh, "others were more promising")
            else:
                best, number = self.best, number + 1
                self._try(mesh, self.ways)
                vain = 0 if self.best is not best else vain + 1

    def _alignment(self, mesh: Mesh) -> int:
        """Return how many levels of the cluster end where an axis does."""
        sizes = [size for _, size in mesh.axes]
        ends = {prod(sizes[i:]) for i in range(len(sizes))}
        return sum(link.devices in ends for link in self.cluster.links)

    def _skip(self, mesh: Mesh, note: str) -> None:
        self.tried[str(mesh)] = Tried(mesh, note=note, is_tried=False)

    def _try(self, mesh: Mesh, ways: Ways | None) -> None:
        cost = ClusterCost(self.cluster, mesh)
        # A plan in full replaces one of a few ways, also where it is no better.
        again = str(mesh) in self.tried
        beat_s = inf if self.best is None or again else self.best[0]
        if len(mesh.axes) < 3:
            # Those that refine it are tried where it is near the best.
            beat_s *= FAR
        try:
            plan = search(
                self.module,
                cost,
                self.wishes,
                node_limit=self.node_limit,
                beat_s=beat_s,
                facts=self._facts,
                ways=ways,
                shortage=self._shortage,
            )
        except TooSmall as error:
            note = f"no plan fits into {error.graph.problem.memory_bytes} bytes"
            self.tried[str(mesh)] = Tried(mesh, note=note)
            return
        except Worse as error:
            self.tried[str(mesh)] = Tried(mesh, note=str(error))
            return
        solution = plan.solution
        self.tried[str(mesh)] = Tried(
            mesh,
            solution.seconds,
            solution.num_bytes,
            solution.gap,
            is_full=ways is None,
        )
        self._keep(solution.seconds, plan, cost)
        self._learn(plan)
        if self.best is None or solution.seconds < self.best[0] or again:
            self.best = solution.seconds, plan, cost

    def _learn(self, plan: Plan) -> None:
        for op, (node, signatures) in plan.graph.ops.items():
            assert isinstance(op, FlowOp)
            chosen = signatures[plan.solution.choice[node]]
            key = self._facts.key(op)
            more = frozenset(ways_of(chosen, plan.graph.mesh.names))
            self.ways[key] = self.ways.get(key, frozenset()) | more

    def _nothing(self, devices: int) -> IrcError:
        return IrcError(
            "sharding-infeasible",
            f"no mesh of {devices} devices has a plan that fits",
            because=[f"{tried.mesh}: {tried.note}" for tried in self.tried.values()],
            help="use more devices, or plan on one mesh to see what needs the memory",
        )
