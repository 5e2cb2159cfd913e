"""Facts of a plan of several programs: stages, functions, registers, channels, its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from irc.cluster.load import THIS_HOST, find_cluster, of_all_kinds
from irc.dialects.placement import Placement
from irc.plan.load import LoadedPlan
from irc.plan.parts import MICRO_BATCH_KINDS, SMALLER_KINDS, PartsPlan
from irc.plan.schema import Buffer, Kernels, Start, placement_of
from irc.plan.training import ORDER, OrderFacts, order_facts
from irc.report.layer_names import layer_of, layers_of
from irc.report.notation import written
from irc.report.streams import StreamFacts, streams_of
from irc.report.weights import Argument, ArgumentRow, alike, argument_row
from irc.simulate.parts import predict_step
from irc.simulate.schedule import Simulation


@dataclass(frozen=True)
class FunctionFacts:
    """One function of a part."""

    kind: str
    runs: int
    predicted_s: float | None
    kernels: int
    launches: int
    collectives: int
    arena_bytes: int
    hash: str


@dataclass(frozen=True)
class RegisterFacts:
    """What functions hand on: so many equal places of so many bytes on each rank.

    Attributes:
        slots: on the device.
        outside: in the memory of its host, or on a disk.
        moves: of a step, out and back.
    """

    name: str
    stage: int
    dtype: str
    shape: tuple[int, ...]
    slots: int
    bytes: int
    outside: int = 0
    moves: int = 0


@dataclass(frozen=True)
class PartFacts:
    """A part of the model.

    Attributes:
        stages: of the schedule that run it: one for each copy of the model.
        ranks: that run it.
        layers: which have its parameters, as ``stages=`` names them.
        fixed: by which names a user fixed what it computes; empty: the cut was chosen.
        num_parameters: of the whole part, and those bytes on a rank of it.
        parameter_bytes, state_bytes, accumulator_bytes: of a rank.
        arena_bytes: that its functions work in.
        idle: the share of a predicted step in which its ranks compute nothing.
        weights: parameters, states and other tensors that its ranks keep, and how they lie.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    layers: tuple[str, ...]
    fixed: str
    num_parameters: int
    parameter_bytes: int
    state_bytes: int
    accumulator_bytes: int
    arena_bytes: int
    idle: float
    functions: tuple[FunctionFacts, ...]
    registers: tuple[RegisterFacts, ...]
    weights: tuple[ArgumentRow, ...] = ()

    @property
    def register_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(each.slots * each.bytes for each in self.registers)


@dataclass(frozen=True)
class ChannelTraffic:
    """A value that goes from a part to another, once a micro-batch; bytes over all ranks."""

    name: str
    producer: int
    consumer: int
    dtype: str
    shape: tuple[int, ...]
    before: str
    after: str
    bytes: int


@dataclass(frozen=True)
class PartsFactsReport:
    """All facts of a plan of several programs; JSON has these fields."""

    hash: str
    mesh: str
    cluster: str
    schedule: str
    micro_batches: int
    loss: str
    parts: tuple[PartFacts, ...]
    channels: tuple[ChannelTraffic, ...]
    shared: dict[str, tuple[int, ...]]
    predicted_s: float
    offload: str = ""
    streams: tuple[StreamFacts, ...] = ()
    order: OrderFacts | None = None


def simulated_step(plan: PartsPlan) -> Simulation:
    """Simulate a step of a plan on the cluster that it is priced for.

    Raises:
        IrcError: ``cluster-unknown`` or ``file-missing``: of its cluster nothing is known here.
    """
    cluster = plan.parts[0]["F"].plan.cluster or THIS_HOST
    return predict_step(plan, find_cluster(cluster).fit(plan.mesh))


def gather_parts(
    plan: PartsPlan, step: Simulation | None = None, *, placements: str = ""
) -> PartsFactsReport:
    """Collect the facts of a plan.

    Args:
        plan: in stages.
        step: what :func:`simulated_step` returns of it, where that is known already: of many
            stages it takes seconds.
        placements: the notation of those of channels, as :func:`irc.report.notation.written` has
            it; by default irc's own.
    """
    cluster = plan.parts[0]["F"].plan.cluster or THIS_HOST
    simulated = simulated_step(plan) if step is None else step
    idle, divided = [simulated.bubble(place) for place in range(len(plan.ranks))], _divided(plan)
    return PartsFactsReport(
        plan.hash,
        plan.facts.mesh,
        of_all_kinds(cluster),
        plan.schedule.name or "of a file",
        plan.num_micro_batches,
        plan.facts.loss,
        tuple(_part(plan, number, idle, divided) for number in range(len(plan.parts))),
        _channels(plan, placements),
        dict(plan.facts.shared),
        simulated.seconds,
        plan.facts.offload,
        streams_of(simulated),
        order_facts(plan.texts[ORDER]) if ORDER in plan.texts else None,
    )


def _part(plan: PartsPlan, number: int, idle: list[float], divided: Collection[str]) -> PartFacts:
    part = plan.parts[number]
    held = held_buffers(part)
    stages = tuple(dict.fromkeys(path[number] for path in plan.schedule.paths))
    places = [plan.schedule.rank_of[stage] for stage in stages]
    parameters = [b for b in held.values() if b.role == "parameter"]
    by_role = {
        role: sum(b.size_bytes for b in held.values() if b.role == role)
        for role in ("parameter", "state", "accumulator")
    }
    return PartFacts(
        stages,
        tuple(rank for place in dict.fromkeys(places) for rank in plan.ranks[place]),
        layers_of((b.name for b in parameters), divided),
        plan.facts.fixed[number],
        sum(plan_elements(plan, b.name, number) for b in parameters),
        by_role["parameter"],
        by_role["state"],
        by_role["accumulator"],
        sum(loaded.plan.arena_bytes for loaded in part.values()),
        max(0.0, *(idle[place] for place in places)),
        tuple(_functions(plan, number)),
        tuple(_registers(plan, number, stages)),
        tuple(_weights(plan, held)),
    )


def _weights(plan: PartsPlan, held: Mapping[str, Buffer]) -> Iterable[ArgumentRow]:
    kept = [
        Argument(name, b.role, b.shape, b.dtype, held_placement(plan, b), b.size_bytes)
        for name, b in held.items()
    ]
    return map(partial(argument_row, plan.part_mesh), alike(kept))


def held_buffers(part: Mapping[str, LoadedPlan]) -> dict[str, Buffer]:
    """Return what a rank of a part has all the time, by name."""
    buffers: dict[str, Buffer] = {}
    for loaded in part.values():
        weights = (loaded.plan.buffers[index] for index in loaded.plan.weights)
        buffers |= {buffer.name: buffer for buffer in weights}
    return buffers


def held_placement(plan: PartsPlan, buffer: Buffer) -> Placement:
    """Return how a weight or state lies on the mesh of its part."""
    return placement_of(buffer) if buffer.placement else Placement.replicated(plan.part_mesh.names)


def plan_elements(plan: PartsPlan, name: str, number: int) -> int:
    """Return the elements of a whole weight of a part."""
    buffer = held_buffers(plan.parts[number])[name]
    placement, whole = placement_of(buffer), 1
    for dim, length in enumerate(buffer.shape):
        whole *= length * prod(plan.part_mesh.size(axis) for axis in placement.split_axes(dim))
    return whole


def _functions(plan: PartsPlan, number: int) -> Iterable[FunctionFacts]:
    for kind, loaded in plan.parts[number].items():
        actions = loaded.plan.actions
        yield FunctionFacts(
            kind,
            runs_of(plan, kind),
            loaded.plan.predicted_s,
            len(loaded.plan.kernels),
            sum(len(a.calls) for a in actions if isinstance(a, Kernels)),
            sum(isinstance(a, Start) for a in actions),
            loaded.plan.arena_bytes,
            loaded.hash,
        )


def runs_of(plan: PartsPlan, kind: str) -> int:
    """Return how often a step runs a function of a kind."""
    if kind not in (*MICRO_BATCH_KINDS, *SMALLER_KINDS):
        return 1
    count, larger = plan.num_micro_batches, plan.smaller_from
    if larger is None:
        return count
    return larger if kind in MICRO_BATCH_KINDS else count - larger


def _registers(plan: PartsPlan, number: int, stages: Iterable[int]) -> Iterable[RegisterFacts]:
    buffers = plan.registers(number)
    for stage in stages:
        tape = plan.tapes[plan.schedule.rank_of[stage]]
        moves = Counter(
            event.place[:2]
            for event in tape.events
            if event.what in ("store", "fetch") and event.place
        )
        for name, buffer in buffers.items():
            key = stage, name
            if count := tape.slots.get(key, 0):
                yield RegisterFacts(
                    name, stage, buffer.dtype, buffer.shape, count, buffer.size_bytes,
                    tape.outside.get(key, 0), moves[key],
                )  # fmt: skip


def _channels(plan: PartsPlan, notation: str) -> tuple[ChannelTraffic, ...]:
    def told(placement: Placement) -> str:
        return written(placement, plan.part_mesh, notation) if notation else str(placement)

    channels: list[ChannelTraffic] = []
    for crossing in plan.facts.channels:
        path = plan.schedule.paths[0]
        channel = plan.channel(crossing.name, path[crossing.producer], path[crossing.consumer])
        channels.append(
            ChannelTraffic(
                crossing.name,
                crossing.producer,
                crossing.consumer,
                crossing.dtype,
                crossing.shape,
                told(channel.before.placement) if crossing.before else "whole",
                told(channel.after.placement) if crossing.after else "whole",
                channel.total_bytes,
            )
        )
    return tuple(channels)


def _divided(plan: PartsPlan) -> set[str]:
    """Return the layers of which several stages have parameters, each its own."""
    holders: dict[str, set[int]] = {}
    for number, part in enumerate(plan.parts):
        for buffer in held_buffers(part).values():
            if buffer.role == "parameter" and len(plan.holders[buffer.name]) == 1:
                holders.setdefault(layer_of(buffer.name), set()).add(number)
    return {layer for layer, parts in holders.items() if len(parts) > 1}
