"""Names of the factors in a rule: a letter for each dim, which broadcast operands share."""

from __future__ import annotations

from string import ascii_lowercase

from irc.dialects.items import Shape
from irc.ops.infer import Attrs
from irc.ops.rule import TensorTerm


def dim_of(attrs: Attrs) -> int:
    """Return the dim that an op works along."""
    dim: int = attrs["dim"]
    return dim


def letters(shape: Shape) -> TensorTerm:
    """Name each dim with a factor of its own; a dim of size 1 is never split.

    >>> letters((8, 1, 4))
    (('a',), (), ('c',))
    """
    return tuple(
        () if size == 1 else (ascii_lowercase[i] if i < 26 else f"d{i}",)
        for i, size in enumerate(shape)
    )


def align(operand: Shape, shape: Shape, names: TensorTerm) -> TensorTerm:
    """Name the dims of an operand that broadcasts to ``shape``; stretched dims are never split.

    >>> align((1, 4), (8, 2, 4), letters((8, 2, 4)))
    ((), ('c',))
    """
    tail = len(shape) - len(operand)
    return tuple(
        names[tail + i] if size == shape[tail + i] else () for i, size in enumerate(operand)
    )
