"""The parameters of a module as the ranks of a mesh hold them: each is a DTensor of torch.

They become DTensors before an optimiser takes them, whole on every rank at first. A plan says later
where they lie: the objects stay, so that optimisers, hooks and names go on as before, and a rank
lets go of what it does not hold.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from irc.dialects.placement import Mesh, Placement, Split
from irc.frontends.torch.faces import face
from irc.plan.weights import local_slices
from irc.runtime.held import dtensor, is_held, part_of, placement_of
from irc.runtime.replicas import Copies
from irc.runtime.rooms import with_room

NO_ROOMS: Mapping[str, tuple[int, ...]] = {}


class ShardedParameters:
    """The parameters of one module on one mesh; plain ones become DTensors.

    Args:
        module: the module.
        mesh: over all processes.
        rank: of this one.
        stay: every rank keeps all of them, and they stay plain: an op of torch costs a DTensor some
            ten times as much as a small tensor itself.

    Attributes:
        placements: of the parameters that have their place, by their first name.
    """

    def __init__(self, module: nn.Module, mesh: Mesh, rank: int, *, stay: bool = False) -> None:
        self._module, self._mesh, self._rank = module, mesh, rank
        self._open = {name for name, p in module.named_parameters() if not is_held(p)}
        self.placements = {
            name: placement_of(parameter, mesh)
            for name, parameter in module.named_parameters()
            if is_held(parameter)
        }
        self._seen: dict[int, int] = {}
        whole = Placement.replicated(mesh.names)
        parameters: dict[int, nn.Parameter] = {}
        for slots, key, value in [] if stay else _slots(module):
            if is_held(value):
                continue
            if id(value) not in parameters:
                held = dtensor(value.detach(), whole, mesh, tuple(value.shape))
                parameters[id(value)] = nn.Parameter(held, value.requires_grad)
            slots[key] = parameters[id(value)]

    @property
    def by_name(self) -> dict[str, nn.Parameter]:
        """The parameters, each once, under its first name."""
        return dict(self._module.named_parameters())

    def whole(self) -> dict[str, torch.Tensor]:
        """Return the parameters that have no place yet: this rank has all of them."""
        return {n: part_of(p).detach() for n, p in self.by_name.items() if n in self._open}

    def parts(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of each parameter that has its place."""
        return {n: part_of(p).detach() for n, p in self.by_name.items() if n not in self._open}

    def copies(self) -> list[Copies]:
        """Return of each parameter which ranks hold copies of one part."""
        whole = Placement.replicated(self._mesh.names)
        return [
            Copies(name, part_of(p).detach(), self._slices(self.placements.get(name, whole)))
            for name, p in self.by_name.items()
        ]

    def _slices(self, placement: Placement) -> list[object]:
        """Return for each rank what tells the slice that it holds from others."""
        split = [axis for axis, placed in placement.axes if isinstance(placed, Split)]
        places = map(self._mesh.coordinates, range(self._mesh.num_ranks))
        return [tuple(place[axis] for axis in split) for place in places]

    def count_writes(self) -> None:
        """Count a write to a part where torch counted one to the parameter.

        What ops of a DTensor do to its part they do below what counts.
        """
        for parameter in self._module.parameters():
            if not is_held(parameter):
                continue
            version = parameter._version
            if self._seen.get(id(parameter)) != version:
                self._seen[id(parameter)] = version
                torch.autograd.graph.increment_version(part_of(parameter))

    def place(
        self,
        placements: Mapping[str, Placement],
        rooms: Mapping[str, tuple[int, ...]] = NO_ROOMS,
    ) -> None:
        """Let each rank keep its part of parameters that it has whole; every rank calls it.

        Args:
            placements: of those that a plan reads; others lie whole on every rank.
            rooms: of those that are padded, the shape of the memory that a rank has its part in.
        """
        for name, parameter in self.by_name.items():
            if name not in self._open:
                continue
            placement = placements.get(name, Placement.replicated(self._mesh.names))
            if not is_held(parameter):
                assert placement.is_replicated, name
                self.placements[name] = placement
                continue
            shape = tuple(parameter.shape)
            whole = part_of(parameter).detach()
            part = whole[local_slices(placement, self._mesh, self._rank, shape)]
            if name in rooms:
                part = with_room(part, rooms[name])
            elif placement.is_replicated:
                part = part.contiguous()
            else:  # a view would keep all of it
                part = part.clone(memory_format=torch.contiguous_format)
            held: Any = dtensor(part, placement, self._mesh, shape)
            own: Any = parameter
            own._local_tensor, own._spec = held._local_tensor, held._spec
            if own.grad is not None:
                own.grad = own.grad.redistribute(placements=own.placements)
            self.placements[name] = placement
        self._open.clear()

    @contextmanager
    def blank(self) -> Generator[None]:
        """Let the module have plain parameters of whole shapes, whose values nobody reads."""
        kept = list(_slots(self._module))
        plain: dict[int, nn.Parameter] = {}
        for _, _, value in kept:
            if id(value) not in plain:
                # Never touched, so the system gives it no pages.
                room = torch.empty(value.shape, dtype=value.dtype)
                plain[id(value)] = nn.Parameter(room, value.requires_grad)
        try:
            for slots, key, value in kept:
                slots[key] = plain[id(value)]
            yield
        finally:
            for slots, key, value in kept:
                slots[key] = value


def laid_as(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of a module in which whole tensors lie as the module's own parameters do."""
    own = dict(module.named_parameters(remove_duplicate=False))
    return {
        name: _laid(value, own[name]) if name in own and _is_whole(value, own[name]) else value
        for name, value in state.items()
    }


def _is_whole(value: Any, own: Any) -> bool:
    """True for a plain tensor where a module has a DTensor of that shape."""
    fits = isinstance(value, torch.Tensor) and value.shape == own.shape
    return fits and is_held(own) and not is_held(value)


def _laid(whole: torch.Tensor, own: Any) -> torch.Tensor:
    """Return a whole tensor as a DTensor that lies as another one of its shape."""
    axes = zip(own.device_mesh.mesh_dim_names, own.device_mesh.shape, strict=True)
    mesh = Mesh(tuple(axes))
    placement = placement_of(own, mesh)
    part = whole.detach()[local_slices(placement, mesh, dist.get_rank(), tuple(whole.shape))]
    return dtensor(part.contiguous(), placement, mesh, tuple(whole.shape))


def whole_module(module: nn.Module, cls: type[nn.Module]) -> nn.Module:
    """Return a copy of a module with plain parameters, whole on every rank; all ranks call it.

    Args:
        module: whose parameters may be DTensors.
        cls: of the copy.
    """
    memo: dict[int, Any] = {}
    for value in (*module.parameters(), *module.buffers()):
        if is_held(value):
            full = cast("Any", value).full_tensor().detach().clone()
            memo[id(value)] = (
                nn.Parameter(full, value.requires_grad) if isinstance(value, nn.Parameter) else full
            )
    return copy.deepcopy(face(cls, module), memo)


def _slots(module: nn.Module) -> list[tuple[dict[str, Any], str, nn.Parameter]]:
    """Return where the modules in a module hold their parameters."""
    return [
        (child._parameters, key, value)  # pyright: ignore[reportPrivateUsage]
        for child in module.modules()
        for key, value in child._parameters.items()  # pyright: ignore[reportPrivateUsage]
        if value is not None
    ]
