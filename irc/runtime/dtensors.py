"""What ranks hold, as DTensors: the form in which torch's checkpoints take and give parts.

A DTensor says by placements which box of the whole its rank has. One case differs: of a dim that
axes split out of mesh order (``_StridedShard``) and that they do not divide, torch computes other
boxes than ceil-sized chunks of chunks. Such a tensor has no DTensor.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch

from irc.dialects.placement import Mesh, Placement
from irc.sharding.dtensor import to_dtensor

if TYPE_CHECKING:
    # Their import takes a second.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_MESHES: dict[Mesh, DeviceMesh] = {}
"""Of the run; each has process groups, which are made once."""


def device_mesh(mesh: Mesh, axes: Sequence[str] | None = None) -> DeviceMesh:
    """Return torch's mesh of all processes, or the part of it that this rank shares some axes of.

    Every rank calls it, the first time.
    """
    from torch.distributed.device_mesh import init_device_mesh

    if mesh not in _MESHES:
        sizes = tuple(mesh.size(name) for name in mesh.names)
        _MESHES[mesh] = init_device_mesh("cpu", sizes, mesh_dim_names=mesh.names)
    found = _MESHES[mesh]
    return found if axes is None or tuple(axes) == mesh.names else found[tuple(axes)]


def has_dtensor(placement: Placement, mesh: Mesh, shape: Sequence[int]) -> bool:
    """Whether torch finds the same boxes for a placement as :mod:`irc.sharding.shards`."""
    for text, (axis, _) in zip(to_dtensor(placement, mesh), placement.axes, strict=True):
        if text.startswith("_StridedShard"):
            dim = placement[axis].dim  # type: ignore[union-attr]  # it is a split
            if shape[dim] % prod(mesh.size(name) for name in placement.split_axes(dim)):
                return False
    return True


def as_dtensor(
    part: torch.Tensor, placement: Placement, mesh: Mesh, shape: Sequence[int], on: DeviceMesh
) -> DTensor:
    """Return this rank's part as a DTensor, in the same memory.

    Args:
        part: what this rank holds.
        placement: how the whole lies.
        mesh: irc's.
        shape: of the whole.
        on: torch's mesh, of the same axes.
    """
    from torch.distributed.tensor import DTensor, placement_types

    names = dict(vars(placement_types))
    placements = [eval(text, names) for text in to_dtensor(placement, mesh)]
    whole = torch.empty(tuple(shape), device="meta")
    return DTensor.from_local(
        part, on, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
