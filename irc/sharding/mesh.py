"""A mesh as users and passes write it, read back; lists of placements."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr
from irc.errors import IrcError

REST = "auto"
"""The size of an axis that takes the ranks which the other axes leave."""


def mesh_of(module: ModuleOp) -> Mesh:
    """Return the mesh that auto-shard wrote into ``irc.mesh``, or the mesh of one device."""
    attr = module.attributes.get("irc.mesh")
    return Mesh.parse(attr.data) if isinstance(attr, StringAttr) else Mesh(())


def parse_mesh(text: str | None, *, written: str | None = None) -> Mesh:
    """Read ``data=2,tensor=2``; nothing is one device.

    Args:
        text: the mesh.
        written: what the user wrote, where that is not ``text``.

    Raises:
        IrcError: ``mesh-syntax``.
    """
    try:
        return Mesh.parse(text or "")
    except ValueError as error:
        raise IrcError(
            "mesh-syntax",
            f"cannot read mesh '{text if written is None else written}'",
            because=str(error),
            help=f"'{REST}' is a size in a script that runs under torchrun; here, write a number"
            if f"={REST}" in (text or "")
            else "write it as axis=size,axis=size, such as data=2,tensor=2",
        ) from None


def fit_mesh(text: str, ranks: int) -> str:
    """Return a mesh of so many ranks: its axis of size ``auto`` takes what the others leave.

    >>> fit_mesh("data=auto,tensor=2", 6)
    'data=3,tensor=2'

    Raises:
        IrcError: ``mesh-syntax``; ``world-size`` where the other axes do not divide the ranks.
    """
    parts = [part.partition("=") for part in text.split(",")]
    rest = [name.strip() for name, _, size in parts if size.strip() == REST]
    if not rest:
        return text
    if len(rest) > 1:
        raise IrcError(
            "mesh-syntax",
            f"cannot read mesh '{text}'",
            because=f"'{rest[0]}' and '{rest[1]}' would both take the ranks that are left",
            help=f"write '{REST}' for one axis",
        )
    ones = ("".join((*part[:2], "1" if part[2].strip() == REST else part[2])) for part in parts)
    multiple = parse_mesh(",".join(ones), written=text).num_ranks
    size, left = divmod(ranks, multiple)
    if left or not size:
        near = f"{ranks - left} or {ranks - left + multiple}" if size else f"{multiple}"
        raise IrcError(
            "world-size",
            f"{ranks} {'process was' if ranks == 1 else 'processes were'} started, and the mesh "
            f"'{text}' is of a multiple of {multiple}",
            help=f"start {near}, or choose a mesh for each number: mesh=lambda ranks: "
            f'"{rest[0]}={REST}" if ranks % {multiple} else "{text}"',
        )
    fitted = (f"{name}={size if old.strip() == REST else old}" for name, _, old in parts)
    return f"{parse_mesh(','.join(fitted))}"


def equal_shares(samples: int, ranks: int) -> str:
    """Say what would do where ranks do not share samples equally: the nearest sizes of both.

    >>> equal_shares(12, 5)
    '10 or 15 samples for 5, or 4 or 6 ranks for 12'
    """
    less, more = samples - samples % ranks, samples - samples % ranks + ranks
    fewer = max(n for n in range(1, ranks) if samples % n == 0)
    many = next((n for n in range(ranks, samples + 1) if samples % n == 0), 0)
    numbers = f"{less} or {more}" if less else f"{more}"
    shares = f"{fewer} or {many} ranks" if many else f"{fewer} rank{'s' if fewer > 1 else ''}"
    return f"{numbers} samples for {ranks}, or {shares} for {samples}"


def placements_in(attribute: Attribute | None) -> list[Placement] | None:
    """Return the placements of an ``sbp`` or ``via`` attribute; None where it is something else."""
    if not isinstance(attribute, ArrayAttr):
        return None
    items = cast("ArrayAttr[Attribute]", attribute)
    return [item.data for item in items if isinstance(item, PlacementAttr)]
