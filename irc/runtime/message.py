"""Collectives of one kind as one: what several move is laid side by side.

Among processes of a host a message takes longer to begin than a hundred kilobytes to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from irc.runtime.direct import (
    Exchange,
    all_gather,
    all_reduce,
    gather_together,
    reduce_scatter,
)


@dataclass(frozen=True)
class Message:
    """What a rank has in a collective, and what it gets.

    Attributes:
        kind: the collective.
        own: contiguous; what it gathers, reduces in place, or has parts of for all ranks.
        result: contiguous; of all ranks, reduced, or its part of that.
        fn: of a reduction: ``sum``, ``max`` or ``min``.
    """

    kind: Literal["all_gather", "all_reduce", "reduce_scatter"]
    own: torch.Tensor
    result: torch.Tensor
    fn: str = ""


def together(messages: Sequence[Message], group: Any) -> Exchange:
    """Begin collectives of one kind, reduction and dtype as one; return what waits for it.

    Args:
        messages: one and more, in an order that is the same on all ranks.
        group: of processes.

    Raises:
        IrcError: ``op-unsupported`` for a dtype that the library does not reduce.
    """
    ranks, kind, fn = group.size(), messages[0].kind, messages[0].fn
    # Of a sum that is scattered each rank gets columns, of anything else it sends all that it has.
    rows = ranks if kind == "reduce_scatter" else 1
    own = torch.cat([each.own.view(rows, -1) for each in messages], dim=1).view(-1)
    if kind == "all_reduce":
        result = own
        work = all_reduce(own, fn, group=group, async_op=True)
    elif kind == "all_gather":
        result = own.new_empty(ranks * own.numel())
        work = all_gather(result, own, group=group, async_op=True)
    else:
        result = own.new_empty(own.numel() // ranks)
        work = reduce_scatter(result, own, fn, group=group, async_op=True)
    columns = result.view(ranks if kind == "all_gather" else 1, -1)
    return Exchange([work], partial(_put_columns, columns, messages))


def gathered(messages: Sequence[Message], group: Any) -> Exchange | None:
    """Begin gathers as one without copies for it; None where :func:`together` has to copy.

    Args:
        messages: as of :func:`together`.
        group: of processes.
    """
    results, own = [each.result for each in messages], [each.own for each in messages]
    return gather_together(results, own, group=group)


def _put_columns(rows: torch.Tensor, messages: Sequence[Message]) -> None:
    """Copy to each result its columns of some rows."""
    start = 0
    for each in messages:
        result = each.result.view(len(rows), -1)
        result.copy_(rows[:, start : start + result.shape[1]])
        start += result.shape[1]
