"""Placements as torch.distributed's DTensor writes them, and back.

DTensor has one placement for each mesh dim, applied left to right; where another order holds, the
left dim is a ``_StridedShard`` whose ``split_factor`` counts the parts that dims to its right had
made before. Average, product and masked partials have no equal here and are refused by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from irc.dialects.placement import AxisPlacement, B, Broadcast, Mesh, Partial, Placement, Split
from irc.errors import IrcError


def to_dtensor(placement: Placement, mesh: Mesh) -> tuple[str, ...]:
    """Return the DTensor placements as Python expressions, one for each mesh axis.

    >>> mesh = Mesh.parse("data=2,tensor=4")
    >>> to_dtensor(Placement((("data", Split(0, 1)), ("tensor", Split(0)))), mesh)
    ('_StridedShard(0, split_factor=4)', 'Shard(0)')
    """
    return tuple(_write(placement, mesh, axis, placed) for axis, placed in placement.axes)


def _write(placement: Placement, mesh: Mesh, axis: str, placed: AxisPlacement) -> str:
    match placed:
        case Broadcast():
            return "Replicate()"
        case Partial(reduction):
            return f"Partial('{reduction}')"
        case Split(dim, order):
            right = mesh.names[mesh.names.index(axis) + 1 :]
            before = placement.split_axes(dim)[:order]
            factor = prod(mesh.size(name) for name in before if name in right)
            return (
                f"Shard({dim})" if factor == 1 else f"_StridedShard({dim}, split_factor={factor})"
            )


def is_exact(placement: Placement, mesh: Mesh, shape: Sequence[int]) -> bool:
    """Whether torch finds the same boxes for a placement as :mod:`irc.sharding.shards`.

    Of a dim that axes split out of mesh order and that they do not divide, it computes others than
    ceil-sized chunks of chunks.
    """
    for text, (_, placed) in zip(to_dtensor(placement, mesh), placement.axes, strict=True):
        if text.startswith("_StridedShard") and isinstance(placed, Split):
            axes = placement.split_axes(placed.dim)
            if shape[placed.dim] % prod(mesh.size(name) for name in axes):
                return False
    return True


def from_dtensor(placements: Sequence[Any], mesh: Mesh, *, ndim: int) -> Placement:
    """Read DTensor placements: the objects, or the expressions that :func:`to_dtensor` writes.

    Args:
        placements: one for each mesh dim.
        mesh: the mesh.
        ndim: dims of the tensor, which negative shard dims count back from.

    Raises:
        IrcError: ``dtensor-placement``, for a placement that irc cannot say.
    """
    if len(placements) != len(mesh.axes):
        raise _refused(
            f"{len(placements)} placements for a mesh of {len(mesh.axes)} axes ({mesh})",
            "give one placement for each mesh axis",
        )
    read: dict[str, tuple[AxisPlacement, int]] = {
        axis: _read(placement, axis, ndim)
        for axis, placement in zip(mesh.names, placements, strict=True)
    }
    orders = _orders(read, mesh)
    return Placement(
        tuple(
            (axis, Split(placed.dim, orders[axis]) if isinstance(placed, Split) else placed)
            for axis, (placed, _) in read.items()
        )
    )


def _orders(read: Mapping[str, tuple[AxisPlacement, int]], mesh: Mesh) -> dict[str, int]:
    """Rebuild the order of application from split factors.

    From the right: an axis applies after the first k of those to its right, whose sizes multiply
    to its split factor. Sizes of 1 count for nothing, and stay where mesh order puts them.
    """
    sequences: dict[int, list[str]] = {}
    for axis in reversed(mesh.names):
        placed, factor = read[axis]
        if not isinstance(placed, Split):
            continue
        sequence = sequences.setdefault(placed.dim, [])
        after = next(
            (k for k in range(len(sequence) + 1) if prod(map(mesh.size, sequence[:k])) == factor),
            None,
        )
        if after is None:
            raise _refused(
                f"_StridedShard({placed.dim}, split_factor={factor}) on mesh axis '{axis}'",
                "a split factor multiplies the sizes of the axes to the right that apply before",
            )
        sequence.insert(after, axis)
    return {axis: i for sequence in sequences.values() for i, axis in enumerate(sequence)}


def _read(placement: Any, axis: str, ndim: int) -> tuple[AxisPlacement, int]:
    """Return the placement and its split factor."""
    kind, fields = _parse(placement) if isinstance(placement, str) else _fields(placement)
    match kind:
        case "Replicate":
            return B, 1
        case "Shard" | "_StridedShard":
            dim = int(fields["dim"])
            if not -ndim <= dim < ndim:
                raise _refused(
                    f"{kind}({dim}) of a tensor with {ndim} dims", "name a dim that exists"
                )
            return Split(dim % ndim), int(fields.get("split_factor", 1))
        case "Partial" if fields.get("reduce_op", "sum") in ("sum", "max", "min"):
            return Partial(fields.get("reduce_op", "sum")), 1
        case _:
            text = ", ".join(f"{name}={value!r}" for name, value in fields.items())
            raise _refused(
                f"{kind}({text}) on mesh axis '{axis}'",
                "redistribute it to Replicate, Shard or Partial of sum, max or min first",
            )


def _fields(placement: Any) -> tuple[str, dict[str, Any]]:
    names = ("dim", "split_factor", "reduce_op")
    fields = {
        name: getattr(placement, name)
        for name in names
        if getattr(placement, name, None) is not None
    }
    return type(placement).__name__, fields


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    match = re.fullmatch(r"(\w+)\((.*)\)", text.strip())
    if match is None:
        raise _refused(repr(text), "write Replicate(), Shard(0) or Partial('sum')")
    kind, inside = match.groups()
    names = ("reduce_op",) if kind == "Partial" else ("dim", "split_factor")
    fields: dict[str, Any] = {}
    for index, part in enumerate(filter(None, (p.strip() for p in inside.split(",")))):
        name, equals, value = part.partition("=")
        try:
            fields[name if equals else names[index]] = ast.literal_eval(
                (value if equals else part).strip()
            )
        except (ValueError, SyntaxError, IndexError):
            raise _refused(repr(text), "write Replicate(), Shard(0) or Partial('sum')") from None
    return kind, fields


def _refused(what: str, help: str) -> IrcError:  # noqa: A002 - as IrcError names it
    return IrcError(
        "dtensor-placement",
        f"irc has no placement for {what}",
        because="a placement here is S(dim), B, or P of sum, max or min",
        help=help,
    )


def to_oneflow(placement: Placement) -> str:
    """Print in OneFlow's notation, which applies left to right.

    >>> to_oneflow(Placement.of(data=Split(0), tensor=Partial()))
    '(S(0), P)'

    Raises:
        IrcError: ``dtensor-placement``, for another order of application or P(max), P(min).
    """
    mesh_order = Placement.in_mesh_order(placement.axes)
    if mesh_order != placement:
        raise _refused(f"{placement} in OneFlow's notation", "permute the mesh axes")
    texts: list[str] = []
    for placed in placement:
        match placed:
            case Split(dim):
                texts.append(f"S({dim})")
            case Partial("sum"):
                texts.append("P")
            case Partial():
                raise _refused(f"{placed} in OneFlow's notation", "reduce it first")
            case _:
                texts.append("B")
    return f"({', '.join(texts)})"
