"""What a rank holds between the calls of a training plan: its parts of weights and of states.

Parts are copies of their own, so that the whole tensors that they come from can be freed: a rank
of N then needs 1/N of what is split (ZeRO, arXiv:1910.02054). A whole tensor is put together when
it is asked for, one at a time; a rank receives what it does not hold itself, and nothing twice.
Parts lie on the device that the plan runs on, whole tensors on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from irc.dialects.placement import Mesh, Placement, Split
from irc.errors import IrcError
from irc.plan.schema import Buffer, Plan, placement_of
from irc.plan.weights import local_slices
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes
from irc.runtime.executors import memory_of
from irc.runtime.held import device_mesh, dtensor
from irc.runtime.moving import move, to_first
from irc.runtime.replicas import Copies
from irc.runtime.rooms import with_room
from irc.runtime.weights import STARTED
from irc.sharding.between import Side
from irc.sharding.dtensor import is_exact


class Parts:
    """The tensors of one rank by name.

    Attributes:
        local: this rank's parts; on one device the tensors themselves.
        roles: of each: parameter, buffer, constant, state or seed.
    """

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh, self.rank, self.world_rank = mesh, rank, rank
        self.world = mesh.num_ranks
        self.local: dict[str, torch.Tensor] = {}
        self.roles: dict[str, str] = {}
        self._placed: dict[str, tuple[Placement, tuple[int, ...]]] = {}

    def adopt(
        self, plan: Plan, wholes: Mapping[str, torch.Tensor], later: Collection[str] = ()
    ) -> None:
        """Take this rank's parts of what a plan loads and is not here yet.

        Args:
            plan: says which part; a state or accumulator that has no value starts at zero.
            wholes: values by name.
            later: names of what gets its value afterwards, and has memory now.

        Raises:
            IrcError: ``input-mismatch`` where a weight has no value.
        """
        device = self._memory(plan)
        for index in plan.weights:
            buffer = plan.buffers[index]
            if buffer.name in self.local:
                continue
            shape = whole_shape(plan, index)
            self._placed[buffer.name] = placement_of(buffer), shape
            self.roles[buffer.name] = buffer.role
            is_later = buffer.name in later
            if buffer.name in wholes and not is_later:
                self.local[buffer.name] = self._own(wholes[buffer.name].detach(), buffer, device)
            elif buffer.role in STARTED or is_later:
                dtype = dtypes()[buffer.dtype]
                room = torch.zeros(buffer.shape, dtype=dtype, device=device)
                own = room[: self._num_rows(buffer.name)] if buffer.rows else room
                self.local[buffer.name] = own
            else:
                raise IrcError("input-mismatch", f"no value for weight '{buffer.name}'")

    def _memory(self, plan: Plan) -> torch.device | None:
        """Return where parts lie; None for where their values are."""
        return memory_of(plan.backend) if self.world > 1 else None

    @property
    def stage(self) -> tuple[int, int]:
        """The place of this rank on the axis of stages, and how many places there are."""
        return 0, 1

    @property
    def mesh_ranks(self) -> Sequence[int]:
        """The ranks of the mesh in its order, as the run numbers them."""
        return range(self.mesh.num_ranks)

    @property
    def names(self) -> list[str]:
        """Names of all tensors that ranks hold between calls, the same on every rank."""
        return list(self.local)

    def missing(self, plan: Plan, wholes: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values of what a plan loads and is not here yet."""
        names = (plan.buffers[index].name for index in plan.weights)
        return {n: wholes[n] for n in names if n not in self.local and n in wholes}

    def hold(self, plan: Plan, local: Mapping[str, torch.Tensor]) -> None:
        """Take tensors that are this rank's parts already."""
        for index in plan.weights:
            buffer = plan.buffers[index]
            self._placed[buffer.name] = placement_of(buffer), whole_shape(plan, index)
            self.roles[buffer.name] = buffer.role
            self.local[buffer.name] = local[buffer.name]

    def put(
        self, name: str, local: torch.Tensor, placement: Placement, shape: tuple[int, ...]
    ) -> None:
        """Take a tensor that is this rank's part of a state already.

        Args:
            name: of the whole.
            local: this rank's part.
            placement: how the whole lies.
            shape: of the whole.
        """
        self._placed[name] = placement, shape
        self.roles[name], self.local[name] = "state", local

    def placements(self) -> dict[str, Placement]:
        """Return how each tensor lies, also those that are whole on every rank."""
        whole = Placement.replicated(self.mesh.names)
        return {n: p if p.axes else whole for n, (p, _) in self._placed.items()}

    def num_bytes(self, *roles: str) -> int:
        """Return the bytes of this rank's parts of some roles, or of all."""
        chosen = [t for n, t in self.local.items() if not roles or self.roles[n] in roles]
        return sum(t.numel() * t.element_size() for t in chosen)

    def whole(self, name: str, *, everywhere: bool = True) -> torch.Tensor | None:
        """Return a copy of a whole tensor; every rank calls it, for the same names in one order.

        Args:
            name: whose.
            everywhere: on every rank; otherwise rank 0 gets it and the others None.
        """
        part, (placement, shape) = self.local[name], self._placed[name]
        if placement.is_replicated or self.mesh.num_ranks == 1:
            return part.to("cpu", copy=True) if everywhere or self.rank == 0 else None
        held = Side(placement, self.mesh, range(self.mesh.num_ranks))
        channel = to_first(held, shape, part.dtype, self.mesh.num_ranks if everywhere else 1)
        return move(channel, self.rank, part)

    def holds(self, name: str) -> bool:
        """Return whether this rank has some of a tensor."""
        return name in self.local

    def copies(self) -> list[Copies]:
        """Return of each tensor which ranks hold copies of one part, the same on every rank."""
        return [
            Copies(name, self.local.get(name), self._slices_by_rank(name))
            for name in self._placed
            if self.roles[name] not in ("accumulator", "constant")
        ]

    def _slices_by_rank(self, name: str) -> list[object]:
        """Return which slice of a tensor each rank of the run holds; None for nothing."""
        return [self._slice_number(name, rank) for rank in range(self.mesh.num_ranks)]

    def _slice_number(self, name: str, rank: int) -> object:
        """Return what tells the slice of a rank of the mesh from those of others."""
        placement, place = self._placed[name][0], self.mesh.coordinates(rank)
        return tuple(place[axis] for axis, p in placement.axes if isinstance(p, Split))

    def pieces(self, name: str) -> dict[str, tuple[slice, ...]]:
        """Return what this rank has of a whole tensor: the names of parts, and where they lie."""
        return {name: self._slices(name)} if name in self.local else {}

    def has_torch_form(self, name: str) -> bool:
        """Whether a DTensor says how a tensor lies; on one device it is as it is."""
        placement, shape = self._placed[name]
        return not placement.axes or is_exact(placement, self.mesh, shape)

    def in_torch(self, name: str) -> torch.Tensor | None:
        """Return a tensor as a DTensor, in the memory of this rank's part; None without one."""
        part = self.local.get(name)
        if part is None or self.mesh.num_ranks == 1:
            return part
        placement, shape = self._placed[name]
        placement = placement if placement.axes else Placement.replicated(self.mesh.names)
        return dtensor(part, placement, self.mesh, shape, on=self._torch_mesh())

    def _torch_mesh(self) -> Any:
        return device_mesh(self.mesh)

    def load(self, name: str, whole: torch.Tensor) -> None:
        """Write this rank's part of a whole tensor over the one that it holds."""
        self.local[name].copy_(whole[self._slices(name)])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return self._placed[name][1]

    def _own(
        self, whole: torch.Tensor, buffer: Buffer, device: torch.device | None
    ) -> torch.Tensor:
        own = whole
        if self.mesh.num_ranks > 1:
            own = whole[self._slices(buffer.name)]
            if buffer.rows:
                # Moved first: of what has room torch moves the front alone.
                return with_room(own if device is None else own.to(device), buffer.shape)
            own = own.clone(memory_format=torch.contiguous_format)
        return own if device is None else own.to(device)

    def _num_rows(self, name: str) -> int:
        """Return how many rows of a tensor this rank has."""
        rows = self._slices(name)[0]
        return rows.stop - rows.start

    def _slices(self, name: str) -> tuple[slice, ...]:
        placement, shape = self._placed[name]
        return local_slices(placement, self.mesh, self.rank, shape)
