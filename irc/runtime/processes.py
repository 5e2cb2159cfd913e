"""The processes of a run: joining them, agreeing on the plan, sending it.

Nothing is pickled: what ranks tell each other are tensors of bytes and numbers.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from irc.cluster.host import num_cores
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.runtime.meeting import RUN_VARIABLE, STORE_VARIABLE, name_of_start
from irc.runtime.network_threads import defer_network_threads
from irc.runtime.shared_parts import leave_groups
from irc.runtime.watch import naming_lost_ranks, stop_watching, watch_in, watch_ranks

JOIN_TIMEOUT_S = 60
DIGEST_BYTES = 32

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""


def threads_per_process(local_ranks: int) -> int:
    """Return the threads of one of several processes that share this machine.

    >>> threads_per_process(10**6)
    1
    """
    return max(1, num_cores() // max(local_ranks, 1))


def check_world(mesh: Mesh, world: int) -> None:
    """Refuse another number of processes than the plan's.

    Raises:
        IrcError: ``world-size``.
    """
    if world != mesh.num_ranks:
        raise IrcError(
            "world-size",
            f"the plan is for {_ranks(mesh.num_ranks)} ({str(mesh) or 'one device'}), "
            f"and {world} {'was' if world == 1 else 'were'} started",
            help=f"start {mesh.num_ranks} (irc run starts as many as the plan wants, torchrun "
            f"--nproc_per_node of them), or compile for a mesh of {_ranks(world)}: in a script, "
            "an axis of size 'auto' takes those that there are",
        )


def _ranks(number: int) -> str:
    return f"{number} rank" if number == 1 else f"{number} ranks"


def place_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and number of processes from what a launcher sets; alone without it.

    Raises:
        IrcError: ``world-size`` where they make no sense.
    """
    texts = environment.get("RANK", "0"), environment.get("WORLD_SIZE", "1")
    if not all(text.isascii() and text.isdigit() for text in texts) or int(texts[0]) >= int(
        texts[1]
    ):
        raise IrcError("world-size", f"RANK={texts[0]} and WORLD_SIZE={texts[1]} make no sense")
    return int(texts[0]), int(texts[1])


def start_processes(rank: int, world: int, timeout_s: float = JOIN_TIMEOUT_S) -> None:
    """Join the processes of a run; all call it, and wait so long for each other."""
    # Its functions have the group of that moment as a default: imported later, they would keep it,
    # and its threads, after the processes have parted.
    importlib.import_module("torch.distributed.nn.functional")
    timeout = timedelta(seconds=timeout_s)
    store = _store(rank, world, timeout)
    if store is not None:
        # Ranks wait for each other from here on.
        watch_in(store, rank, world)
    try:
        backend = backend_of_processes()
        with naming_lost_ranks():
            dist.init_process_group(
                backend, rank=rank, world_size=world, store=store, timeout=timeout
            )
    except BaseException:
        # A caller may try again: what becomes of this start must not end the process then.
        stop_watching()
        raise
    defer_network_threads()
    watch_ranks()


def _store(rank: int, world: int, timeout: timedelta) -> Any:
    """Return where processes leave their addresses; None for what torch chooses.

    They have come there when it is returned, or an error names one that has not. Torchrun starts
    processes again with the store of those before, whose addresses are still in it: a rank that is
    early would wait for one that is gone. So each start has a part of it by itself.
    """
    store: Any
    if path := os.environ.get(STORE_VARIABLE):
        store = dist.FileStore(path, world)  # type: ignore[attr-defined]  # not among the exports
    elif RUN_VARIABLE in os.environ:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=timeout))
    else:
        return None
    start = name_of_start(store, rank, world, timeout.total_seconds())
    return dist.PrefixStore(start, store)  # type: ignore[attr-defined]  # not among the exports


def backend_of_processes() -> str:
    """Return by what ranks talk: gloo; where torch has GPUs and NCCL, NCCL for what lies on them.

    Plans of the backends triton and cuda hand over tensors on the device, and agreements (plans,
    batches, checks) tensors on the host, so a run on GPUs has both.
    """
    has_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_gpus else "gloo"


def leave_at_exit() -> None:
    """Leave the processes when the interpreter ends, in a program that has not joined them itself.

    Gloo's threads let go of the last collective's tensors when they come to it, and for that need
    the interpreter: one that is ending then aborts the process (pytorch issue 190489, two of 80
    processes here). Leaving waits for them. A program that ends with an error does not leave, nor
    does a child made by fork: a collective that is under way would be waited for.
    """
    joined_by = os.getpid()

    def leave() -> None:
        own = os.getpid() == joined_by and dist.is_initialized()
        if own and not hasattr(sys, "last_value"):
            part()

    atexit.register(leave)


@contextmanager
def joined(rank: int, world: int) -> Generator[None]:
    """Join the processes of a run, and leave them at the end."""
    start_processes(rank, world)
    try:
        with naming_lost_ranks():
            yield
    finally:
        part()


def part() -> None:
    """Leave the processes of a run."""
    stop_watching()
    leave_groups()
    dist.destroy_process_group()


def agree(digest: str | None) -> None:
    """Compare plans before anything runs; every rank calls it, with None if it has no plan.

    Raises:
        IrcError: ``plan-hash-mismatch`` on every rank, naming the ranks and what they hold.
    """
    mine = bytes(DIGEST_BYTES) if digest is None else bytes.fromhex(digest)
    own = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    rows: list[Any] = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    _library.all_gather(rows, own)
    holders: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        holders.setdefault(bytes(row.tolist()), []).append(rank)
    if len(holders) == 1:
        return
    raise IrcError(
        "plan-hash-mismatch",
        "the ranks hold different plans",
        because=[
            f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: "
            + (f"plan {held.hex()[:16]}" if any(held) else "no plan that can be read")
            for held, ranks in holders.items()
        ],
        help="copy the same folder to every host",
    )


def share_plan(plan: bytes | None) -> bytes:
    """Send the plan of rank 0 to all; every rank calls it, and gets what rank 0 gave.

    Args:
        plan: on rank 0, what :func:`irc.plan.load.pack` made; elsewhere it is ignored.
    """
    first = dist.get_rank() == 0
    assert plan is not None or not first, "rank 0 shares a plan"
    length = torch.tensor([len(plan) if plan is not None and first else 0])
    dist.broadcast(length, 0)
    # An empty plan says that there is none; a tensor over no bytes cannot be made.
    if not int(length):
        return b""
    data = torch.empty(int(length), dtype=torch.uint8)
    if plan is not None and first:
        data = torch.frombuffer(bytearray(plan), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return data.numpy().tobytes()


def gather_seconds(seconds: float) -> list[float]:
    """Return a number of every rank, in rank order, on every rank."""
    own = torch.tensor([seconds], dtype=torch.float64)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    _library.all_gather(rows, own)
    return [float(row) for row in rows]


def gather_texts(text: str, *, everywhere: bool = False) -> list[str]:
    """Return a text of every rank, in rank order; every rank calls it.

    Args:
        text: of this rank.
        everywhere: on every rank; otherwise rank 0 gets them and the others none.
    """
    own = bytearray(text.encode())
    lengths = [int(length) for length in gather_seconds(float(len(own)))]
    data = torch.zeros(max(1, *lengths), dtype=torch.uint8)
    if own:
        data[: len(own)] = torch.frombuffer(own, dtype=torch.uint8)
    is_here = everywhere or dist.get_rank() == 0
    rows = [torch.empty_like(data) for _ in lengths] if is_here else None
    if everywhere:
        _library.all_gather(rows, data)
    else:
        dist.gather(data, rows)
    pairs = zip(rows or (), lengths, strict=False)
    return [row[:length].numpy().tobytes().decode() for row, length in pairs]


def end_with_parent() -> None:
    """End this process when the one that started it is gone, so that none is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(143)

    threading.Thread(target=watch, daemon=True, name="irc-parent-watch").start()
