"""A mesh as users and passes write it, read back; lists of placements."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr
from irc.errors import IrcError


def mesh_of(module: ModuleOp) -> Mesh:
    """Return the mesh that auto-shard wrote into ``irc.mesh``, or the mesh of one device."""
    attr = module.attributes.get("irc.mesh")
    return Mesh.parse(attr.data) if isinstance(attr, StringAttr) else Mesh(())


def parse_mesh(text: str | None) -> Mesh:
    """Read ``data=2,tensor=2``; nothing is one device.

    Raises:
        IrcError: ``mesh-syntax``.
    """
    try:
        return Mesh.parse(text or "")
    except ValueError as error:
        raise IrcError(
            "mesh-syntax",
            f"cannot read mesh '{text}'",
            because=str(error),
            help="write it as axis=size,axis=size, such as data=2,tensor=2",
        ) from None


def placements_in(attribute: Attribute | None) -> list[Placement] | None:
    """Return the placements of an ``sbp`` or ``via`` attribute; None where it is something else."""
    if not isinstance(attribute, ArrayAttr):
        return None
    items = cast("ArrayAttr[Attribute]", attribute)
    return [item.data for item in items if isinstance(item, PlacementAttr)]
