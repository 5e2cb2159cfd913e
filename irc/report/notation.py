"""Placements as people write them: OneFlow's tuples, DTensor's objects, and the short `S(0)R`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from irc.dialects.placement import AxisPlacement, B, Broadcast, Mesh, Partial, Placement, Split
from irc.sharding.dtensor import to_dtensor

DTENSOR = "dtensor"
NOTATIONS: Mapping[str, str] = {"oneflow": "OneFlow", DTENSOR: "DTensor"}
"""How placements may be shown: the name of a choice, and whose notation it is."""
ONE = r"(?:S\(\d+(?:, \d+)?\)|B|P(?:\(\w+\))?)"
TUPLE = re.compile(rf"\(({ONE}(?:, {ONE})*)(?:; ([\w ,]+))?\)")
PART = re.compile(r"S\((\d+)(?:, (\d+))?\)|B|P(?:\((\w+)\))?")
REDUCTIONS = {"sum": Partial("sum"), "max": Partial("max"), "min": Partial("min")}


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


def in_dtensor(text: str, mesh: Mesh) -> str:
    """Write each tuple of a text as DTensor does: signatures, and changes of a placement.

    >>> in_dtensor("(S(0), B), (B, P) -> (P(max), S(1))", Mesh.parse("data=2,tensor=4"))
    "[Shard(0), Replicate()], [Replicate(), Partial('sum')] -> [Partial('max'), Shard(1)]"
    >>> in_dtensor("(S(0), S(0); tensor before data)", Mesh.parse("data=2,tensor=4"))
    '[_StridedShard(0, split_factor=4), Shard(0)]'
    """

    def told(match: re.Match[str]) -> str:
        parts = [_read(part) for part in PART.finditer(match[1])]
        if len(parts) != len(mesh.names):
            return match[0]
        axes = tuple(zip(mesh.names, parts, strict=True))
        if match[2] is not None:
            axes = _ordered(axes, match[2])
        elif not any(isinstance(part, Split) and part.order for part in parts):
            axes = Placement.in_mesh_order(axes).axes
        return dtensor(Placement(axes), mesh)

    return TUPLE.sub(told, text)


def _read(part: re.Match[str]) -> AxisPlacement:
    if part[1] is not None:
        return Split(int(part[1]), int(part[2] or 0))
    return B if part[0] == "B" else REDUCTIONS[part[3] or "sum"]


def _ordered(
    axes: tuple[tuple[str, AxisPlacement], ...], said: str
) -> tuple[tuple[str, AxisPlacement], ...]:
    """Number splits of a dim as ``b before a`` says, those that it does not name in mesh order."""
    orders = [words.split(" before ") for words in said.split(", ")]
    numbered = dict(Placement.in_mesh_order(axes).axes)
    for names in orders:
        for order, name in enumerate(names):
            placed = numbered[name]
            assert isinstance(placed, Split)
            numbered[name] = Split(placed.dim, order)
    return tuple(numbered.items())


def short(placement: Placement | None) -> str:
    """Write a placement as DTensor prints it in graphs, R being replicated.

    >>> short(Placement.replicated(("data", "tensor")))
    'RR'
    """
    if placement is None:
        return "whole"
    texts = ("R" if isinstance(placed, Broadcast) else part_text(placed) for placed in placement)
    return "".join(texts) + _order(placement).replace("; ", " ")


def written(placement: Placement | None, mesh: Mesh, notation: str = "") -> str:
    """Write a placement in a notation of :data:`NOTATIONS`; without one, in the short form.

    >>> [written(Placement.of(data=Split(0)), Mesh.parse("data=2"), n) for n in ("", *NOTATIONS)]
    ['S(0)', '(S(0))', '[Shard(0)]']
    """
    if placement is None or not notation:
        return short(placement)
    return dtensor(placement, mesh) if notation == DTENSOR else oneflow(placement)


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
