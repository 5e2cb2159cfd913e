"""The mesh that a module was planned for."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.dialects.placement import Mesh


def mesh_of(module: ModuleOp) -> Mesh:
    """Return the mesh that auto-shard wrote into ``irc.mesh``, or the mesh of one device."""
    attr = module.attributes.get("irc.mesh")
    return Mesh.parse(attr.data) if isinstance(attr, StringAttr) else Mesh(())
