"""Tensors that the ranks hold in parts between calls, such as key-value caches.

To its owner such a tensor is a DTensor of torch: it has the whole shape, each rank's memory is its
part alone, and whoever wants all of it says ``full_tensor()``. What every rank holds whole stays a
plain tensor.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh, Placement
from irc.errors import IrcError
from irc.plan.weights import local_slices
from irc.runtime.network_threads import defer_network_threads
from irc.sharding.dtensor import from_dtensor, to_dtensor


def is_held(tensor: object) -> bool:
    """True for a tensor of which this rank has a part."""
    return type(tensor).__name__ == "DTensor" and isinstance(tensor, torch.Tensor)


def part_of(tensor: Any) -> torch.Tensor:
    """Return this rank's part; a plain tensor is its own."""
    return tensor._local_tensor if is_held(tensor) else tensor


def hold(part: torch.Tensor, placement: Placement, mesh: Mesh) -> torch.Tensor:
    """Return the whole tensor, of which this rank holds a part.

    Args:
        part: on this rank; the tensor shares its memory.
        placement: how it lies; what lies whole on every rank is returned as it is.
        mesh: over all processes. Every process calls this.
    """
    if placement.is_replicated:
        return part
    shape = list(part.shape)
    for dim in range(part.ndim):
        for axis in placement.split_axes(dim):
            shape[dim] *= mesh.size(axis)
    return dtensor(part, placement, mesh, tuple(shape))


def dtensor(
    part: torch.Tensor,
    placement: Placement,
    mesh: Mesh,
    shape: tuple[int, ...],
    on: Any = None,
) -> torch.Tensor:
    """Return the whole tensor as a DTensor, also where every rank holds all of it.

    Args:
        part: on this rank; the tensor shares its memory.
        placement: how it lies, perhaps as a sum that ranks have parts of.
        mesh: over all processes. Every process calls this.
        shape: of the whole.
        on: torch's object for the mesh, where it is not over all processes.
    """
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        device_mesh(mesh) if on is None else on,
        torch_placements(placement, mesh),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def lying_as(tensor: Any, part: torch.Tensor) -> torch.Tensor:
    """Return a tensor that lies as a DTensor does, of another part on this rank, without gradients.

    It takes a tenth of the time of :func:`dtensor`, whose description is made anew; this is how
    ``fully_shard`` makes gradients.

    Args:
        tensor: the DTensor.
        part: of the shape of its part on this rank; the result shares its memory.
    """
    return type(tensor)(part, tensor._spec, requires_grad=False)


@cache
def torch_placements(placement: Placement, mesh: Mesh) -> tuple[Any, ...]:
    """Return a placement as DTensor has it, an object for each mesh axis."""
    return tuple(_object(text) for text in to_dtensor(placement, mesh))


def split(whole: torch.Tensor, placement: Placement, mesh: Mesh, rank: int) -> torch.Tensor:
    """Return a whole tensor as the ranks are to hold it: a copy of this rank's part."""
    if placement.is_replicated:
        return whole
    part = whole[local_slices(placement, mesh, rank, tuple(whole.shape))]
    return hold(part.clone(memory_format=torch.contiguous_format), placement, mesh)


def placement_of(tensor: Any, mesh: Mesh) -> Placement:
    """Return how a tensor lies on a mesh; a plain one lies whole on every rank.

    Raises:
        IrcError: ``input-mismatch`` where it lies on another mesh; ``dtensor-placement``.
    """
    if not is_held(tensor):
        return Placement.replicated(mesh.names)
    tensor_mesh = tensor.device_mesh
    if (tensor_mesh.mesh_dim_names, tuple(tensor_mesh.shape)) != (
        mesh.names,
        tuple(n for _, n in mesh.axes),
    ):
        raise IrcError(
            "input-mismatch",
            f"a tensor lies on the mesh {tensor_mesh.mesh_dim_names} of {tuple(tensor_mesh.shape)} "
            f"ranks, the program on {mesh}",
            help="start with a new cache, or gather it: irc.whole(cache)",
        )
    return from_dtensor(tensor.placements, mesh, ndim=tensor.ndim)


def blank(tensor: Any) -> Any:
    """Return memory of the whole shape for a tensor that ranks hold in parts, to trace with."""
    return torch.empty(tensor.shape, dtype=tensor.dtype) if is_held(tensor) else tensor


def device_mesh(mesh: Mesh) -> Any:
    """Return torch's object for a mesh; every process calls it."""
    return _device_mesh(str(mesh), id(dist.group.WORLD))


@cache
def _device_mesh(mesh: str, _: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    axes = Mesh.parse(mesh).axes
    sizes = tuple(size for _, size in axes)
    of_torch = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(name for name, _ in axes))
    defer_network_threads()
    return of_torch


def _object(text: str) -> Any:
    """Return the placement that :func:`to_dtensor` wrote."""
    from torch.distributed.tensor import placement_types

    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    args = [ast.literal_eval(arg) for arg in call.args]
    named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return getattr(placement_types, call.func.id)(*args, **named)
