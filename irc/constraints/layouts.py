"""Layouts by name: what the axes of a mesh are for in training.

A pin says where a weight lies, not how it is used; these names say both. Over an axis of *samples*
the batch is divided, parameters are used whole, and their gradients are left as partial sums until
all are there (Li et al., arXiv:2006.15704). Parameters may also be stored in parts there, and
gathered for each use (Zhao et al., arXiv:2304.11277). Over an axis of *matrices* products use their
part of a weight alone (Shoeybi et al., arXiv:1909.08053), and with sequences divided too nothing
large is computed twice there (Korthikanti et al., arXiv:2205.05198).
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.dialects.placement import Mesh
from irc.errors import IrcError, did_you_mean

NAMES = ("ddp", "fsdp", "tp", "tp+sp", "ddp+tp", "ddp+tp+sp", "fsdp+tp", "fsdp+tp+sp")
TENSOR = ("tensor", "tp", "model")
"""What an axis may be called over which matrices are divided."""


@dataclass(frozen=True)
class Layout:
    """What the axes of a mesh are for.

    Attributes:
        samples: axes over which the batch is divided.
        matrices: axes over which products divide their weights.
        is_stored_split: parameters are stored in parts over the axes of samples.
        is_all_divided: over the axes of matrices everything else is divided, too.
    """

    samples: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()
    is_stored_split: bool = False
    is_all_divided: bool = False


def parse_layout(name: str, mesh: Mesh) -> Layout:
    """Return the layout of a name; the empty name leaves everything to the search.

    >>> parse_layout("fsdp+tp", Mesh.parse("data=4,tensor=2")).samples
    ('data',)

    Raises:
        IrcError: ``option-value``.
    """
    if not name:
        return Layout()
    words = name.split("+")
    if name not in NAMES:
        raise IrcError(
            "option-value",
            f"there is no layout '{name}'",
            help=did_you_mean(name, NAMES) or f"choose one of {', '.join(NAMES)}",
        )
    matrices: tuple[str, ...] = ()
    if "tp" in words:
        matrices = tuple(axis for axis in mesh.names if axis in TENSOR)
        if not matrices and len(mesh.names) == 1 and words[0] == "tp":
            matrices = mesh.names
        if not matrices:
            raise IrcError(
                "option-value",
                f"layout '{name}' divides matrices, and no axis of '{mesh}' is for that",
                help=f"call one {' or '.join(map(repr, TENSOR))}",
            )
    samples = tuple(axis for axis in mesh.names if axis not in matrices)
    return Layout(samples, matrices, "fsdp" in words, "sp" in words)
