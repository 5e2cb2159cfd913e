"""A first timing: whether torch runs a call faster than what was compiled of it.

Fusion pays where memory or many small kernels cost; a few calls of a library pay for neither the
way in and out nor their results' copies. Which is which depends on sizes, the machine and torch's
own kernels, so it is measured: at the first call of a kind both ways run a few times in turns, on
copies of what they write to. Where torch is ahead by more than a tenth and by more than 5 us, calls
of the kind are torch's from then on.

What takes long is not tried: there the compiler is to be right by itself, and its arithmetic
outweighs the way in. Neither is what the user wants whole (``fullgraph``), verified, or compiled by
passes, rules and pins of their own.
"""

# pyright: basic
from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from irc.pipeline import Options
from irc.runtime.shared_memory import clash

Flat: TypeAlias = Callable[..., Any]

VARIABLE = "IRC_FIRST_TIMING"
"""``off``: what was compiled runs, whatever torch takes."""

AHEAD = 1.1
"""So many times torch's time is behind it."""
LEAST_S = 5e-6
"""What a call may lose."""
LONGEST_S = 0.05
"""A call that takes longer is not tried."""
BUDGET_S = 0.01
PAIRS = range(3, 30)
"""So many pairs at least, and while the budget lasts."""
MOST_BYTES = 1 << 28
"""What is copied for a trial at most."""


def is_tried(options: Options) -> bool:
    """True where first calls are timed against torch."""
    if options.fullgraph or options.verify_each is not None:
        return False
    if options.passes or options.rules or options.pins:
        return False
    alone = options.backend == "cpu" and options.mesh.num_ranks == 1
    return alone and os.environ.get(VARIABLE, "on") != "off"


def is_behind(own: Callable[[], object], torchs: Callable[[], object]) -> bool:
    """Return whether ``own`` takes longer than torch's way; either may be run many times.

    The least of several times in turns is compared: what disturbs a call makes it longer. On a
    machine that others use a call of several threads may always be disturbed: so it has to be
    behind in what this thread computed, too.
    """
    own()
    if _times(own)[0] > LONGEST_S or min(_times(own)[0] for _ in PAIRS[:5]) < LEAST_S:
        return False
    torchs()
    best, other = _times(own), _times(torchs)
    end = time.perf_counter() + BUDGET_S
    for count in PAIRS:
        best = tuple(map(min, best, _times(own)))
        other = tuple(map(min, other, _times(torchs)))
        if count > PAIRS.start and time.perf_counter() > end:
            break
    pairs = list(zip(best, other, strict=True))
    return all(a > AHEAD * b and a - b > LEAST_S for a, b in pairs)


def _times(run: Callable[[], object]) -> tuple[float, ...]:
    """Return the seconds that pass in a call, and those of this thread's core."""
    start, computed = time.perf_counter(), time.thread_time()
    run()
    return time.perf_counter() - start, time.thread_time() - computed


@contextmanager
def undone(written: Sequence[torch.Tensor]) -> Generator[None]:
    """Give torch's generator its state back after a trial, and tensors what they held."""
    before = torch.get_rng_state()
    kept = [each.detach().clone() for each in written]
    try:
        yield
    finally:
        torch.set_rng_state(before)
        with torch.no_grad():
            for each, value in zip(written, kept, strict=True):
                each.detach().copy_(value)


class Tried:
    """A compiled graph of Dynamo until its first call has shown whether torch is faster.

    Args:
        own: what was compiled; takes the graph's arguments.
        torchs: runs the graph as eager mode does.
        copies: try them on copies of the arguments: the graph writes to them, or records gradients.
    """

    def __init__(self, own: Flat, torchs: Flat, *, copies: bool) -> None:
        self._own, self._torchs, self._copies = own, torchs, copies
        self._run: Flat | None = None
        self._lock = threading.Lock()
        self._full: list[int] = []
        self.is_left = False

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if self._run is None:
            with self._lock:
                if self._run is None:
                    self._full = [i for i, x in enumerate(args) if _has_elements(x)]
                    self.is_left = self._is_behind(args)
                    self._run = self._torchs if self.is_left else self._own
        notes = getattr(_here, "notes", None)
        if notes is not None:
            notes.append(self.is_left)
        if self.is_left and not all(args[i].data_ptr() for i in self._full):
            return self._own(*args)  # which says so: not all of torch's kernels look
        return self._run(*args)

    def _is_behind(self, args: Sequence[Any]) -> bool:
        given = _copies(args) if self._copies else args
        if given is None:
            return False
        try:
            with undone(()):
                return is_behind(_both_ways(self._own, given), _both_ways(self._torchs, given))
        except Exception:  # the call itself is to raise what it raises
            return False


def _has_elements(value: Any) -> bool:
    """True for a tensor that has an address."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and bool(value.numel())


def _copies(args: Sequence[Any]) -> list[Any] | None:
    """Return arguments that may be written to; None where they are too many, or lie in each other.

    They are nobody else's leaves: hooks of the caller's see nothing of a trial.
    """
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if not all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in tensors):
        return None
    if any(each.layout is not torch.strided or each.is_meta for each in tensors):
        return None
    if sum(each.nbytes for each in tensors) > MOST_BYTES:
        return None
    if clash(tensors, range(len(tensors))) is not None:
        return None
    return [
        each.detach().clone().requires_grad_(each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    ]


def _both_ways(run: Flat, args: Sequence[Any]) -> Callable[[], object]:
    """Return what runs a graph, and backward where gradients are recorded."""
    wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    if not torch.is_grad_enabled() or not wanted:
        return lambda: run(*args)

    def forward_and_backward() -> None:
        found = [x for x in run(*args) if isinstance(x, torch.Tensor) and x.requires_grad]
        ones = [torch.ones_like(each) for each in found]
        torch.autograd.grad(found, wanted, ones, allow_unused=True)

    return forward_and_backward


_here = threading.local()


@contextmanager
def noting() -> Generator[list[bool]]:
    """Gather, of each graph that this thread runs, whether it is left to torch."""
    before = getattr(_here, "notes", None)
    _here.notes = notes = list[bool]()
    try:
        yield notes
    finally:
        _here.notes = before
