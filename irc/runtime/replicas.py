"""What several ranks hold the same of has to stay the same: checksums of it are compared.

Memory that flips a bit, a kernel that adds up in another order on another machine, a write on one
rank: ranks that hold copies of a weight go apart, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from irc.errors import IrcError
from irc.runtime.agreement import checksum, gathered, ranks_named

NONE = 2**32
"""Stands for a tensor that a rank holds nothing of."""


@dataclass(frozen=True)
class Copies:
    """What ranks hold of one tensor.

    Attributes:
        name: of it.
        part: this rank's; None where it holds nothing.
        slices: for each rank which slice it holds; ranks of one slice hold copies of it.
    """

    name: str
    part: torch.Tensor | None
    slices: Sequence[object]


def check_copies(every: Sequence[Copies], when: str) -> None:
    """Compare the copies that ranks hold; all call it, for the same tensors in one order.

    Args:
        every: of all tensors.
        when: for the message: after which step.

    Raises:
        IrcError: ``replicas-differ`` on every rank, naming the first tensor and the ranks.
    """
    own = [NONE if each.part is None else checksum(each.part) for each in every]
    rows = gathered(b"".join(number.to_bytes(5, "little") for number in own))
    for place, each in enumerate(every):
        sums = [row[5 * place : 5 * place + 5] for row in rows]
        for ranks in holders(each.slices).values():
            values = [sums[rank] for rank in ranks]
            usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
            apart = [rank for rank, value in zip(ranks, values, strict=True) if value != usual]
            if apart:
                first = next(rank for rank in ranks if rank not in apart)
                raise IrcError(
                    "replicas-differ",
                    f"{when}, '{each.name}' has other values on {ranks_named(apart)} than on rank "
                    f"{first}",
                    because="both hold the same part of it, and went apart since they were last "
                    "compared",
                    help="go on from the last checkpoint; if it happens again on the same rank, its"
                    " machine computes wrongly",
                )


def holders(slices: Sequence[object]) -> Mapping[object, list[int]]:
    """Return the ranks that hold each slice, of those that several hold.

    >>> holders([0, 1, 0, None])
    {0: [0, 2]}
    """
    by_slice: dict[object, list[int]] = {}
    for rank, own in enumerate(slices):
        if own is not None:
            by_slice.setdefault(own, []).append(rank)
    return {own: ranks for own, ranks in by_slice.items() if len(ranks) > 1}
