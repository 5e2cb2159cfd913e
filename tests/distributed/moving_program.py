"""One of four processes: values go through channels; prints how many came out right."""

from __future__ import annotations

import os
import random
from math import prod

import torch
import torch.distributed as dist

from irc.dialects.placement import AxisPlacement, B, Mesh, Placement, Split
from irc.runtime.dtypes import dtypes
from irc.runtime.moving import move
from irc.sharding.between import Channel, Side
from irc.sharding.shards import shard, slices

MESHES = ["", "a=2", "a=4", "a=2,b=2", "a=3", "a=1,b=3"]


def side(random_: random.Random, num_dims: int) -> Side:
    mesh = Mesh.parse(random_.choice(MESHES))
    kinds: list[AxisPlacement] = [B, *map(Split, range(num_dims))]
    placed = tuple((name, random_.choice(kinds)) for name in mesh.names)
    ranks = random_.sample(range(4), mesh.num_ranks)
    return Side(Placement.in_mesh_order(placed), mesh, ranks)


def run(seed: int, rank: int) -> bool:
    """Move one value; all ranks draw the same channel."""
    random_ = random.Random(seed)
    shape = tuple(random_.randint(0, 6) for _ in range(random_.randint(0, 3)))
    dtype = random_.choice(["f32", "bf16", "i64", "i1", "f8e4m3fn"])
    channel = Channel(shape, dtype, side(random_, len(shape)), side(random_, len(shape)))
    whole = torch.arange(prod(shape)).reshape(shape).to(dtypes()[dtype])
    before, after = channel.before, channel.after
    place = before.positions.get(rank)
    own = None if place is None else shard(whole, before.placement, before.mesh)[place]
    moved = move(channel, rank, own)
    place = after.positions.get(rank)
    if place is None:
        return moved is None
    wanted = whole[slices(shape, after.placement, after.mesh, place)]
    return moved is not None and bool((moved.float() == wanted.float()).all())


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['IRC_STORE']}", rank=rank, world_size=4
    )
    print(sum(run(seed, rank) for seed in range(150)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
