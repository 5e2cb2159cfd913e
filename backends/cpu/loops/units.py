"""Units of work: which of them a thread does, and where in the loop nest each one is.

A position is decoded once, where a thread starts (one division and one remainder per dim, by
:mod:`irc.kernels.mapping.unfold`); from there on its indices count up with carries, as an odometer
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from irc.backends.cpu.vector.builder import PTR, Builder, Count, Operand, Type, constant
from irc.dialects.mapping import spatial
from irc.kernels.mapping.unfold import starts
from irc.plan.native import parts_of

MAX_ARGS = 4096
"""Buffers of a kernel; one that does many tensors at once (template foreach) has so many."""
NEXT_WEIGHT, NEXT_BYTES = MAX_ARGS, MAX_ARGS + 1
"""Behind its arguments a kernel finds the weight that a later kernel reads first, and its size."""
SIZE_VALUES = MAX_ARGS + 2
"""And there, where it takes sizes, the address of their values."""
TURNS = MAX_ARGS + 3
"""And there, into how many parts the shares of threads are divided in this call."""

PIECES = 16
"""Parts of a thread's share of a large kernel: what another thread can take over."""
LEAST_PRODUCTS = 100_000
"""Multiplications from which on threads pay."""


def pieces_of(work: Count, least_work: int = LEAST_PRODUCTS) -> int:
    """Return into how many parts a kernel divides each thread's share, if it is large.

    Args:
        work: multiplications, or points.
        least_work: from so many on threads pay.
    """
    if not isinstance(work, int):
        return PIECES
    return max(parts_of(work, least_work, PIECES), 1)


@dataclass(frozen=True)
class Turn:
    """Which part of which thread's share a call does, in a kernel whose shares are divided.

    A kernel is called with the number of a part and that of all parts, and finds behind its
    arguments how many of them are a thread's share (:data:`TURNS`): a call may leave it whole.

    Attributes:
        member: the thread whose share it is of, if no other has taken it over.
        team: how many threads there are.
        turn: which part of that share, of :attr:`turns`.
    """

    member: Operand
    team: Operand
    turn: Operand
    turns: Operand

    @classmethod
    def of(cls, b: Builder, pieces: int) -> Turn:
        """Read it from a call of a kernel whose shares have so many parts."""
        share, shares = Operand(Type("i64"), "%thread"), Operand(Type("i64"), "%threads")
        one = b.i64(1)
        if pieces == 1:
            return cls(share, shares, b.i64(0), one)
        place = b.address(Operand(PTR, "%args"), "ptr", b.i64(TURNS))
        turns = b.load(Type("i64"), place, 8)
        team, member = b.binary("udiv", shares, turns), b.binary("udiv", share, turns)
        return cls(member, team, b.binary("urem", share, turns), turns)

    def is_last(self, b: Builder) -> Operand:
        """Return whether what follows is the next kernel."""
        return b.compare("icmp eq", b.add(self.turn, b.i64(1)), self.turns)


class Integers:
    """The arithmetic of unfolded mappings as i64 instructions."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def constant(self, value: int) -> Operand:
        return self.b.i64(value)

    def divide(self, x: Operand, by: int) -> Operand:
        return self.b.binary("udiv", x, self.b.i64(by))

    def modulo(self, x: Operand, by: int) -> Operand:
        return self.b.binary("urem", x, self.b.i64(by))

    def times(self, x: Operand, by: int) -> Operand:
        return self.b.scale(x, by)

    def plus(self, x: Operand, y: Operand) -> Operand:
        return self.b.add(x, y)


def thread_range(b: Builder, units: Count, chunks: Count) -> tuple[Operand, Operand]:
    """Return the units of this thread: whole chunks, contiguous.

    Where one of the numbers is known only at run time, each unit is a chunk.
    """
    thread, threads = Operand(Type("i64"), "%thread"), Operand(Type("i64"), "%threads")
    every, parts = b.i64(units), b.i64(chunks)
    if every.literal is None or parts.literal is None:
        parts = every

    def bound(position: Operand) -> Operand:
        chunk = b.binary("udiv", b.binary("mul nuw", position, parts), threads)
        if parts == every:
            return chunk
        product = b.binary("mul nuw", chunk, every)
        return b.binary("udiv", product, parts)

    return bound(thread), bound(b.binary("add nuw", thread, constant(thread.type, 1)))


def decode(b: Builder, index: Operand, extents: Sequence[Count]) -> list[Operand]:
    """Return the indices of a row-major position: one division and remainder per dim."""
    sizes = [b.i64(extent) for extent in extents]
    known = [int(size.literal) for size in sizes if size.literal is not None]
    if len(known) == len(sizes):
        return starts(spatial(*(max(extent, 1) for extent in known)), index, Integers(b))
    indices: list[Operand] = []
    for place in range(len(sizes) - 1, -1, -1):
        size = sizes[place]
        if size.literal == 1 or place == 0:
            indices.insert(0, b.i64(0) if size.literal == 1 else index)
            continue
        indices.insert(0, b.binary("urem", index, size))
        index = b.binary("udiv", index, size)
    return indices


def each_unit(
    b: Builder,
    extents: Sequence[Count],
    chunks: Count,
    body: Callable[[list[Operand]], None],
) -> None:
    """Write the loop over the units of this thread.

    Args:
        b: where to write.
        extents: of the units, the last one fastest.
        chunks: into how many parts the units may be divided among threads.
        body: writes one unit, given its index in each dim.
    """
    sizes = [b.i64(extent) for extent in extents]
    count = b.product(sizes)
    if count.literal == 0:
        return
    low, high = thread_range(b, count, 1 if chunks == 0 else chunks)
    moving = [d for d, size in enumerate(sizes) if size.literal is None or size.literal > 1]

    def unit(index: Operand, values: list[Operand]) -> list[Operand]:
        places = [b.i64(0)] * len(sizes)
        for d, value in zip(moving, values or [index], strict=False):
            places[d] = value
        body(places)
        return _following(b, values, [sizes[d] for d in moving] if values else [])

    first = decode(b, low, sizes)
    # A single dim is the position itself.
    b.loop(low, high, 1, [first[d] for d in moving] if len(moving) > 1 else [], unit)


def next_share(b: Builder, at: Turn) -> Operand:
    """Return where a thread's share begins of the weight that a later kernel reads.

    A kernel's last tiles ask for it, so that the next kernel's first ones need not wait for memory.
    """
    slots, kind = Operand(PTR, "%args"), Type("i64")
    weight = b.load(PTR, b.address(slots, "ptr", b.i64(NEXT_WEIGHT)), 8)
    size = b.load(kind, b.address(slots, "ptr", b.i64(NEXT_BYTES)), 8)
    begin = b.binary("udiv", b.binary("mul", size, at.member), at.team)
    return b.address(weight, "i8", b.binary("and", begin, b.i64(-64)))


def _following(b: Builder, values: Sequence[Operand], extents: Sequence[Operand]) -> list[Operand]:
    """Count up by one: the last index, and those before it where it wraps."""
    after: list[Operand] = []
    carry: Operand | None = None
    for place, (value, extent) in reversed(list(enumerate(zip(values, extents, strict=True)))):
        step = b.i64(1) if carry is None else b.convert("zext", carry, "i64")
        moved = b.add(value, step)
        if place:
            carry = b.compare("icmp eq", moved, extent)
            moved = b.select(carry, b.i64(0), moved)
        after.insert(0, moved)
    return after
