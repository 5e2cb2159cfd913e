"""What a rank of a plan holds while it runs: bytes of torch's CPU allocator, by its own account."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from irc.plan.load import LoadedPlan
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executors import executor_of
from irc.runtime.processes import STORE_VARIABLE, joined
from irc.runtime.weights import slice_weights


def measured_bytes(
    loaded: LoadedPlan, tensors: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> int:
    """Run a plan, on as many processes as it has ranks, and return the largest peak of a rank."""
    world = loaded.plan.device_mesh.num_ranks
    if world == 1:
        return _peak(loaded, dict(tensors), inputs, 0, None)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[STORE_VARIABLE] = str(Path(folder, "store"))
        pipes = [context.Pipe() for _ in range(world)]
        ranks = [
            context.Process(
                target=_rank, args=(loaded, tensors, inputs, rank, world, pipes[rank][1])
            )
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        try:
            return max(
                _answer(mine, process) for (mine, _), process in zip(pipes, ranks, strict=True)
            )
        finally:
            for process in ranks:
                process.join(60)
                process.kill()
            del os.environ[STORE_VARIABLE]


def _answer(pipe: Connection, process: Any) -> int:
    while not pipe.poll(0.2):
        if not process.is_alive():
            raise RuntimeError(f"a rank ended with status {process.exitcode}")
    return int(pipe.recv())


def _rank(
    loaded: LoadedPlan,
    tensors: Mapping[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    rank: int,
    world: int,
    pipe: Connection,
) -> None:
    torch.set_num_threads(1)
    with joined(rank, world):
        communicator = TorchCommunicator.of(loaded.plan.device_mesh, rank)
        # A slice of a whole tensor would hold all of it.
        own = {name: t.clone() for name, t in slice_weights(loaded.plan, tensors, rank).items()}
        pipe.send(_peak(loaded, own, inputs, rank, communicator))


def _peak(
    loaded: LoadedPlan,
    tensors: dict[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    rank: int,
    communicator: TorchCommunicator | None,
) -> int:
    """Return the bytes of weights and inputs, and the most that one call has beside them."""
    run = executor_of(loaded, tensors, rank=rank, communicator=communicator, num_threads=1)
    named = {loaded.plan.buffers[i].name for i in loaded.plan.weights}
    held_tensors = [*(t for name, t in tensors.items() if name in named), *inputs]
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held_tensors}
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run(*inputs)
    held = most = 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return sum(sizes.values()) + most


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what the profiler prints to standard error out of the table."""
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
