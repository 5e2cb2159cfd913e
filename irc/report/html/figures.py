"""The figures of a plan that say the most in the least space: time, memory, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from irc.cluster.load import THIS_HOST, find_cluster, of_all_kinds
from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.plan.host import HostPlan
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan, placement_of
from irc.plan.training import trained_by
from irc.report.evidence import Evidence
from irc.report.parts_facts import PartsFactsReport
from irc.report.summary import weight_bytes
from irc.report.timing import Split, split
from irc.simulate.parts import all_held
from irc.simulate.schedule import Simulation
from irc.simulate.verdicts import verdict_of_parts


@dataclass(frozen=True)
class Figures:
    """What the head of a page says, and what two plans are held against each other by.

    Attributes:
        what: the kind of plan.
        mesh: axes and their sizes.
        cluster: for which the plan is priced.
        device: what its ranks are; empty where the cluster's file is not here.
        capacity: bytes of memory that a rank may use; None where that is not known.
        unit: ``call``, or ``step`` of training.
        seconds: of a call or step; None where nothing predicts it.
        items: how many ``tokens`` or ``samples`` it has, and which of both; None: not known.
        memory: bytes of the rank that holds most, by what they are.
        compute_s, communication_s, exposed_s: of a rank; None where they are not known.
        bubble: the share of a step in which ranks wait for other stages; None without stages.
    """

    what: str
    hash: str
    mesh: Mapping[str, int]
    cluster: str
    device: str
    capacity: int | None
    backend: str
    unit: str
    seconds: float | None
    items: tuple[int, str] | None
    memory: Sequence[tuple[str, int]]
    compute_s: float | None = None
    communication_s: float | None = None
    exposed_s: float | None = None
    bubble: float | None = None

    @property
    def mesh_text(self) -> str:
        """The mesh as people write it; empty of one device."""
        return " \N{MULTIPLICATION SIGN} ".join(f"{axis} {n}" for axis, n in self.mesh.items())

    @property
    def ranks(self) -> int:
        """How many ranks run the plan."""
        return prod(self.mesh.values())

    @property
    def held_bytes(self) -> int:
        """What the fullest rank holds."""
        return sum(size for _, size in self.memory)

    @property
    def items_per_s(self) -> float | None:
        """Tokens or samples a second, on all ranks together."""
        return self.items[0] / self.seconds if self.items and self.seconds else None


def cluster_of(name: str) -> Cluster | None:
    """Return the cluster of a plan; None where it was read from a file that is not here."""
    try:
        return find_cluster(name or THIS_HOST)
    except IrcError:
        return None


def figures_of(evidence: Evidence) -> Figures:
    """Return the figures of a plan of one program."""
    return figures_of_one(evidence.loaded, evidence.cluster)


def figures_of_one(loaded: LoadedPlan, cluster_name: str) -> Figures:
    """Return the figures of a plan of one program, of which no IR is read.

    Args:
        loaded: the plan.
        cluster_name: for which it is priced.
    """
    plan, time = loaded.plan, split(loaded.plan)
    cluster = cluster_of(cluster_name)
    device = None if cluster is None else cluster.fit(plan.device_mesh).device
    return Figures(
        "one program",
        loaded.hash,
        dict(plan.device_mesh.axes),
        cluster_name,
        device.name if device else "",
        device.memory_bytes if device else None,
        plan.backend,
        "step" if trained_by(plan) else "call",
        time.total_s,
        items_of(plan),
        memory_of(plan),
        *_parts_of(time),
    )


def _parts_of(time: Split) -> tuple[float, float, float]:
    return time.compute_s, time.communication_s, time.exposed_s


def memory_of(plan: Plan) -> list[tuple[str, int]]:
    """Return what a rank of a plan of one program holds, by what it is."""
    passed = [plan.buffers[index] for index in plan.inputs]
    passed += [buffer for buffer in plan.buffers if buffer.storage == "output"]
    rows = [
        ("weights and states", weight_bytes(plan)),
        ("prepared of weights", plan.prepared_bytes),
        ("inputs and outputs", sum(buffer.size_bytes for buffer in passed)),
        ("arena", plan.arena_bytes),
    ]
    return [(name, size) for name, size in rows if size]


def items_of(plan: Plan) -> tuple[int, str] | None:
    """Return how many tokens a call reads: of the first input of indices with a dim of positions.

    Of other inputs, the samples of the first: its first dim.
    """
    inputs = [plan.buffers[index] for index in plan.inputs]
    whole = [
        tuple(
            length * prod(plan.device_mesh.size(axis) for axis in placement.split_axes(dim))
            for dim, length in enumerate(buffer.shape)
        )
        for buffer in inputs
        for placement in (placement_of(buffer),)
    ]
    for buffer, shape in zip(inputs, whole, strict=True):
        if buffer.dtype in ("i64", "i32") and len(shape) == 2:
            return prod(shape), "tokens"
    batches = [shape[0] for shape in whole if len(shape) > 1]
    return (batches[0], "samples") if batches else None


def figures_of_parts(plan: PartsPlan, facts: PartsFactsReport, step: Simulation) -> Figures:
    """Return the figures of a plan of several programs, of which a step is simulated."""
    name = next(iter(plan.parts[0].values())).plan.cluster or THIS_HOST
    whole_cluster = cluster_of(name)
    cluster = None if whole_cluster is None else whole_cluster.fit(plan.mesh)
    verdict = None if cluster is None else verdict_of_parts(plan, cluster, step)
    held = max(all_held(plan), key=lambda each: each.num_bytes())
    memory = [
        ("weights and states", int(held.weights)),
        ("registers", int(sum(count * size for count, size in held.registers.values()))),
        ("arena", int(held.arena)),
    ]
    one = items_of(plan.parts[0]["F"].plan)
    items = None if one is None else (one[0] * plan.num_micro_batches, one[1])
    return Figures(
        "stages in a pipeline",
        plan.hash,
        dict(plan.mesh.axes),
        of_all_kinds(name),
        cluster.device.name if cluster else "",
        cluster.device.memory_bytes if cluster else None,
        plan.backend,
        "step",
        facts.predicted_s,
        items,
        [(what, size) for what, size in memory if size],
        exposed_s=verdict.exposed_s if verdict else None,
        bubble=verdict.bubble if verdict else None,
    )


def figures_of_host(plan: HostPlan) -> Figures:
    """Return the figures of a host program: how often its regions run is for values to say."""
    planned = [region.plan for region in plan.regions.values()]
    names = {p.buffers[i].name: p.buffers[i].size_bytes for p in planned for i in p.weights}
    cluster = cluster_of(THIS_HOST)
    memory = [
        ("weights of regions", sum(names.values())),
        ("arena of the largest region", max((p.arena_bytes for p in planned), default=0)),
    ]
    return Figures(
        "a host program and regions",
        plan.hash,
        {},
        THIS_HOST,
        cluster.device.name if cluster else "",
        cluster.device.memory_bytes if cluster else None,
        "cpu",
        "call",
        None,
        None,
        [(what, size) for what, size in memory if size],
    )
