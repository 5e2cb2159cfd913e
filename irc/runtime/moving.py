"""Moving a value through a channel while nothing else runs: whole tensors, checkpoints."""

# pyright: basic
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from irc.dialects.placement import Mesh, Placement
from irc.runtime.dtypes import dtype_name, dtypes
from irc.sharding.between import Channel, Side
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
    works: list[Any] = []
    arriving: list[tuple[torch.Tensor, torch.Tensor]] = []
    for message in channel.messages(rank):
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
            packed = part if part.is_contiguous() else torch.empty(part.shape, dtype=dtype)
            works.append(dist.irecv(_bytes(packed), message.source))
            if packed is not part:
                arriving.append((part, packed))
    for work in works:
        work.wait()
    for part, packed in arriving:
        part.copy_(packed)
    return needed


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
