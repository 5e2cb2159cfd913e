"""One of some processes that gather, reduce, scatter and exchange: by themselves, and by torch.

Prints a JSON object: what differs from sums made here, by name; by which way each went.
"""

# pyright: basic
from __future__ import annotations

import json
import os
import sys
import time
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from irc.cluster.links import DIRECT_SUM_BYTES, SHARED_SUM_BYTES
from irc.cost.collectives import SHARED_BYTES
from irc.plan.schema import Start
from irc.runtime import direct, shared_parts
from irc.runtime.bucket import Bucket
from irc.runtime.collectives import PREPARED, Operands
from irc.runtime.message import Message, together
from irc.runtime.processes import place_of, start_processes

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
          torch.uint8, torch.complex64)  # fmt: skip
SIZES = (0, 1, 3, 1001, DIRECT_SUM_BYTES // 2 + 5)
FUNCTIONS = {"sum": lambda rows: rows.sum(0, dtype=rows.dtype),
             "max": lambda rows: rows.amax(0), "min": lambda rows: rows.amin(0)}  # fmt: skip


def drawn(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank has; every rank can draw it."""
    draw = torch.Generator().manual_seed(100 * rank + size % 97)
    return (torch.rand(size, generator=draw) * 8).to(dtype)


def differs(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether a result is wrong: sums may be added up in another order."""
    # Half as many digits as a sum of few has.
    near = {torch.bfloat16: 2e-2, torch.float16: 1e-2, torch.float64: 1e-14}.get(got.dtype, 1e-6)
    try:
        torch.testing.assert_close(got, wanted, rtol=near, atol=near, equal_nan=True)
    except AssertionError:
        return True
    return False


def wrong(group: Any, size: int, dtype: torch.dtype) -> list[str]:
    """Return which collectives of tensors of a size are wrong."""
    ranks, here = group.size(), group.rank()
    failures: list[str] = []
    every = [drawn(rank, size, dtype) for rank in range(ranks)]
    target = torch.zeros(ranks * size, dtype=dtype)
    direct.all_gather(target, every[here].clone(), group=group)
    if not torch.equal(target, torch.cat(every)):
        failures.append(f"all_gather {dtype} {size}")
    for fn, reduced in FUNCTIONS.items():
        if fn != "sum" and dtype.is_complex:
            continue
        own = every[here].clone()
        direct.all_reduce(own, fn, group=group)
        if differs(own, reduced(torch.stack(every))):
            failures.append(f"all_reduce {fn} {dtype} {size}")
        wide = [drawn(rank, ranks * size, dtype) for rank in range(ranks)]
        part = torch.zeros(size, dtype=dtype)
        direct.reduce_scatter(part, wide[here].clone(), fn, group=group)
        if differs(part, reduced(torch.stack(wide))[here * size : (here + 1) * size]):
            failures.append(f"reduce_scatter {fn} {dtype} {size}")
    return failures + wrong_exchange(group, size, dtype)


def wrong_exchange(group: Any, size: int, dtype: torch.dtype) -> list[str]:
    """Return which exchanges are wrong: of equal parts, and of parts of which some are empty."""
    ranks, here = group.size(), group.rank()
    wide = [drawn(rank, ranks * size, dtype) for rank in range(ranks)]
    target = torch.zeros(ranks * size, dtype=dtype)
    direct.all_to_all(target, wide[here].clone(), group=group)
    equal = torch.equal(target, torch.cat([every.chunk(ranks)[here] for every in wide]))
    # Rank i sends (i + j) % 3 elements to rank j.
    counts = [[(i + j) % 3 for j in range(ranks)] for i in range(ranks)]
    coming = [row[here] for row in counts]
    rows = [drawn(rank, sum(row), dtype) for rank, row in enumerate(counts)]
    target = torch.zeros(sum(coming), dtype=dtype)
    direct.all_to_all(target, rows[here].clone(), group=group, coming=coming, going=counts[here])
    wanted = [row.split(each)[here] for row, each in zip(rows, counts, strict=True)]
    unequal = torch.equal(target, torch.cat(wanted))
    names = {"equal": equal or not size, "unequal": unequal}
    return [f"all_to_all {name} {dtype} {size}" for name, right in names.items() if not right]


def wrong_together(group: Any) -> list[str]:
    """Return what is wrong of messages that go as one, begun while others are under way."""
    ranks, here = group.size(), group.rank()
    sizes = (5, 0, 300, 17)
    failures: list[str] = []
    own = [drawn(here, size, torch.float32) for size in sizes]
    wide = [drawn(here, ranks * size, torch.float32) for size in sizes]
    gathered = [Message("all_gather", o, torch.zeros(ranks * len(o))) for o in own]
    summed = [Message("all_reduce", o, torch.zeros_like(o), "sum") for o in own]
    scattered = [Message("reduce_scatter", o, torch.zeros(len(o) // ranks), "sum") for o in wide]
    works = [together(each, group) for each in (gathered, summed, scattered)]
    for work in reversed(works):  # in another order than begun
        work.wait()
        work.wait()
    for place, size in enumerate(sizes):
        every = [drawn(rank, size, torch.float32) for rank in range(ranks)]
        whole = torch.stack([drawn(rank, ranks * size, torch.float32) for rank in range(ranks)])
        wanted = (torch.cat(every), torch.stack(every).sum(0),
                  whole.sum(0)[here * size : (here + 1) * size])  # fmt: skip
        for message, value in zip((gathered, summed, scattered), wanted, strict=True):
            if differs(message[place].result, value):
                failures.append(f"{message[place].kind} of {size} beside others")
    return failures


GATHERED = (300_000, 5, 0, 200_000)
"""Elements of each rank; of one rank alone they are enough for memory that ranks share."""


FEW = 1 << 10
"""Elements that messages carry."""
SOME, MANY = DIRECT_SUM_BYTES // 4 + 3, SHARED_SUM_BYTES // 4 + 1
SUMMED = [(torch.float32, "sum", SOME), (torch.float32, "max", SOME), (torch.float32, "sum", MANY),
          (torch.bfloat16, "sum", 2 * SOME), (torch.int64, "min", SHARED_BYTES // 8)]  # fmt: skip
"""Elements of sums: from shared memory; of the longest among two alone."""


def wrong_shared_sums(group: Any) -> list[str]:
    """Return what is wrong of large sums and gathers, begun together, waited for as they come."""
    ranks, here = group.size(), group.rank()
    failures: list[str] = []
    for dtype, fn, size in SUMMED:
        every = [drawn(rank, size * ranks, dtype) for rank in range(ranks)]
        own, wide = every[here][:size].clone(), every[here].clone()
        part, whole = torch.zeros(size, dtype=dtype), torch.zeros(size * ranks, dtype=dtype)
        mixed = torch.zeros_like(wide)
        works = [
            direct.all_to_all(mixed, wide, group=group, async_op=True),
            direct.all_reduce(own, fn, group=group, async_op=True),
            direct.reduce_scatter(part, wide, fn, group=group, async_op=True),
            direct.all_gather(whole, wide[:size].clone(), group=group, async_op=True),
        ]
        for place in (1, 3, 2, 0) if size % 2 else (0, 3, 2, 1):
            works[place].wait()
        reduced = FUNCTIONS[fn](torch.stack(every))
        gathered = torch.cat([each[:size] for each in every])
        if not torch.equal(mixed, torch.cat([each.chunk(ranks)[here] for each in every])):
            failures.append(f"shared all_to_all {dtype} {size}")
        if differs(own, reduced[:size]):
            failures.append(f"shared all_reduce {fn} {dtype} {size}")
        if differs(part, reduced[here * size : (here + 1) * size]):
            failures.append(f"shared reduce_scatter {fn} {dtype} {size}")
        if not torch.equal(whole, gathered):
            failures.append(f"shared all_gather {dtype} {size}")
        sums = own.new_empty(ranks * size)
        direct.all_gather(sums, own, group=group)
        if not all(torch.equal(each, own) for each in sums.chunk(ranks)):
            failures.append(f"all_reduce {fn} {dtype} {size} gives ranks other numbers")
    return failures


def wrong_shared(group: Any) -> list[str]:
    """Return what is wrong of gathers that begin together, some waited for later, some never."""
    ranks, here = group.size(), group.rank()
    failures: list[str] = []
    begun: list[tuple[int, list[torch.Tensor], Any]] = []
    for turn in range(6):
        own = [drawn(here + turn, size, torch.float32) for size in GATHERED]
        into = [torch.zeros(ranks * size) for size in GATHERED]
        if (work := direct.gather_together(into, own, group=group)) is None:
            return failures
        for each in own:
            each.fill_(-1.0)  # it has been copied
        if turn != 3:  # which nobody waits for
            begun.append((turn, into, work))
        while len(begun) > 2:  # in another order than begun
            turn, into, work = begun.pop(turn % 2)
            work.wait()
            for size, got in zip(GATHERED, into, strict=True):
                wanted = [drawn(rank + turn, size, torch.float32) for rank in range(ranks)]
                if not torch.equal(got, torch.cat(wanted)):
                    failures.append(f"gather {turn} of {size} from shared memory")
    for _, _, work in begun:
        work.wait()
    return failures


def wrong_in_a_bucket(group: Any) -> list[str]:
    """Return what is wrong of sums that are scattered and begin together."""
    ranks, here = group.size(), group.rank()
    op, bucket, ends = "comm.reduce_scatter", Bucket(group, 2), []
    sources = [torch.arange(ranks * size) + 1.0 for size in (3, 5)]
    targets = [torch.zeros(size) for size in (3, 5)]
    for name, *pair in zip("ab", sources, targets, strict=True):
        action = Start("start", op, (0,), (1,), "comm:data", attrs={"axis": "data"}, id=name)
        prepared = PREPARED[op](ranks, {"fn": "sum", "dim": 0}, Operands(*pair))
        ends.append(bucket.add(action, prepared))
    for end in ends:
        end()
    pairs = zip(sources, targets, strict=True)
    right = [torch.equal(target, ranks * source.chunk(ranks)[here]) for source, target in pairs]
    return [] if all(right) else ["scattered sums of a bucket"]


def wrong_after_a_left_one(group: Any, size: int) -> list[str]:
    """Return whether gathers are wrong behind one for which nobody waits, as after an error."""
    ranks, here = group.size(), group.rank()
    own = torch.full((size,), float(here))
    if here:
        time.sleep(0.5)  # so that rank 0 lets go of messages that have not arrived
    left = direct.all_gather(torch.zeros(ranks * size), own, group=group, async_op=True)
    del left, own
    none = [0] * ranks
    direct.all_to_all(torch.zeros(0), torch.zeros(0), group=group, coming=none, going=none)
    failures: list[str] = []
    is_own = direct.is_direct(group, torch.zeros(0))
    shared = shared_parts._known.get(group)
    is_own = is_own and not (shared is not None and shared.looks)  # by messages
    if here == 0 and is_own and not any(map(len, direct._under_way.get(group, {}).values())):
        failures.append("what was left is let go by an exchange of nothing")
    for number in range(3):
        target = torch.zeros(ranks)
        direct.all_gather(target, torch.tensor([float(number + here)]), group=group)
        if target.tolist() != [number + rank for rank in range(ranks)]:
            failures.append(f"all_gather {number} behind one that was left")
    if is_own and len(direct._under_way.get(group, {})) > 0:
        failures.append("what was left is kept")
    return failures


def main() -> None:
    """Compare all; print what is wrong."""
    if os.environ.get("NO_MEMORY") == os.environ["RANK"]:
        del os.memfd_create
    torch.set_num_threads(1)
    start_processes(*place_of(os.environ), timeout_s=120)
    world: Any = dist.group.WORLD
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    own: Any = pairs[dist.get_rank() // 2]
    failures: list[str] = []
    for group, dtype, size in product((world, own), DTYPES, SIZES):
        failures += wrong(group, size, dtype)
    failures += wrong_together(world) + wrong_together(own)
    failures += wrong_in_a_bucket(world) + wrong_in_a_bucket(own)
    for group, size in product((world, own), (FEW, 1 << 18)):
        failures += wrong_after_a_left_one(group, size)
    failures += wrong_shared_sums(world) + wrong_shared_sums(own)
    with torch.inference_mode():
        failures += wrong_shared(own)
    failures += wrong_shared(world) + wrong_shared(own)
    ways = [direct.is_direct(world, torch.ones(1)), direct.is_direct(own, torch.ones(1))]
    future = direct.all_reduce(drawn(0, 9, torch.float32), "sum", group=world, async_op=True)
    ended = done(future)
    with torch.inference_mode():
        ended &= done(direct.all_reduce(torch.ones(3), "sum", group=world, async_op=True))
    shared = [shared_parts._known.get(group) is not None for group in (world, own)]
    facts = {"wrong": failures, "direct": ways, "shared": shared, "ended": ended}
    print(json.dumps(facts), flush=True)
    dist.destroy_process_group()


def done(work: Any) -> bool:
    """Return whether a work's future ends, while another waits for it."""
    future = work.get_future()
    work.wait()
    future.result() if hasattr(future, "result") else future.wait()
    return future.done()


if __name__ == "__main__":
    sys.exit(main())
