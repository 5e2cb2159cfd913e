"""Predicting a step of a plan of several programs, from what its functions and channels take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from irc.cluster.topology import Cluster
from irc.cost.moves import move_seconds
from irc.dialects.items import ITEM_BYTES
from irc.plan.parts import MICRO_BATCH_KINDS, SMALLER_KINDS, PartsPlan
from irc.simulate.boundaries import transfer_of
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.mixes import Mix, MixedPorts, mix_of
from irc.simulate.plan import Contention, StepSeconds, predict, stated_seconds
from irc.simulate.priced import Priced
from irc.simulate.schedule import Simulation
from irc.simulate.tapes import STREAMS, Moves
from irc.simulate.update import UPDATE, kind_of

NORM = "norm"
OF_MICRO_BATCHES = (*MICRO_BATCH_KINDS, *SMALLER_KINDS)


def predict_step(
    plan: PartsPlan, cluster: Cluster, seconds: StepSeconds = stated_seconds
) -> Simulation:
    """Simulate one step.

    A function is simulated once and is one action then. All ranks of a part run it in lock step
    (their collectives are inside), so that one stands for them. On a device what overlaps slows
    each other down by its table, and what goes over one port shares it: kernels and collectives
    inside of a function, and a function and what is sent to other stages, or moved to the host and
    back, meanwhile.

    Args:
        plan: of several programs.
        cluster: whose devices are the ranks, in order.
        seconds: of a step of a function's plan; by default what the plan states.
    """
    return priced(plan, cluster, seconds).simulate(plan.schedule, plan.tapes)


def priced(plan: PartsPlan, cluster: Cluster, seconds: StepSeconds = stated_seconds) -> Priced:
    """Return what the functions and the messages of a plan take, in whichever order they run.

    Arguments are those of :func:`predict_step`.
    """
    costs = Costs(
        _stages(plan, seconds, contention_of(plan, cluster)),
        norm=any(NORM in part for part in plan.parts),
        smaller_from=plan.smaller_from,
    )

    @cache
    def between(name: str, source: int, target: int) -> Transfer:
        return transfer_of(plan.channel(name, source, target), cluster)

    sizes = slot_bytes(plan)
    moves, device = _moves(plan, cluster, sizes), _device(plan, seconds, cluster)
    return Priced(plan.wiring, costs, between, sizes, moves, device)


def _device(plan: PartsPlan, seconds: StepSeconds, cluster: Cluster) -> MixedPorts | None:
    """Return what a rank's functions, messages and moves share; on a host nothing is shared."""
    if cluster.device.cores:
        return None
    contention = contention_of(plan, cluster)

    @cache
    def mixed(part: int, kinds: tuple[str, ...]) -> Mix:
        functions = (plan.parts[part][kind].plan for kind in kinds)
        return mix_of([predict(each, seconds, contention) for each in functions])

    mixes: dict[str, Mix] = {}
    for place in range(len(plan.ranks)):
        for stage, part in plan.parts_at(place).items():
            functions = plan.parts[part]
            mixes |= {
                kind_of(kind, stage): mixed(part, (kind,))
                for kind in functions
                if kind in OF_MICRO_BATCHES
            }
            rest = tuple(kind for kind in functions if kind not in OF_MICRO_BATCHES)
            mixes[kind_of(UPDATE, stage)] = mixed(part, rest)
    return MixedPorts.of(mixes, cluster.device.interference)


def contention_of(plan: PartsPlan, cluster: Cluster) -> Contention:
    """Return what the streams of a function share on a device.

    On a host nothing is taken to be shared: not all ranks compute at one time.
    """
    return Contention() if cluster.device.cores else Contention.of(cluster, plan.mesh)


def _moves(
    plan: PartsPlan, cluster: Cluster, sizes: Mapping[tuple[int, str], float]
) -> Moves | None:
    """Return what moves take of values that leave their slots.

    Raises:
        IrcError: ``cluster-invalid`` where the cluster does not say how fast that is.
    """
    where = plan.facts.offload
    if not where:
        return None
    keys = {
        (stage, name)
        for place in range(len(plan.ranks))
        for stage, part in plan.parts_at(place).items()
        for name in plan.facts.moved[part]
    }
    return Moves(
        *STREAMS[where], {key: move_seconds(cluster, where, sizes[key]) for key in sorted(keys)}
    )


def transfer_bytes(plan: PartsPlan, name: str, producer: int, consumer: int) -> int:
    """Return the bytes of a value on its way from a stage of the schedule to another, on a rank."""
    channel = plan.channel(name, producer, consumer)
    return channel.after.largest(channel.shape) * ITEM_BYTES[channel.dtype]


@dataclass(frozen=True)
class Held:
    """What a rank of a plan of several programs holds all the time.

    Attributes:
        weights: bytes of what its stages load.
        registers: by stage of the schedule and name, how many places there are, and their bytes.
        arena: bytes that functions work in, one at a time.
    """

    weights: float
    registers: Mapping[tuple[int, str], tuple[int, float]]
    arena: float

    def num_bytes(self, most: int | None = None) -> int:
        """Return all bytes; with at most so many places of each register."""
        kept = (
            size * (slots if most is None else min(slots, most))
            for slots, size in self.registers.values()
        )
        return int(self.weights + self.arena + sum(kept))


def held_at(plan: PartsPlan, place: int) -> Held:
    """Return what a rank at a place of the pipe axis holds."""
    return _held_at(plan, place, slot_bytes(plan))


def all_held(plan: PartsPlan) -> list[Held]:
    """Return what a rank holds at each place of the pipe axis, in order."""
    sizes = slot_bytes(plan)
    return [_held_at(plan, place, sizes) for place in range(len(plan.ranks))]


def _held_at(plan: PartsPlan, place: int, sizes: Mapping[tuple[int, str], float]) -> Held:
    parts, held = plan.parts_at(place), set[str]()
    return Held(
        sum(_weights(plan, part, held) for _, part in sorted(parts.items())),
        {key: (count, sizes[key]) for key, count in plan.tapes[place].slots.items()},
        max(
            float(loaded.plan.arena_bytes)
            for part in parts.values()
            for loaded in plan.parts[part].values()
        ),
    )


def slot_bytes(plan: PartsPlan) -> dict[tuple[int, str], float]:
    """Return the bytes of a slot, by stage of the schedule and name of the register."""
    return {
        (stage, name): float(buffer.size_bytes)
        for place in range(len(plan.ranks))
        for stage, part in plan.parts_at(place).items()
        for name, buffer in plan.registers(part).items()
    }


def _stages(plan: PartsPlan, seconds: StepSeconds, contention: Contention) -> list[StageCosts]:
    """Return what each stage of the schedule takes."""

    @cache
    def predicted(part: int, kind: str) -> float:
        return predict(plan.parts[part][kind].plan, seconds, contention).seconds

    stages: dict[int, StageCosts] = {}
    for place in range(len(plan.ranks)):
        held: set[str] = set()
        for stage, part in sorted(plan.parts_at(place).items()):
            functions = plan.parts[part]
            kinds = [kind for kind in functions if kind in OF_MICRO_BATCHES]
            arenas = {kind: float(each.plan.arena_bytes) for kind, each in functions.items()}
            rest = [kind for kind in functions if kind not in OF_MICRO_BATCHES]
            stages[stage] = StageCosts(
                {kind: predicted(part, kind) for kind in kinds},
                {**arenas, "update": max((arenas[kind] for kind in rest), default=0.0)},
                weight_bytes=_weights(plan, part, held),
                update_seconds=sum(predicted(part, kind) for kind in rest),
            )
    return [stages[stage] for stage in sorted(stages)]


def _weights(plan: PartsPlan, part: int, held: set[str]) -> float:
    """Return the bytes of what a stage loads and no other stage of its rank has already."""
    total = 0.0
    for loaded in plan.parts[part].values():
        for index in loaded.plan.weights:
            buffer = loaded.plan.buffers[index]
            if buffer.name not in held:
                held.add(buffer.name)
                total += buffer.size_bytes
    return total
