"""Moving a value through a channel while nothing else runs: whole tensors, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh, Placement
from irc.runtime.dtypes import dtype_name, dtypes
from irc.sharding.between import Channel, Message, Side
from irc.sharding.exchange import Moved
from irc.sharding.shards import slices


def move(channel: Channel, rank: int, own: torch.Tensor | None) -> torch.Tensor | None:
    """Return what a rank needs of a value; all ranks of both sides call it.

    Args:
        channel: from whom to whom.
        rank: of this process.
        own: what this rank holds, None for nothing.

    Returns:
        It, on the host.
    """
    dtype = dtypes()[channel.dtype]
    own = None if own is None else own.cpu()
    position = channel.after.positions.get(rank)
    needed = None
    if position is not None:
        where = slices(channel.shape, channel.after.placement, channel.after.mesh, position)
        needed = torch.empty([s.stop - s.start for s in where], dtype=dtype)
    parts = [(m, own, needed) for m in channel.messages(rank)]
    _carry(parts, rank)
    return needed


def exchange(
    every: Sequence[Moved], rank: int, own: Sequence[torch.Tensor], needed: Sequence[torch.Tensor]
) -> None:
    """Fill what this rank needs of a value; all ranks call it, with the same messages.

    Args:
        every: what all ranks tell each other.
        rank: of this process.
        own: on the host, its boxes in the order of the exchange.
        needed: on the host, of the same dtype, what it needs, which is written.
    """
    parts = [
        (
            moved.message,
            own[moved.source_box] if moved.message.source == rank else None,
            needed[moved.target_box] if moved.message.target == rank else None,
        )
        for moved in every
        if rank in (moved.message.source, moved.message.target)
    ]
    _carry(parts, rank)


def _carry(
    parts: Iterable[tuple[Message, torch.Tensor | None, torch.Tensor | None]], rank: int
) -> None:
    """Send, receive and copy slices of what messages come from and go to."""
    works: list[Any] = []
    arriving: list[tuple[torch.Tensor, torch.Tensor]] = []
    for message, own, needed in parts:
        if message.is_copy:
            assert own is not None
            assert needed is not None
            needed[message.target_part] = own[message.source_part]
        elif message.source == rank:
            assert own is not None
            works.append(dist.isend(_bytes(own[message.source_part]), message.target))
        else:
            assert needed is not None
            part = needed[message.target_part]
            packed = part if part.is_contiguous() else torch.empty(part.shape, dtype=part.dtype)
            works.append(dist.irecv(_bytes(packed), message.source))
            if packed is not part:
                arriving.append((part, packed))
    for work in works:
        work.wait()
    for part, packed in arriving:
        part.copy_(packed)


def to_first(held: Side, shape: tuple[int, ...], dtype: torch.dtype, num_ranks: int) -> Channel:
    """Return the channel by which ranks from 0 to ``num_ranks - 1`` get a whole tensor.

    Args:
        held: how it lies, on which ranks.
        shape: of the whole.
        dtype: of the value.
        num_ranks: how many need it: all, or 1 for rank 0 alone.
    """
    mesh = Mesh((("all", num_ranks),))
    after = Side(Placement.replicated(mesh.names), mesh, range(num_ranks))
    return Channel(shape, dtype_name(dtype), held, after)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # What only moves, moves as bytes: gloo knows few dtypes.
    return tensor.contiguous().view(-1).view(torch.uint8)
