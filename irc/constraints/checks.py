"""Whether a constraint can be: its axes are those of the mesh, its dims those of the tensor."""

from __future__ import annotations

from irc.constraints.patterns import Pattern, SignaturePattern
from irc.constraints.pins import Statement
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import Mesh, Partial, Split
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.sharding.boxing import even_shape


def check_mesh(statement: Statement, mesh: Mesh) -> None:
    """Refuse axes that the mesh does not have.

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    pattern = statement.pattern
    sides = (pattern,) if isinstance(pattern, Pattern) else (*pattern.operands, *pattern.results)
    try:
        for side in sides:
            side.axes(mesh)
    except ValueError as error:
        raise IrcError(
            "mesh-mismatch",
            f"cannot {statement.verb} '{statement.glob}': {error}",
            where=statement.where,
            help=f"its axes are {', '.join(mesh.names)}",
        ) from None


def check_argument(
    statement: Statement, name: str, kind: TensorType, mesh: Mesh, *, is_sum: bool = False
) -> None:
    """Refuse what an argument cannot be: partial, split along a dim that it lacks, uneven.

    Args:
        statement: what is asked for.
        name: of the argument.
        kind: of the argument.
        mesh: of the program.
        is_sum: it holds a sum of gradients, of which each rank may have its part.

    Raises:
        IrcError: ``placement-syntax`` or ``mesh-axis-indivisible``.
    """
    pattern = statement.pattern
    if not isinstance(pattern, Pattern):
        raise IrcError(
            "placement-syntax",
            f"'{statement.glob}' is an argument, which has a placement and no signature",
            where=statement.where,
        )
    _check_dims(statement, pattern, name, kind, mesh)
    partial = [a for a, p in zip(mesh.names, pattern.axes(mesh), strict=True)
               if isinstance(p.placed, Partial) or p.placed == "P(*)"]  # fmt: skip
    if statement.verb == "pin" and partial and not is_sum:
        raise IrcError(
            "placement-syntax",
            f"pin '{statement.glob}' makes an argument partial on {', '.join(partial)}",
            where=statement.where,
            because="what a rank loads is a slice, or the whole",
            help="use S(dim) or B",
        )
    if statement.verb == "pin":
        _check_even(statement, pattern, name, kind, mesh)


def has_dims(statement: Statement, kind: TensorType) -> bool:
    """Return whether a tensor has every dim that a statement splits."""
    pattern = statement.pattern
    if not isinstance(pattern, Pattern):
        return True
    every = (*dict(pattern.named).values(), *(pattern.listed or ()))
    splits = [one.placed for one in every if isinstance(one.placed, Split)]
    return all(-kind.ndim <= split.dim < kind.ndim for split in splits)


def _check_dims(
    statement: Statement, pattern: Pattern, name: str, kind: TensorType, mesh: Mesh
) -> None:
    for axis, one in zip(mesh.names, pattern.axes(mesh), strict=True):
        placed = one.placed
        if isinstance(placed, Split) and not -kind.ndim <= placed.dim < kind.ndim:
            raise IrcError(
                "placement-syntax",
                f"'{name}' has {kind.ndim} dims; axis '{axis}' cannot split dim {placed.dim}",
                where=statement.where,
            )


def _check_even(
    statement: Statement, pattern: Pattern, name: str, kind: TensorType, mesh: Mesh
) -> None:
    """Refuse a pin whose shards differ.

    Raises:
        IrcError: ``mesh-axis-indivisible``, naming the sizes of the axis that would do.
    """
    if mesh.num_ranks == 1:  # of any size, named ones too
        return
    shape = list(kind.static_shape())
    for axis, one in zip(mesh.names, pattern.axes(mesh), strict=True):
        placed = one.placed
        if not isinstance(placed, Split):
            continue
        dim, parts = placed.dim % kind.ndim, mesh.size(axis)
        if shape[dim] % parts:
            asks = "the pin asks for" if statement.equal else "auto-shard makes"
            fitting = [str(n) for n in range(2, min(shape[dim], 64) + 1) if shape[dim] % n == 0]
            raise IrcError(
                "mesh-axis-indivisible",
                f"cannot shard '{name}' dim {dim} ({shape[dim]}) over mesh axis '{axis}' ({parts})",
                where=statement.where,
                because=f"{asks} equal shards, and {shape[dim]} is not a multiple of {parts}",
                help=f"use a size of '{axis}' that divides it ({', '.join(fitting[:6])})"
                if fitting
                else "split another dim",
            )
        shape[dim] //= parts
    exact = pattern.exact(mesh, kind.ndim)
    assert exact is None or even_shape(kind.static_shape(), exact, mesh) is not None


def check_op(statement: Statement, op: FlowOp) -> None:
    """Refuse results and signatures that an op does not have.

    Raises:
        IrcError: ``input-mismatch`` or ``placement-syntax``.
    """
    index = result_index(statement)
    if index >= len(op.outputs):
        raise IrcError(
            "input-mismatch",
            f"op '{id_of(op)}' ({op.name}) has {len(op.outputs)} results; there is no #{index}",
            where=statement.where,
        )
    pattern = statement.pattern
    if isinstance(pattern, SignaturePattern):
        counts = len(pattern.operands), len(pattern.results)
        if counts != (len(op.inputs), len(op.outputs)):
            raise IrcError(
                "placement-syntax",
                f"op '{id_of(op)}' ({op.name}) takes {len(op.inputs)} operands and gives"
                f" {len(op.outputs)} results; the signature has {counts[0]} and {counts[1]}",
                where=statement.where,
            )


def result_index(statement: Statement) -> int:
    """Return the number of the result that a statement about an op means: ``n3#1``."""
    number = statement.glob.rpartition("#")[2] if "#" in statement.glob else ""
    return int(number) if number.isdigit() and statement.kind == "op" else 0
