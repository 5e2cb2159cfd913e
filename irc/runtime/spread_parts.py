"""What a rank holds between the steps of a plan of several programs: its parts of its stages."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from irc.dialects.placement import Placement
from irc.errors import IrcError
from irc.plan.parts import PartsPlan
from irc.plan.schema import placement_of
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes
from irc.runtime.held import device_mesh
from irc.runtime.moving import move, to_first
from irc.runtime.parts import Parts
from irc.sharding.between import Side
from irc.training.slices import cut


class SpreadParts(Parts):
    """The tensors of one rank by name; of those of other stages it knows how they lie.

    Args:
        plan: the first plan of the run; those of further kinds of batches lie alike.
        rank: of this process.

    Attributes:
        ranks: by name, the ranks that hold it, in the order of a stage's mesh.
    """

    def __init__(self, plan: PartsPlan, rank: int) -> None:
        self.place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        super().__init__(plan.part_mesh, plan.ranks[self.place].index(rank))
        self.world_rank, self.world = rank, plan.mesh.num_ranks
        self._whole_mesh = plan.mesh
        self.ranks: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._places, self._ranks_by_place = _places(plan), plan.ranks
        self._sliced = plan.sliced
        for part in plan.parts:
            for loaded in part.values():
                for index in loaded.plan.weights:
                    buffer = loaded.plan.buffers[index]
                    name, placement = buffer.name, placement_of(buffer)
                    self._placed[name] = placement, whole_shape(loaded.plan, index)
                    self.roles[name] = buffer.role
                    self.ranks[name] = plan.ranks[plan.places_of(name)[0]]
                    self._dtypes[name] = dtypes()[buffer.dtype]
        self.roles |= {name: self.roles[own.names[0]] for name, own in self._sliced.items()}

    def check_stages(self, plan: PartsPlan) -> None:
        """Refuse a further kind of batch whose stages have other weights; all ranks do at once.

        Raises:
            IrcError: ``pipeline-unsupported``.
        """
        places = _places(plan)
        for name in sorted(self._places.keys() | places.keys()):
            if self._places.get(name) != places.get(name):
                raise IrcError(
                    "pipeline-unsupported",
                    f"for this kind of batch '{name}' is in other stages than the ranks hold it in",
                    help='say where stages begin: stages="..", or pins="stage NAME = 0"',
                )

    def adopt_stages(
        self, plan: PartsPlan, wholes: Mapping[str, torch.Tensor], later: Collection[str] = ()
    ) -> None:
        """Take this rank's parts of what its stages load and is not here yet; see :meth:`adopt`.

        Raises:
            IrcError: ``input-mismatch`` where a weight has no value.
        """
        wholes = cut(self._sliced, wholes)
        slices = [n for name, own in self._sliced.items() if name in later for n in own.names]
        later = {*later, *slices}
        for part in plan.parts_at(self.place).values():
            for loaded in plan.parts[part].values():
                self.adopt(loaded.plan, wholes, later)

    def _slices_by_rank(self, name: str) -> list[object]:
        """Return which slice of a tensor each rank of the run holds; None for nothing."""
        slices: list[object] = [None] * self.world
        for place in self._places.get(name, ()):
            for number, rank in enumerate(self._ranks_by_place[place]):
                slices[rank] = self._slice_number(name, number)
        return slices

    def placement_and_shape(self, name: str) -> tuple[Placement, tuple[int, ...]]:
        """Return how a tensor lies on the mesh of its stage, and its whole shape."""
        return self._placed[name]

    @property
    def stage(self) -> tuple[int, int]:
        """The place of this rank on the axis of stages, and how many places there are."""
        return self.place, len(self._ranks_by_place)

    @property
    def mesh_ranks(self) -> Sequence[int]:
        """The ranks of this rank's stages."""
        return self._ranks_by_place[self.place]

    @property
    def has_others(self) -> bool:
        """Whether other ranks have other stages."""
        return len(self._ranks_by_place) > 1

    def like_parameters(self) -> SpreadParts:
        """Return no tensors, of the same stages: what :meth:`know` adds lies as parameters do."""
        empty = copy.copy(self)
        empty.local, empty.roles, empty._placed, empty.ranks = {}, {}, {}, {}
        empty._dtypes, empty._places, empty._sliced = {}, {}, {}
        return empty

    def know(
        self, name: str, like: Parts, parameter: str, placement: Placement, kind: torch.Tensor
    ) -> None:
        """Learn of a state that the stages of a parameter hold.

        Args:
            name: of the state.
            like: has the parameter.
            parameter: its name.
            placement: how the state lies on the mesh of a stage.
            kind: of its whole shape and dtype, on the meta device.
        """
        assert isinstance(like, SpreadParts)
        self._placed[name], self.roles[name] = (placement, tuple(kind.shape)), "state"
        self.ranks[name], self._places[name] = like.ranks[parameter], like._places[parameter]
        self._dtypes[name] = kind.dtype

    @property
    def names(self) -> list[str]:
        """Names of all tensors that ranks hold between steps, the same on every rank."""
        whole = {each: name for name, own in self._sliced.items() for each in own.names}
        every = dict.fromkeys(whole.get(name, name) for name in self._placed)
        return [name for name in every if self.roles[name] != "accumulator"]

    def placements(self) -> dict[str, Placement]:
        """Return how each tensor lies on the mesh of its stage."""
        whole = Placement.replicated(self.mesh.names)
        return {n: p if p.axes else whole for n, (p, _) in self._placed.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        if (own := self._sliced.get(name)) is None:
            return super().shape(name)
        shape = list(super().shape(own.names[0]))
        shape[own.dim] = own.stops[-1]
        return tuple(shape)

    def pieces(self, name: str) -> dict[str, tuple[slice, ...]]:
        """Return what this rank has of a whole tensor: the names of parts, and where they lie."""
        if (own := self._sliced.get(name)) is None:
            return super().pieces(name)
        pieces: dict[str, tuple[slice, ...]] = {}
        for each, start in zip(own.names, own.starts, strict=True):
            for where in super().pieces(each).values():
                along = where[own.dim]
                moved = slice(along.start + start, along.stop + start)
                pieces[each] = (*where[: own.dim], moved, *where[own.dim + 1 :])
        return pieces

    def has_torch_form(self, name: str) -> bool:
        """Whether a DTensor says how a tensor lies: not slices on different stages."""
        return name not in self._sliced and super().has_torch_form(name)

    def _torch_mesh(self) -> Any:
        return device_mesh(self._whole_mesh)[self.mesh.names]

    def whole(self, name: str, *, everywhere: bool = True) -> torch.Tensor | None:
        """Return a copy of a whole tensor; every rank calls it, for the same names in one order."""
        if (own := self._sliced.get(name)) is not None:
            each = [self.whole(part, everywhere=everywhere) for part in own.names]
            parts = [part for part in each if part is not None]
            return torch.cat(parts, own.dim) if parts else None
        placement, shape = self._placed[name]
        if self.world == 1:
            return self.local[name].to("cpu", copy=True)
        lies = placement if placement.axes else Placement.replicated(self.mesh.names)
        held = Side(lies, self.mesh, self.ranks[name])
        channel = to_first(held, shape, self._dtypes[name], self.world if everywhere else 1)
        return move(channel, self.world_rank, self.local.get(name))

    def holds(self, name: str) -> bool:
        """Return whether this rank has some of a tensor."""
        own = self._sliced.get(name)
        return any(map(self.holds, own.names)) if own is not None else name in self.local

    def is_tied(self, name: str) -> bool:
        """Return whether several stages hold a tensor, the same on every rank."""
        return len(self._places.get(name, ())) > 1

    def load(self, name: str, whole: torch.Tensor) -> None:
        """Write this rank's part of a whole tensor over the one that it holds."""
        if (own := self._sliced.get(name)) is None:
            super().load(name, whole)
            return
        for number, each in enumerate(own.names):
            if each in self.local:
                super().load(each, own.slice(number, whole))


def _places(plan: PartsPlan) -> dict[str, tuple[int, ...]]:
    """Return where on the pipe axis parameters, states and accumulators are, by name."""
    places: dict[str, tuple[int, ...]] = {}
    for part in plan.parts:
        for loaded in part.values():
            for index in loaded.plan.weights:
                buffer = loaded.plan.buffers[index]
                if buffer.role != "constant":
                    places[buffer.name] = plan.places_of(buffer.name)
    return places
