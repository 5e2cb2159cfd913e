"""Channels: a value moves from one mesh, ranks and placement to another; who sends which slice.

A *block* is what ranks of the mesh before hold alike: one part of each dim that is split. A rank
after needs a box of the value, which blocks cover without overlap; what it does not hold itself it
receives, a slice of each block from one of the block's holders. So it receives no byte twice, and
none that it has: max(0, needed - held), the least there can be. The holders of a block share its
readers evenly; where that is as even, a reader is served by the holder with its own coordinates.

Stage boundaries of a pipeline and values put together are this one function; of what is left of a
mesh that lost ranks, which has no placement, :mod:`irc.sharding.exchange` gives the same messages.
All is arithmetic on the coordinates of the rank that is asked about: no pair of ranks is listed
that has nothing to say to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as cartesian
from math import prod
from typing import TypeAlias

from irc.dialects.items import ITEM_BYTES
from irc.dialects.placement import Mesh, Partial, Placement, Split
from irc.errors import IrcError
from irc.sharding.readers import Place, Readers, parts_in
from irc.sharding.shards import Slices, chunk

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Start and stop along each dim."""


@dataclass(frozen=True)
class Side:
    """How a value lies on one end of a channel.

    Attributes:
        placement: on the axes of the mesh, without partial values.
        mesh: its ranks count from 0.
        ranks: by rank of the mesh, the number that all meshes know it by.
    """

    placement: Placement
    mesh: Mesh
    ranks: Sequence[int]

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The rank of the mesh by its global number."""
        return {rank: position for position, rank in enumerate(self.ranks)}

    @cached_property
    def copies(self) -> tuple[str, ...]:
        """The axes whose ranks hold the same."""
        return tuple(n for n, p in self.placement.axes if not isinstance(p, Split))

    def place(self, rank: int) -> Place:
        """Return the coordinates of a global rank."""
        return self.mesh.coordinates(self.positions[rank])

    def rank(self, place: Place) -> int:
        """Return the global rank at coordinates."""
        return self.ranks[self.mesh.rank(place)]

    def box(self, shape: Sequence[int], place: Place) -> Box:
        """Return what the rank at coordinates holds."""
        spans: list[tuple[int, int]] = []
        for dim, length in enumerate(shape):
            start = 0
            for axis, size in self._splits.get(dim, ()):
                offset, length = chunk(length, size, place[axis])
                start += offset
            spans.append((start, start + length))
        return tuple(spans)

    @cached_property
    def _splits(self) -> Mapping[int, tuple[tuple[str, int], ...]]:
        """By dim, the axes that split it, with their sizes."""
        dims = {placed.dim for placed in self.placement if isinstance(placed, Split)}
        return {
            dim: tuple((axis, self.mesh.size(axis)) for axis in self.placement.split_axes(dim))
            for dim in dims
        }

    def largest(self, shape: Sequence[int]) -> int:
        """Return the elements that the rank with the largest part holds, which is the first."""
        return volume(self.box(shape, dict.fromkeys(self.mesh.names, 0)))

    def parts(self, dim: int, length: int, low: int, high: int) -> Iterator[tuple[Place, int, int]]:
        """Yield the parts of a dim that meet an interval: coordinates, start and stop within it."""
        splits = self._splits.get(dim, ())
        for digits, start, stop in parts_in(length, [size for _, size in splits], low, high):
            yield {axis: i for (axis, _), i in zip(splits, digits, strict=True)}, start, stop


@dataclass(frozen=True)
class Message:
    """A slice that goes from one rank to another, or stays on one.

    Attributes:
        source, target: global ranks.
        where: the slice of the whole value.
        source_part, target_part: of the tensors that the two hold, the same elements.
        num_bytes: of the slice.
    """

    source: int
    target: int
    where: Slices
    source_part: Slices
    target_part: Slices
    num_bytes: int

    @property
    def is_copy(self) -> bool:
        """Whether it stays on its rank."""
        return self.source == self.target


@dataclass(frozen=True)
class Channel:
    """A value that two sides hold, and what its ranks tell each other.

    A partial value is refused: its sum is arithmetic, which whoever places the ops prices (as an
    all-reduce, or a reduce-scatter to the very placement that is sent); a channel moves bytes.

    Attributes:
        shape: of the whole value.
        dtype: irc's short name.
        before: who holds it.
        after: who needs it; ranks may be on both sides.

    >>> from irc.dialects.placement import B, Split
    >>> before = Side(Placement.of(tensor=Split(0)), Mesh.parse("tensor=2"), (0, 1))
    >>> after = Side(Placement.of(data=B), Mesh.parse("data=2"), (1, 2))
    >>> for message in Channel((4,), "f32", before, after).messages(1):
    ...     print(message.source, message.target, message.where, message.target_part)
    1 1 (slice(2, 4, None),) (slice(2, 4, None),)
    0 1 (slice(0, 2, None),) (slice(0, 2, None),)
    1 2 (slice(2, 4, None),) (slice(2, 4, None),)
    """

    shape: tuple[int, ...]
    dtype: str
    before: Side
    after: Side

    def __post_init__(self) -> None:
        for name, side in (("before", self.before), ("after", self.after)):
            _check(name, side, len(self.shape))

    def messages(self, rank: int) -> tuple[Message, ...]:
        """Return what a rank does, in an order in which no two ranks wait for each other.

        Copies come first. The rest is sorted by (target - source) modulo the number of ranks, then
        by source: one order of all messages of the channel, of which each rank has its own part,
        so that the first that is not done yet can always be done. Those of a round concern
        different pairs: all of them can be under way at a time.
        """
        held = self.copy(rank)
        moved = sorted(
            (*self.sends(rank), *self.receives(rank)),
            key=lambda m: ((m.target - m.source) % self._num_ranks, m.source),
        )
        return (*moved,) if held is None else (held, *moved)

    def copy(self, rank: int) -> Message | None:
        """Return what a rank holds already, None for nothing."""
        if rank not in self.before.positions or rank not in self.after.positions:
            return None
        held, needed = (s.box(self.shape, s.place(rank)) for s in (self.before, self.after))
        where = meet(held, needed)
        return message_of(rank, rank, where, held, needed, self.dtype) if volume(where) else None

    def receives(self, rank: int) -> Iterator[Message]:
        """Yield what a rank receives, in no particular order."""
        if rank not in self.after.positions:
            return
        place = self.after.place(rank)
        needed = self.after.box(self.shape, place)
        has = self._block_of(rank)
        for block, where in self._blocks(needed):
            if block != has:
                source = {**self._readers(block).holder(place), **block}
                held = self.before.box(self.shape, source)
                source_rank = self.before.rank(source)
                yield message_of(source_rank, rank, where, held, needed, self.dtype)

    def sends(self, rank: int) -> Iterator[Message]:
        """Yield what a rank sends, in no particular order."""
        block = self._block_of(rank)
        if block is None:
            return
        place = self.before.place(rank)
        held = self.before.box(self.shape, place)
        for target in self._readers(block).served_by(place):
            needed = self.after.box(self.shape, target)
            where = meet(held, needed)
            target_rank = self.after.rank(target)
            yield message_of(rank, target_rank, where, held, needed, self.dtype)

    def bytes_received(self, rank: int) -> int:
        """Return the bytes that a rank receives: what it needs and does not hold."""
        if rank not in self.after.positions:
            return 0
        needed = volume(self.after.box(self.shape, self.after.place(rank)))
        if rank in self.before.positions:
            needed -= volume(self._held(rank))
        return needed * ITEM_BYTES[self.dtype]

    def bytes_sent(self, rank: int) -> int:
        """Return the bytes that a rank sends."""
        return sum(message.num_bytes for message in self.sends(rank))

    @cached_property
    def total_bytes(self) -> int:
        """The bytes that all ranks receive: only ranks on both sides are looked at one by one."""
        copies = prod(self.after.mesh.size(axis) for axis in self.after.copies)
        kept = sum(volume(self._held(rank)) for rank in self.shared)
        return (copies * prod(self.shape) - kept) * ITEM_BYTES[self.dtype]

    @cached_property
    def _num_ranks(self) -> int:
        return 1 + max(max(self.before.ranks), max(self.after.ranks))

    @cached_property
    def shared(self) -> frozenset[int]:
        """The ranks on both sides."""
        return frozenset(self.before.positions.keys() & self.after.positions.keys())

    def _held(self, rank: int) -> Box:
        """Return what a rank of both sides needs and holds."""
        sides = (side.box(self.shape, side.place(rank)) for side in (self.before, self.after))
        return meet(*sides)

    def _block_of(self, rank: int) -> Place | None:
        """Return the block that a rank holds, by the coordinates that tell blocks apart."""
        if rank not in self.before.positions:
            return None
        place = self.before.place(rank)
        return {axis: i for axis, i in place.items() if axis not in self.before.copies}

    def _blocks(self, needed: Box) -> Iterator[tuple[Place, Box]]:
        """Yield the blocks that meet a box, and where."""
        dims = enumerate(zip(self.shape, needed, strict=True))
        along = [tuple(self.before.parts(i, n, *interval)) for i, (n, interval) in dims]
        order = [axis for axis in self.before.mesh.names if axis not in self.before.copies]
        if not volume(needed):
            return
        for parts in cartesian(*along):
            place = {axis: i for part in parts for axis, i in part[0].items()}
            where = tuple((start, stop) for _, start, stop in parts)
            yield {axis: place[axis] for axis in order}, where

    @cached_property
    def _by_block(self) -> dict[tuple[int, ...], Readers]:
        return {}

    def _readers(self, block: Place) -> Readers:
        """Return who reads a block."""
        key = tuple(block.values())
        if key not in self._by_block:
            anywhere = dict.fromkeys(self.before.copies, 0)
            whole = self.before.box(self.shape, {**anywhere, **block})
            self._by_block[key] = Readers(self, block, whole)
        return self._by_block[key]


def message_of(source: int, target: int, where: Box, held: Box, needed: Box, dtype: str) -> Message:
    """Return the message of a slice, of the box that its source holds and that its target needs."""
    return Message(
        source,
        target,
        tuple(slice(start, stop) for start, stop in where),
        within(where, held),
        within(where, needed),
        volume(where) * ITEM_BYTES[dtype],
    )


def _check(name: str, side: Side, num_dims: int) -> None:
    ranks, placement = side.mesh.num_ranks, side.placement
    if placement.names != side.mesh.names or len(side.ranks) != ranks:
        raise IrcError(
            "mesh-mismatch",
            f"a value lies as {placement} on mesh '{side.mesh}' of {len(side.ranks)} ranks "
            f"{name} a channel",
            because="a placement says something about each axis, and each place has one rank",
        )
    if len(side.positions) != ranks:
        twice = next(r for i, r in enumerate(side.ranks) if side.positions[r] != i)
        raise IrcError("mesh-mismatch", f"rank {twice} is twice on a mesh {name} a channel")
    for axis, placed in placement.axes:
        if isinstance(placed, Partial) and side.mesh.size(axis) > 1:
            raise IrcError(
                "channel-partial",
                f"a value is {placed} on axis '{axis}' {name} a channel",
                because="a channel moves values and does not add them up",
                help=f"box it first: {axis} = B, or S(dim) where what comes after wants parts",
            )
        if isinstance(placed, Split) and placed.dim >= num_dims:
            raise IrcError(
                "mesh-mismatch",
                f"axis '{axis}' splits dim {placed.dim} of a value of {num_dims} dims "
                f"{name} a channel",
            )


def volume(box: Box) -> int:
    """Return how many elements a box has."""
    return prod(stop - start for start, stop in box)


def meet(a: Box, b: Box) -> Box:
    """Return what is in both; a dim without anything has its start for its stop."""
    pairs = zip(a, b, strict=True)
    meets = ((max(p[0], q[0]), min(p[1], q[1])) for p, q in pairs)
    return tuple((start, max(start, stop)) for start, stop in meets)


def within(where: Box, part: Box) -> Slices:
    """Return where a box lies in the local tensor that holds ``part``."""
    pairs = zip(where, part, strict=True)
    return tuple(slice(a - origin, b - origin) for (a, b), (origin, _) in pairs)
