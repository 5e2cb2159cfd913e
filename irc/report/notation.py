"""Placements as people write them: OneFlow's tuples, DTensor's objects, and the short `S(0)R`."""

from __future__ import annotations

from irc.dialects.placement import Broadcast, Mesh, Partial, Placement, Split
from irc.sharding.dtensor import to_dtensor


def oneflow(placement: Placement | None) -> str:
    """Write a placement as OneFlow does, one entry for each mesh axis.

    Another order of application than the mesh's is said behind the tuple.

    >>> oneflow(Placement.of(data=Split(0), tensor=Partial()))
    '(S(0), P)'
    >>> oneflow(Placement((("data", Split(0, 1)), ("tensor", Split(0)))))
    '(S(0), S(0); tensor before data)'
    """
    if placement is None:
        return "-"
    parts = ", ".join(part_text(placed) for placed in placement)
    return f"({parts}{_order(placement)})"


def dtensor(placement: Placement | None, mesh: Mesh) -> str:
    """Write a placement as torch.distributed does.

    >>> dtensor(Placement.of(data=Split(0)), Mesh.parse("data=2"))
    '[Shard(0)]'
    """
    return "-" if placement is None else f"[{', '.join(to_dtensor(placement, mesh))}]"


def short(placement: Placement | None) -> str:
    """Write a placement as DTensor prints it in graphs, R being replicated.

    >>> short(Placement.replicated(("data", "tensor")))
    'RR'
    """
    if placement is None:
        return "whole"
    texts = ("R" if isinstance(placed, Broadcast) else part_text(placed) for placed in placement)
    return "".join(texts) + _order(placement).replace("; ", " ")


def part_text(placed: object) -> str:
    """Write how one axis holds a tensor."""
    match placed:
        case Split(dim):
            return f"S({dim})"
        case Partial("sum"):
            return "P"
        case _:
            return str(placed)


def _order(placement: Placement) -> str:
    if Placement.in_mesh_order(placement.axes) == placement:
        return ""
    dims = sorted({p.dim for p in placement if isinstance(p, Split)})
    orders = [placement.split_axes(dim) for dim in dims]
    names = placement.names
    odd = [axes for axes in orders if list(axes) != sorted(axes, key=names.index)]
    return "; " + ", ".join(" before ".join(axes) for axes in odd)
