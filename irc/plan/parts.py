"""A plan of several programs: parts on meshes of their own, joined by channels, in a schedule.

    FOLDER/parts.json            the parts, who runs them, what goes between them
    FOLDER/schedule.txt          what each rank does, in order (grammar/schedule.lark)
    FOLDER/parts/N/KIND/         a plan for each function of part N (F, B or I and W, norm, step)
    FOLDER/training/             the recipe, and the model that eager training runs
    FOLDER/weights.safetensors   every weight once

:mod:`irc.plan.parts_files` writes and reads such folders. A part is a stage of the model; the ranks
of its mesh run its functions alike, as the plan of one program is run. Other ranks run other parts.
The hash of the whole is that of parts.json, which holds the hashes of all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from irc.dialects.placement import Mesh, Placement
from irc.plan import json_text
from irc.plan.in_notebook import InNotebook
from irc.plan.load import Code, LoadedPlan
from irc.plan.parts_facts import PartsFacts
from irc.plan.schema import AxisCut, Buffer, Plan, placement_of
from irc.plan.training import trained_by
from irc.schedule.actions import Schedule
from irc.schedule.notation import read_schedule
from irc.schedule.skips import with_skips
from irc.schedule.slices import ranks_of_slices, with_slices
from irc.schedule.tape_check import check_tapes
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import SMALLER, Function, Route, Tape, Wiring
from irc.sharding.between import Channel, Side
from irc.training.slices import Sliced, of_states

PARTS = "parts.json"
SCHEDULE = "schedule.txt"
PIPE = "pipe"
"""The mesh axis along which parts differ."""
MICRO_BATCH_KINDS = ("F", "B", "I", "W", "S", "T")
"""Functions that run for each micro-batch; S and T are those of a slice of the vocabulary."""
SMALLER_KINDS = tuple(f"{kind}{SMALLER}" for kind in MICRO_BATCH_KINDS)
"""The same for micro-batches of one sample less, where a batch is not shared equally."""
HANDED_ON = ("saved", "boundary")
"""Roles of what functions hand on through registers."""


@dataclass(frozen=True)
class PartsPlan(InNotebook):
    """A plan of several programs.

    Attributes:
        facts: the content of parts.json.
        schedule_text: the content of schedule.txt.
        parts: of each part, its functions' plans by kind.
        texts: content of each further file, by name.
        folder: where it lies, None for one that was made here or received.
        code: whose the kernels are, as of :class:`irc.plan.load.LoadedPlan`.
    """

    facts: PartsFacts
    schedule_text: str
    parts: tuple[Mapping[str, LoadedPlan], ...]
    texts: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    folder: Path | None = None
    code: Code = "own"

    @property
    def is_known(self) -> bool:
        """Whether this user wrote the plan, or trusts who did."""
        return self.code in ("own", "trusted")

    @cached_property
    def text(self) -> str:
        """What parts.json says."""
        return json_text.dump({"format": self.facts.format, **json_text.encode(self.facts)})

    @cached_property
    def hash(self) -> str:
        """What ranks compare before they start."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def schedule(self) -> Schedule:
        """What each rank of the pipe axis does, in order; slices of a vocabulary are stages."""
        return with_slices(with_skips(self.written))

    @cached_property
    def written(self) -> Schedule:
        """The schedule as its text has it."""
        # Its name stands before it, as a comment.
        first = self.schedule_text.partition("\n")[0]
        name = first.removeprefix("# ") if first.startswith("# ") else ""
        return read_schedule(self.schedule_text, where=SCHEDULE, name=name)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the whole run."""
        return Mesh.parse(self.facts.mesh)

    @cached_property
    def part_mesh(self) -> Mesh:
        """The mesh of each part: all axes but ``pipe``; none where a part is of one rank."""
        mesh = Mesh(tuple((name, size) for name, size in self.mesh.axes if name != PIPE))
        return mesh if mesh.num_ranks > 1 else Mesh(())

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """By place on the pipe axis, the ranks there, in the order of the part's mesh."""
        return ranks_by_place(self.mesh)

    @property
    def backend(self) -> str:
        """What the kernels of all functions are compiled by."""
        return next(iter(self.parts[0].values())).plan.backend

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.schedule.num_micro_batches

    @property
    def smaller_from(self) -> int | None:
        """The first micro-batch that has a sample less than those before it, if any."""
        samples = self.facts.samples
        return samples % self.num_micro_batches if samples else None

    @cached_property
    def weights_of_losses(self) -> tuple[float, ...]:
        """How much each micro-batch counts in the loss of the batch: by its number of samples."""
        count, samples = self.num_micro_batches, self.facts.samples
        if not samples:
            return (1 / count,) * count
        return tuple(size / samples for size in micro_batch_sizes(samples, count))

    @cached_property
    def wiring(self) -> Wiring:
        """What functions read and make, and what goes between parts."""
        functions = tuple(
            {
                kind: function_of(part[kind].plan, smaller_suffix(kind))
                for kind in (*MICRO_BATCH_KINDS, *SMALLER_KINDS)
                if kind in part
            }
            for part in self.parts
        )
        routes = tuple(
            Route(c.name, c.producer, c.consumer, c.register, c.over) for c in self.facts.channels
        )
        aligned = frozenset(c.name for c in self.facts.channels if c.before == c.after)
        moved = tuple(map(frozenset, self.facts.moved))
        return Wiring(functions, routes, aligned, self.smaller_from, moved)

    @cached_property
    def tapes(self) -> tuple[Tape, ...]:
        """What each place of the pipe axis does in a step.

        Raises:
            IrcError: ``schedule-order``, ``schedule-deadlock``.
        """
        return tapes_of(self.schedule, self.wiring, ahead=self.facts.ahead)

    def channel(self, name: str, producer: int, consumer: int) -> Channel:
        """Return the channel between two stages of the schedule that a value goes through."""
        return self._channels(name, producer, consumer)

    def _channels(self, name: str, producer: int, consumer: int) -> Channel:
        before, after = (self.schedule.rank_of[stage] for stage in (producer, consumer))
        # Around parts that are left out a value comes from another one than else.
        ends = self._part_of[producer], self._part_of[consumer]
        key = name, before, after
        if key not in self._made_channels:
            crossing = next(
                c for c in self.facts.channels if (c.name, (c.producer, c.consumer)) == (name, ends)
            )
            sides = [
                Side(_placement(cuts, self.part_mesh), self.part_mesh, self.ranks[place])
                for cuts, place in ((crossing.before, before), (crossing.after, after))
            ]
            self._made_channels[key] = Channel(crossing.shape, crossing.dtype, *sides)
        return self._made_channels[key]

    @cached_property
    def _part_of(self) -> Mapping[int, int]:
        """By stage of the schedule, the part that it is."""
        return {stage: part for path in self.schedule.paths for part, stage in enumerate(path)}

    @cached_property
    def _made_channels(self) -> dict[tuple[str, int, int], Channel]:
        return {}

    def parts_at(self, place: int) -> dict[int, int]:
        """Return the stages of the schedule at a place of the pipe axis, and the part of each."""
        parts: dict[int, int] = {}
        for path in self.schedule.paths:
            here = self.schedule.rank_of
            parts |= {stage: part for part, stage in enumerate(path) if here[stage] == place}
        return parts

    def place_of(self, part: int) -> int:
        """Return where on the pipe axis a part is: of two copies of a model, the first's."""
        return self.schedule.rank_of[self.schedule.paths[0][part]]

    @cached_property
    def holders(self) -> Mapping[str, tuple[int, ...]]:
        """By name of a weight, state or accumulator, the parts that have it."""
        holders: dict[str, dict[int, None]] = {}
        for number, part in enumerate(self.parts):
            for loaded in part.values():
                for index in loaded.plan.weights:
                    holders.setdefault(loaded.plan.buffers[index].name, {})[number] = None
        return {name: tuple(parts) for name, parts in holders.items()}

    def places_of(self, name: str) -> tuple[int, ...]:
        """Return the places of the pipe axis that hold a weight, state or accumulator."""
        return tuple(
            sorted(
                {
                    self.schedule.rank_of[path[part]]
                    for path in self.schedule.paths
                    for part in self.holders[name]
                }
            )
        )

    @cached_property
    def sliced(self) -> Mapping[str, Sliced]:
        """By name, what ranks hold in slices: weights, their states and accumulators."""
        return of_states(self.facts.slices, self.holders)

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that move, in sorted order; of slices, the whole ones'."""
        whole = {each: name for name, own in self.facts.slices.items() for each in own.names}
        return tuple(sorted({whole.get(name, name) for name in self.moved}))

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """Names of the parameters that parts move, slices by themselves, in sorted order."""
        every = (loaded.plan for part in self.parts for loaded in part.values())
        return tuple(sorted({name for plan in every for name in trained_by(plan)}))

    @property
    def slice_parts(self) -> range:
        """The parts that are slices of the vocabulary."""
        first = self.written.num_stages
        return range(first, first + len(ranks_of_slices(self.written)))

    def is_of_vocabulary(self, own: Sliced) -> bool:
        """Whether slices are those of a vocabulary, each in a part of its own."""
        return any(part in self.slice_parts for name in own.names
                   for part in self.holders.get(name, ()))  # fmt: skip

    @property
    def loss_kind(self) -> str:
        """The function of the last part that gives the loss of a micro-batch."""
        return "T" if self.written.vocabulary == 1 else "F"

    @cached_property
    def loss_places(self) -> tuple[int, ...]:
        """The places of the pipe axis that compute losses."""
        return tuple(sorted({self.schedule.rank_of[path[-1]] for path in self.schedule.paths}))

    def registers(self, part: int) -> dict[str, Buffer]:
        """Return what a part's registers hold, by name."""
        registers: dict[str, Buffer] = {}
        for kind, loaded in self.parts[part].items():
            if kind in (*MICRO_BATCH_KINDS, *SMALLER_KINDS):
                for index in (*loaded.plan.inputs, *loaded.plan.outputs):
                    buffer = loaded.plan.buffers[index]
                    if is_register(buffer):
                        registers[f"{buffer.name}{smaller_suffix(kind)}"] = buffer
        return registers


def micro_batch_sizes(samples: int, count: int) -> tuple[int, ...]:
    """Return how many samples each micro-batch has, as ``torch.tensor_split`` shares them out.

    >>> micro_batch_sizes(10, 4)
    (3, 3, 2, 2)
    """
    size, rest = divmod(samples, count)
    return (size + 1,) * rest + (size,) * (count - rest)


def smaller_kind(kind: str) -> str:
    """Return the kind, or the name of a register, of smaller micro-batches."""
    return f"{kind}{SMALLER}"


def smaller_suffix(kind: str) -> str:
    """Return what names of registers that functions of a kind read and make end in."""
    return SMALLER if kind.endswith(SMALLER) else ""


def is_register(buffer: Buffer) -> bool:
    """True for an argument or result that functions hand on."""
    return buffer.role in HANDED_ON or is_handed_on(buffer.name, buffer.role)


def is_handed_on(name: str, role: str) -> bool:
    """True for a result (its role is ``output``) that another function or part reads."""
    return role == "output" and name.startswith(("saved", "cut", "gradient."))


def function_of(plan: Plan, suffix: str = "") -> Function:
    """Return which registers a function reads and makes; ``suffix`` ends their names."""
    inputs = [plan.buffers[i] for i in plan.inputs]
    outputs = [plan.buffers[i] for i in plan.outputs]
    return Function(
        tuple(f"{b.name}{suffix}" for b in inputs if b.role in HANDED_ON),
        tuple(f"{b.name}{suffix}" for b in outputs if is_handed_on(b.name, b.role)),
    )


def ranks_by_place(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Return the ranks at each place of the axis ``pipe``.

    >>> ranks_by_place(Mesh.parse("pipe=2,data=2"))
    ((0, 1), (2, 3))
    """
    if PIPE not in mesh.names:
        return (tuple(range(mesh.num_ranks)),)
    places: list[list[int]] = [[] for _ in range(mesh.size(PIPE))]
    for rank in range(mesh.num_ranks):
        places[mesh.coordinates(rank)[PIPE]].append(rank)
    return tuple(map(tuple, places))


def _placement(cuts: tuple[AxisCut, ...], mesh: Mesh) -> Placement:
    placed = placement_of(Buffer("f32", (), "input", placement=cuts))
    return placed if placed.axes else Placement.replicated(mesh.names)


def make_parts(
    facts: PartsFacts, schedule_text: str, parts: tuple[Mapping[str, LoadedPlan], ...]
) -> PartsPlan:
    """Put a plan together and check it.

    Raises:
        IrcError: ``schedule-order``, ``schedule-deadlock``; ``schedule-registers`` where a register
            is written or read at the wrong time, which no schedule makes a plan do.
    """
    plan = PartsPlan(facts, schedule_text, parts)
    check_tapes(plan.tapes)
    return plan


def with_files(plan: PartsPlan, files: Mapping[str, str]) -> PartsPlan:
    """Return the plan with further files beside its parts, by name."""
    texts = {**plan.texts, **{name: text.encode() for name, text in files.items()}}
    texts = dict(sorted(texts.items()))
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    return replace(plan, facts=replace(plan.facts, files=digests), texts=texts)
