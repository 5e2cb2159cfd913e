"""Memory that tells: filled with garbage before each call, with bytes around it that must stay.

A kernel that reads what nobody wrote gives other numbers when the garbage changes, one that reads
beyond a tensor too; one that writes beyond it changes the bytes around. All three are what an
address sanitizer finds, but kernels are made at run time and share one arena, in which no two
buffers are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import torch

from irc.runtime import frame
from irc.runtime.executor import Executor

GARBAGE = (0xFF, 0x40)
"""NaN and -1, or numbers of a usual size: bytes that memory is filled with, one for each call."""
AROUND = 256
"""Bytes on either side; a multiple of what vectors are aligned to."""


class Guards:
    """Tensors between bytes that nobody may write.

    Args:
        byte: what memory is filled with.
    """

    def __init__(self, byte: int) -> None:
        self.byte = byte
        self._around: list[torch.Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of garbage."""
        size = prod(shape) * dtype.itemsize
        region = torch.full((size + 3 * AROUND,), self.byte, dtype=torch.uint8)
        first = AROUND + -region.data_ptr() % AROUND
        self._around += [region[:first], region[first + size :]]
        if size == 0:  # nothing can be viewed as another dtype at the end of memory
            return torch.zeros(tuple(shape), dtype=dtype)
        return region[first : first + size].view(dtype).view(tuple(shape))

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's numbers between guards, if it is plain; the runtime copies others."""
        if not tensor.is_contiguous():
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def check(self) -> None:
        """Raise AssertionError where a byte around a tensor was written."""
        for part in self._around:
            assert bool((part == self.byte).all()), "memory beyond a tensor was written"


@contextmanager
def guarded_arenas() -> Generator[None]:
    """Let executors that are used here for the first time have garbage, and bytes after it."""
    whole = frame.new_arena

    def new_arena(num_bytes: int) -> torch.Tensor:
        return whole(num_bytes + AROUND).fill_(GARBAGE[0])[:num_bytes]

    with patch.object(frame, "new_arena", new_arena):
        yield


def run(executor: Executor, inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Run an executor once for each kind of garbage; return the results of each.

    Args:
        executor: not used before.
        inputs: as the plan takes them.

    Raises:
        AssertionError: it wrote beyond its inputs, its outputs or its arena.
    """
    results: list[tuple[torch.Tensor, ...]] = []
    with guarded_arenas():
        executor.leases.append(executor.new_lease())
    (lease,) = executor.leases
    arena = lease.frame.arena
    whole = arena.as_strided((arena.numel() + AROUND,), (1,))
    for byte in GARBAGE:
        guards = Guards(byte)
        whole.fill_(byte)
        known = {id(x): guards.copy(x) for x in inputs}
        with patch.object(torch, "empty", _instead(guards, torch.empty)):
            results.append(executor(*[known[id(x)] for x in inputs]))
        guards.check()
        assert bool((whole[arena.numel() :] == byte).all()), "memory beyond the arena was written"
    return results


def _instead(guards: Guards, plain: Callable[..., Any]) -> Callable[..., Any]:
    def empty(*shape: Any, **options: Any) -> Any:
        if len(shape) == 1 and not isinstance(shape[0], int) and set(options) == {"dtype"}:
            return guards.empty(shape[0], options["dtype"])
        return plain(*shape, **options)

    return empty
