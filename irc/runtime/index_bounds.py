"""What is said of an index that a library op refuses, once it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from irc.errors import IndexOutsideError, IrcError
from irc.ops import names

if TYPE_CHECKING:
    import torch

INDEXED = frozenset({names.TAKE, names.GATHER, names.SCATTER})
"""Ops whose operand 1 selects elements of operand 0 along ``dim``."""

T = TypeVar("T")


def bounded(
    name: str, attrs: Mapping[str, Any], inputs: Sequence[torch.Tensor], run: Callable[[], T]
) -> T:
    """Run an op; looking at the indices costs nothing unless torch refuses.

    Args:
        name: one of ``INDEXED``.
        attrs: its attributes.
        inputs: its operands.
        run: runs it.

    Raises:
        IrcError: ``index-out-of-range``.
    """
    try:
        return run()
    except (IndexError, RuntimeError) as error:
        if (refusal := _outside(name, attrs, inputs)) is not None:
            raise refusal from error
        raise


def _outside(
    name: str, attrs: Mapping[str, Any], inputs: Sequence[torch.Tensor]
) -> IrcError | None:
    """Return the error where an index lies outside; None where torch means something else."""
    import torch

    table, index = inputs[:2]
    # Subclasses (fake tensors) and meta tensors have no values to look at.
    if type(index) is not torch.Tensor or index.is_meta or not index.numel():
        return None
    dim: int = attrs["dim"]
    count, low, high = table.shape[dim], int(index.min()), int(index.max())
    if 0 <= low <= high < count:
        return None
    return index_outside(
        f"index {low if low < 0 else high} lies outside the {count} elements that {name} selects"
        " from"
    )


def index_outside(message: str) -> IndexOutsideError:
    """Return the error ``index-out-of-range``.

    Args:
        message: which index, and of what.
    """
    return IndexOutsideError(
        "index-out-of-range",
        message,
        because="such an element does not exist; torch refuses it too",
        help="check token ids, labels and positions against the sizes of their tables",
    )
