"""What a rank holds while it is rehearsed: by torch's own account, and by the system's."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Self

import torch

STATM = Path("/proc/self/statm")
SAMPLE_S = 2e-3


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory that tensors lie in, counting each piece once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def taken_beside(run: Callable[[], object], device: torch.device) -> int:
    """Run something, and return the most bytes that torch allocates meanwhile at one time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    from torch.profiler import ProfilerActivity, profile

    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    total = most = 0
    results: Any = profiled.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            most = max(most, total)
    return most


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Keep what the profiler says to standard error to itself."""
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Resident:
    """Watches how far this process grows while the block runs; other threads go on.

    Attributes:
        grown: bytes by which it was larger than at the beginning, at most; None where the system
            does not say.
    """

    def __init__(self) -> None:
        self.grown: int | None = None
        self._ends = threading.Event()

    def __enter__(self) -> Self:
        self._first = _resident_bytes()
        self._most = self._first or 0
        self._thread = threading.Thread(target=self._watch, name="irc-resident", daemon=True)
        if self._first is not None:
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ends.wait(SAMPLE_S):
            self._most = max(self._most, _resident_bytes() or 0)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._first is not None:
            self._thread.join()
            self.grown = max(self._most, _resident_bytes() or 0) - self._first


def _resident_bytes() -> int | None:
    try:
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
