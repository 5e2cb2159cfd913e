"""A first timing: whether torch runs a call faster than what was compiled of it.

Fusion pays where memory or many small kernels cost; a few calls of a library pay for neither the
way in and out nor their results' copies. Which is which depends on sizes, the machine and torch's
own kernels, so it is measured: at the first call of a kind both ways run a few times in turns, on
copies of what they write to. Where torch is ahead by more than a tenth and by more than 3 us, calls
of the kind are torch's from then on.

What takes long both ways is not tried: there the compiler is to be right by itself, and its
arithmetic outweighs the way in. Neither is what the user wants whole (``fullgraph``), verified, or
compiled by passes, rules and pins of their own, nor what calls ops that torch does not ship
(:mod:`irc.frontends.torch.foreign_calls`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from irc.pipeline import Options
from irc.runtime.shared_memory import clash

Flat: TypeAlias = Callable[..., Any]

VARIABLE = "IRC_FIRST_TIMING"
"""``off``: what was compiled runs, whatever torch takes."""

AHEAD = 1.1
"""So many times torch's time is behind it."""
LEAST_S = 3e-6
"""What a call may lose."""
LONGEST_S = 0.05
"""A call that takes longer is not tried: a trial is to be a small part of compiling."""
LONGEST_FIRST_S = 4 * LONGEST_S
"""The first call may make something, such as a backward pass. One that takes longer than this is
repeated only where torch's does not."""
BUDGET_S = 0.01
LEAST_CALLS = 3
"""The first call compiles, and the second one may still make something."""
PAIRS = range(3, 30)
"""So many pairs at least, and while the budget lasts."""
MOST_BYTES = 1 << 28
"""What is copied for a trial at most."""


def is_tried(options: Options) -> bool:
    """True where first calls are timed against torch."""
    if options.fullgraph or options.strict or options.verify_each is not None:
        return False
    if options.passes or options.rules or options.pins:
        return False
    alone = options.backend == "cpu" and options.mesh.num_ranks == 1
    return alone and os.environ.get(VARIABLE, "on") != "off"


def is_behind(
    own: Callable[[], object],
    torchs: Callable[[], object],
    told: Callable[[str], object] = lambda _: None,
) -> bool:
    """Return whether ``own`` takes longer than torch's way; either may be run many times.

    Args:
        own: runs what was compiled.
        torchs: runs torch's way.
        told: is told what both took, where it does.
    """
    seconds = timed(own, torchs)
    if seconds is None or not is_slower(*seconds):
        return False
    told(timed_text(*seconds))
    return True


def is_slower(own_s: float, torchs_s: float) -> bool:
    """Return whether that is worth leaving a call to torch."""
    return own_s > AHEAD * torchs_s and own_s - torchs_s > LEAST_S


def timed_text(own_s: float, torchs_s: float) -> str:
    """Say what a first timing has shown.

    >>> timed_text(12.3e-6, 4e-6)
    'the first timing: torch takes 4.0 us, what was compiled 12.3 us'
    """
    return (
        f"the first timing: torch takes {torchs_s * 1e6:.1f} us,"
        f" what was compiled {own_s * 1e6:.1f} us"
    )


def timed(
    own: Callable[[], object], torchs: Callable[[], object], *, entry: bool = False
) -> tuple[float, float] | None:
    """Return the seconds of both ways; None where own ones are too long, or next to nothing.

    The least of several times in turns counts: what disturbs a call makes it longer. They are what
    this thread computes: on a machine that others use, what passes says little. Of calls that take
    long, one time of either tells that torch is not ahead.

    Args:
        own: runs what was compiled.
        torchs: runs torch's way.
        entry: there is a way in that costs something, too: nothing is too short.
    """
    other = 0.0
    if _seconds(own) > LONGEST_FIRST_S and (other := _seconds(torchs)) > LONGEST_FIRST_S:
        return None
    if (best := _seconds(own)) > LONGEST_S:
        # Where ours alone takes long, that is worth leaving.
        return (best, min(other, _seconds(torchs))) if 0 < other < best / AHEAD else None
    if not entry and best < BUDGET_S and min(_seconds(own) for _ in PAIRS[:5]) < LEAST_S:
        return None
    torchs()
    other = _seconds(torchs)
    if best > BUDGET_S and other >= best:
        return best, other  # once is enough for what takes long, where it is ahead
    end = time.thread_time() + BUDGET_S
    for count in PAIRS:
        best, other = min(best, _seconds(own)), min(other, _seconds(torchs))
        if count > PAIRS.start and time.thread_time() > end:
            break
    return best, other


def _seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def has_saved_hooks() -> bool:
    """Return whether hooks of a user's are told what autograd saves: they are to see no trial.

    A checkpoint has such, where it runs and where it computes anew.
    """
    bindings: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    return bindings._autograd._top_saved_tensors_default_hooks(True) is not None


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


@contextmanager
def unwritten(held: Sequence[torch.Tensor]) -> Generator[None]:
    """Give tensors back what they held after a trial; those that it left alone are not touched.

    What autograd has saved of those may not count another write.
    """
    kept = [each.detach().clone() for each in held]
    try:
        yield
    finally:
        with torch.no_grad():
            for each, value in zip(held, kept, strict=True):
                now = each.detach()
                if not ((now == value) | ((now != now) & (value != value))).all():
                    now.copy_(value)


def tried(
    own: Flat,
    torchs: Flat,
    *,
    copies: bool,
    held: Sequence[torch.Tensor] = (),
    told: Callable[[str], object] = lambda _: None,
) -> Flat:
    """Return what runs a graph of Dynamo; its first call shows whether torch is faster.

    No call waits for that: one that comes meanwhile runs what was compiled. Where hooks are told
    what autograd saves, that is settled: a checkpoint that computes anew is to save the same.

    Args:
        own: what was compiled; takes the graph's arguments.
        torchs: runs the graph as eager mode does.
        copies: try them on copies of the arguments: the graph writes to them, or records gradients.
        held: tensors that the graph has besides, such as what an optimizer updates: a trial leaves
            them as they are.
        told: is told why, where torch is to run it.
    """
    chosen: Flat | None = None
    seconds: tuple[float, float] | None = None
    full: list[int] = []
    lock = threading.Lock()

    def settle(way: Flat) -> Flat:
        nonlocal chosen
        with _lock:
            chosen = chosen or way
        return chosen

    def choose(args: Sequence[Any]) -> Flat:
        nonlocal seconds, full
        if has_saved_hooks():
            return settle(own)
        # Of this thread it may be the trial's own: a backward pass that computes its inputs anew.
        if not lock.acquire(blocking=False):
            return chosen or own
        try:
            if chosen is None:
                full = [i for i, each in enumerate(args) if _has_elements(each)]
                seconds = _timed(own, torchs, args, held, copies=copies)
                way = own
                if seconds is not None and is_slower(*seconds):
                    told(timed_text(*seconds))
                    way = torchs
                settle(way)
            return chosen or own
        finally:
            lock.release()

    def run(*args: Any) -> Any:
        way = chosen or choose(args)
        if not _noting or (notes := getattr(_here, "notes", None)) is None:
            return way(*args)
        if way is torchs and not all(args[i].data_ptr() for i in full):
            way = own  # which says so: not all of torch's kernels look
        start = time.thread_time()
        results = way(*args)
        notes.append(Note(seconds, way is torchs, time.thread_time() - start))
        return results

    return run


def noted(run: Flat) -> Flat:
    """Return what runs a graph that is not tried, and leaves a note of it."""

    def call(*args: Any) -> Any:
        if _noting and (notes := getattr(_here, "notes", None)) is not None:
            notes.append(Note(None, is_left=False, inside_s=0.0))
        return run(*args)

    return call


@dataclass(frozen=True)
class Note:
    """What is known of a graph that has run.

    Attributes:
        seconds: of its trial, of what was compiled and of torch's way; None where there was none.
        is_left: torch has run it.
        inside_s: what it took.
    """

    seconds: tuple[float, float] | None
    is_left: bool
    inside_s: float


def _timed(
    own: Flat, torchs: Flat, args: Sequence[Any], held: Sequence[torch.Tensor], *, copies: bool
) -> tuple[float, float] | None:
    arguments = _copies(args) if copies else args
    if arguments is None or not _may_be_copied(held):
        return None
    entry = getattr(_here, "notes", None) is not None
    try:
        with undone(()), unwritten(held):
            return timed(_both_ways(own, arguments), _both_ways(torchs, arguments), entry=entry)
    except Exception:  # the call itself is to raise what it raises
        return None


class Entry:
    """What Dynamo's way in costs the calls of a module, which may be more than it gains them."""

    def __init__(self) -> None:
        self._calls, self._graphs, self._least_s = 0, 0, float("inf")

    @contextmanager
    def watched(self) -> Generator[list[Note]]:
        """Note what runs in a call, and what the call takes besides."""
        start = time.thread_time()
        with noting() as notes:
            yield notes
        self._calls += 1
        self._graphs += len(notes)
        besides = time.thread_time() - start - sum(note.inside_s for note in notes)
        self._least_s = min(self._least_s, besides)

    def has_no_graph(self) -> bool:
        """Return whether Python runs all that such calls do, under Dynamo: after a few calls."""
        return self._calls >= LEAST_CALLS and not self._graphs

    def is_behind(self, notes: Sequence[Note]) -> bool:
        """Return whether torch runs such a call faster without Dynamo: after a few calls."""
        if self._calls < LEAST_CALLS or not notes:
            return False
        own = torchs = 0.0
        for note in notes:
            if note.seconds is None:
                return False
            own += note.seconds[note.is_left]
            torchs += note.seconds[True]
        return is_slower(own + self._least_s, torchs)


def _has_elements(value: Any) -> bool:
    """True for a tensor that has an address."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and bool(value.numel())


def _copies(args: Sequence[Any]) -> list[Any] | None:
    """Return arguments that may be written to; None where they are too many, or lie in each other.

    They are nobody else's leaves: hooks of the caller's see nothing of a trial.
    """
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if not _may_be_copied(tensors):
        return None
    if clash(tensors, range(len(tensors))) is not None:
        return None
    return [
        each.detach().clone().requires_grad_(each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in args
    ]


def _may_be_copied(tensors: Sequence[torch.Tensor]) -> bool:
    """True for tensors with plain memory, and not too much of it."""
    if not all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in tensors):
        return False
    if any(each.layout is not torch.strided or each.is_meta for each in tensors):
        return False
    return sum(each.nbytes for each in tensors) <= MOST_BYTES


def _both_ways(run: Flat, args: Sequence[Any]) -> Callable[[], object]:
    """Return what runs a graph, and backward where gradients are recorded."""
    wanted = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    if not torch.is_grad_enabled() or not wanted:
        return lambda: run(*args)

    def forward_and_backward() -> None:
        outputs = [x for x in run(*args) if isinstance(x, torch.Tensor) and x.requires_grad]
        ones = [torch.ones_like(each) for each in outputs]
        torch.autograd.grad(outputs, wanted, ones, allow_unused=True)

    return forward_and_backward


_here, _lock = threading.local(), threading.Lock()
_noting = 0
"""So many threads gather notes."""


@contextmanager
def noting() -> Generator[list[Note]]:
    """Gather a note of each graph that this thread runs."""
    global _noting
    before = getattr(_here, "notes", None)
    _here.notes = notes = list[Note]()
    with _lock:
        _noting += 1
    try:
        yield notes
    finally:
        _here.notes = before
        with _lock:
            _noting -= 1
