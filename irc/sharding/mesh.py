"""What passes wrote about the mesh, read back: the mesh itself, and lists of placements."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr


def mesh_of(module: ModuleOp) -> Mesh:
    """Return the mesh that auto-shard wrote into ``irc.mesh``, or the mesh of one device."""
    attr = module.attributes.get("irc.mesh")
    return Mesh.parse(attr.data) if isinstance(attr, StringAttr) else Mesh(())


def placements_in(attribute: Attribute | None) -> list[Placement] | None:
    """Return the placements of an ``sbp`` or ``via`` attribute; None where it is something else."""
    if not isinstance(attribute, ArrayAttr):
        return None
    items = cast("ArrayAttr[Attribute]", attribute)
    return [item.data for item in items if isinstance(item, PlacementAttr)]
