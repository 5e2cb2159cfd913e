"""A step of stages that are put together from pieces (:mod:`irc.search.blocks`), simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.schedule.actions import Schedule
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Function, Route, Tape, Wiring
from irc.search.blocks import UPDATE, Blocks, Content, Passed, Piece
from irc.sharding.between import Channel, Side
from irc.simulate.boundaries import transfer_of
from irc.simulate.costs import Costs, StageCosts, Transfer
from irc.simulate.mixes import MixedPorts
from irc.simulate.orders import Order, Search, compared
from irc.simulate.priced import Priced
from irc.simulate.schedule import Simulation
from irc.simulate.update import kind_of

TapesOf: TypeAlias = Callable[[Schedule, Wiring], tuple[Tape, ...]]
"""Spells a schedule out."""

ON, BACK = "on", "back"
"""What a stage gives to the next one, and the gradient that it gives to the one before."""


@dataclass(frozen=True)
class Assembled:
    """A step that was put together.

    What it holds follows from its tapes alone; it is simulated when it is asked what it takes,
    which is the longer part of the work where stages and micro-batches are many.

    Attributes:
        schedule: what runs.
        tapes: of its ranks.
        priced: what its stages and messages take.
        held_bytes: by rank of the schedule, what it holds at the worst moment.
        bare_s: by rank of the schedule, for how long compute waits for collectives.
        budget: bytes that a rank may hold where the order is searched, and ``schedule`` is one of
            those that are compared; None where it is the order.
    """

    schedule: Schedule
    tapes: tuple[Tape, ...]
    priced: Priced
    held_bytes: tuple[float, ...]
    bare_s: tuple[float, ...]
    budget: float | None = None

    @cached_property
    def simulation(self) -> Simulation:
        """The step, simulated."""
        if (order := self._order) is not None:
            return order.simulation
        return self.priced.simulate(self.schedule, self.tapes)

    @property
    def most_bytes(self) -> tuple[float, ...]:
        """By rank, what it holds at the worst moment in the order that is simulated."""
        return self.held_bytes if self._order is None else self._order.held_bytes

    @cached_property
    def _order(self) -> Order | None:
        """The best order, where it is searched and one fits."""
        if self.budget is None:
            return None
        sizes = self.priced.sizes
        slots = [sum(n * sizes[key] for key, n in tape.slots.items()) for tape in self.tapes]
        fixed = [held - own for held, own in zip(self.held_bytes, slots, strict=True)]
        search = Search(self.priced, self.schedule, fixed, [self.budget] * len(fixed))
        return search.best(compared(self.schedule))


def simulate_blocks(
    blocks: Blocks,
    contents: Sequence[Content],
    schedule: Schedule,
    mesh: Mesh,
    cluster: Cluster,
    tapes: TapesOf = tapes_of,
) -> Assembled:
    """Return a step whose stages are put together from pieces, ready to be simulated.

    Args:
        blocks: the pieces.
        contents: of each stage of the model.
        schedule: in the form in which stages have functions, of as many stages, through which all
            micro-batches go in order.
        mesh: of a stage.
        cluster: whose devices are the ranks, stage after stage.
        tapes: spells a schedule out (:func:`irc.schedule.tape_writer.tapes_of`).
    """
    stages = [blocks.stage(content) for content in contents]
    wiring = _wiring(blocks, stages)
    spelt = tapes(schedule, wiring)
    costs = Costs([_costs(piece) for piece in stages], norm=blocks.norm)
    sizes = _sizes(blocks, stages, contents)
    own_mixes = {
        kind_of(kind, stage): mix
        for stage in range(len(stages))
        for kind, mix in blocks.mixes.items()
    }
    ports = MixedPorts.of(own_mixes, cluster.device.interference)
    ways = _Ways(blocks.passed, schedule, mesh, cluster)
    own: list[list[int]] = [[] for _ in schedule.ranks]
    for stage, rank in schedule.rank_of.items():
        own[rank].append(stage)
    count = schedule.num_micro_batches
    held, bare = list[float](), list[float]()
    for tape, numbers in zip(spelt, own, strict=True):
        pieces = [stages[number] for number in numbers]
        held.append(_held(pieces, tape, sizes))
        bare.append(sum(_bare(piece, count) for piece in pieces))
    device = None if cluster.device.cores else ports
    priced = Priced(wiring, costs, ways, sizes, device=device)
    return Assembled(schedule, spelt, priced, tuple(held), tuple(bare))


class KnownTapes:
    """The tapes of the schedule that was asked for last.

    Stages with other layers computed again, or with weights in parts, hand on the same registers of
    other sizes, so that their tapes are the same.
    """

    def __init__(self) -> None:
        self._schedule: Schedule | None = None
        self._known: dict[object, tuple[Tape, ...]] = {}

    def __call__(self, schedule: Schedule, wiring: Wiring) -> tuple[Tape, ...]:
        """Return the tapes of a schedule with this wiring."""
        if schedule is not self._schedule:
            self._schedule, self._known = schedule, {}
        functions = tuple(tuple(own.items()) for own in wiring.functions)
        key = functions, wiring.routes, wiring.aligned
        if key not in self._known:
            self._known[key] = tapes_of(schedule, wiring)
        return self._known[key]


def _costs(piece: Piece) -> StageCosts:
    return StageCosts(
        # What a first or last layer takes besides may be less than nothing, without a layer.
        {kind: max(0.0, own) for kind, own in piece.seconds.items() if kind != UPDATE},
        piece.arena_bytes,
        weight_bytes=piece.held_bytes,
        update_seconds=piece.seconds.get(UPDATE, 0.0),
    )


def _held(stages: Sequence[Piece], tape: Tape, sizes: Mapping[tuple[int, str], float]) -> float:
    slots = sum(count * sizes[key] for key, count in tape.slots.items())
    arena = max((size for piece in stages for size in piece.arena_bytes.values()), default=0.0)
    return sum(piece.held_bytes for piece in stages) + slots + arena


def _bare(piece: Piece, micro_batches: int) -> float:
    once = piece.bare_s.get(UPDATE, 0.0)
    return once + micro_batches * (sum(piece.bare_s.values()) - once)


def _name(way: str, value: int, producer: int) -> str:
    return f"{way}{value} of {producer}"


def _sizes(
    blocks: Blocks, stages: Sequence[Piece], contents: Sequence[Content]
) -> dict[tuple[int, str], float]:
    """Return the bytes of a slot, by stage and register."""
    sizes: dict[tuple[int, str], float] = {}
    passed = sum(each.num_bytes for each in blocks.passed)
    for stage, (piece, content) in enumerate(zip(stages, contents, strict=True)):
        for pair, size in piece.saved_bytes.items():
            # What the last layer of a stage gives is sent, and saved where it is read.
            sent = passed if pair.startswith("F-") and not content.has_last else 0.0
            sizes[stage, pair] = max(0.0, size - sent)
        for value, each in enumerate(blocks.passed):
            for producer in (stage - 1, stage):
                sizes[stage, _name(ON, value, producer)] = each.num_bytes
            for producer in (stage, stage + 1):
                sizes[stage, _name(BACK, value, producer)] = each.num_bytes
    return sizes


def _wiring(blocks: Blocks, stages: Sequence[Piece]) -> Wiring:
    last = len(stages) - 1
    functions = tuple(
        dict(_functions(blocks.passed, piece, stage, stage == last))
        for stage, piece in enumerate(stages)
    )
    routes: list[Route] = []
    for stage in range(last):
        for value, each in enumerate(blocks.passed):
            on, back = _name(ON, value, stage), _name(BACK, value, stage + 1)
            routes.append(Route(on, stage, stage + 1, on))
            if each.is_smooth:
                routes.append(Route(back, stage + 1, stage, back))
    return Wiring(functions, tuple(routes), frozenset(route.name for route in routes))


def _functions(
    passed: Sequence[Passed], piece: Piece, stage: int, is_last: bool
) -> Iterator[tuple[str, Function]]:
    """Yield which registers each function of a stage reads and makes."""
    kinds = [kind for kind in piece.seconds if kind != UPDATE]
    pairs = {pair: pair.split("-") for pair in piece.saved_bytes}
    smooth = [value for value, each in enumerate(passed) if each.is_smooth]
    takes = [_name(ON, value, stage - 1) for value in range(len(passed))] if stage else []
    gives = [] if is_last else [_name(ON, value, stage) for value in range(len(passed))]
    returned = [] if is_last else [_name(BACK, value, stage + 1) for value in smooth]
    returns = [_name(BACK, value, stage) for value in smooth] if stage else []
    for kind in kinds:
        reads = [pair for pair, ends in pairs.items() if ends[1] == kind]
        makes = [pair for pair, ends in pairs.items() if ends[0] == kind]
        if kind == "F":
            reads, makes = [*takes, *reads], [*gives, *makes]
        if kind in ("B", "I"):
            reads, makes = [*returned, *reads], [*returns, *makes]
        if kind in ("B", "W"):
            reads = [*takes, *reads]  # what it computes again, or multiplies
        yield kind, Function(tuple(reads), tuple(makes))


class _Ways:
    """What values take between stages; stages that lie alike in their nodes are one."""

    def __init__(
        self, passed: Sequence[Passed], schedule: Schedule, mesh: Mesh, cluster: Cluster
    ) -> None:
        self._passed, self._schedule = passed, schedule
        self._mesh, self._cluster = mesh, cluster
        self._known: dict[tuple[int, int, int], Transfer] = {}
        self._node = cluster.links[-2].devices if len(cluster.links) > 1 else 1

    def __call__(self, name: str, source: int, target: int) -> Transfer:
        number = int(name.removeprefix(BACK).removeprefix(ON).partition(" ")[0])
        size = self._mesh.num_ranks
        first, other = (self._schedule.rank_of[stage] * size for stage in (source, target))
        key = number, first % self._node, other - first
        if key not in self._known:
            each = self._passed[number]
            sides = [
                Side(each.placement, self._mesh, range(begin, begin + size))
                for begin in (first, other)
            ]
            self._known[key] = transfer_of(Channel(each.shape, each.dtype, *sides), self._cluster)
        return self._known[key]
