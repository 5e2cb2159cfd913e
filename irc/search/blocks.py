"""What a model of equal layers takes, from eight of its layers: pieces, stages, steps.

A *piece* is a part of the model, planned on the mesh of a stage: its functions' seconds and bytes
on a rank. Four pieces say what any stage takes, whatever the depth and the cut: the first ops, a
layer, the last ops, and what each stage computes for itself (masks, positions). A stage is

    each + layers * layer, and first, and last, where it has them

seconds and bytes added up, and of functions' arenas the largest. The points by which Mist prices
stages (arXiv:2503.19050, section 5) are these: the steady time and what first and last stages take
besides, bytes of each micro-batch in flight, and bytes all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from irc.dialects.placement import Placement, Split

UPDATE = "update"
"""What runs once in a step, among functions: sums of gradients, their norm, the update."""


@dataclass(frozen=True)
class Piece:
    """What a part of a model takes of each rank of a stage's mesh.

    Attributes:
        seconds: by function: F and B, or F, I and W, of a micro-batch, and ``update`` of a step.
        bare_s: of these, for which compute waits for collectives.
        held_bytes: of weights, their gradients, states: all the time.
        divided_bytes: of these, what is in parts over the axis ``data``.
        saved_bytes: of a micro-batch in flight, by the functions that make and last read it, F-B.
        arena_bytes: the most that is alive in a function, by function; of ``update`` what pieces
            add up: all sums of gradients are under way at a time.
    """

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    bare_s: Mapping[str, float] = field(default_factory=dict[str, float])
    held_bytes: float = 0.0
    divided_bytes: float = 0.0
    saved_bytes: Mapping[str, float] = field(default_factory=dict[str, float])
    arena_bytes: Mapping[str, float] = field(default_factory=dict[str, float])

    def __add__(self, other: Piece) -> Piece:
        """Return both pieces as one.

        >>> (Piece({"F": 1.0}) + Piece({"F": 2.0, "B": 4.0})).seconds
        {'F': 3.0, 'B': 4.0}
        """
        return Piece(
            _added(self.seconds, other.seconds),
            _added(self.bare_s, other.bare_s),
            self.held_bytes + other.held_bytes,
            self.divided_bytes + other.divided_bytes,
            _added(self.saved_bytes, other.saved_bytes),
            dict(_together(self.arena_bytes, other.arena_bytes)),
        )

    def times(self, count: float) -> Piece:
        """Return so many of this piece, one after the other, as one."""

        def scaled(own: Mapping[str, float]) -> dict[str, float]:
            return {name: count * number for name, number in own.items()}

        return Piece(
            scaled(self.seconds),
            scaled(self.bare_s),
            count * self.held_bytes,
            count * self.divided_bytes,
            scaled(self.saved_bytes),
            {
                name: size if name != UPDATE else count * size
                for name, size in self.arena_bytes.items()
                if count
            },
        )

    def on(self, part: float, link: float) -> Piece:
        """Return what it takes on another number of ranks of ``data``, with the same samples each.

        Functions of a micro-batch stay as they are; what runs once sums gradients over other links,
        and updates what a rank then has of the states.

        Args:
            part: how many times as much a rank has of what is divided over ``data``.
            link: how many times as long collectives over ``data`` take.
        """
        waits = self.bare_s.get(UPDATE, 0.0)
        divided = self.divided_bytes / self.held_bytes if self.held_bytes else 0.0
        work = (self.seconds.get(UPDATE, 0.0) - waits) * (1 - divided + divided * part)
        return replace(
            self,
            seconds={**self.seconds, UPDATE: work + waits * link},
            bare_s={**self.bare_s, UPDATE: waits * link},
            held_bytes=self.held_bytes + self.divided_bytes * (part - 1),
            divided_bytes=self.divided_bytes * part,
        )


def _added(one: Mapping[str, float], two: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + two.get(name, 0.0) for name in dict.fromkeys((*one, *two))}


def _together(one: Mapping[str, float], two: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name in dict.fromkeys((*one, *two)):
        own = one.get(name, 0.0), two.get(name, 0.0)
        yield name, sum(own) if name == UPDATE else max(own)


@dataclass(frozen=True)
class Passed:
    """A value that a layer hands to the next, which may be in another stage.

    Attributes:
        shape: of the whole value.
        dtype: irc's short name.
        placement: how it lies on the mesh of a stage.
        num_bytes: on a rank.
        is_smooth: its gradient goes back.
    """

    shape: tuple[int, ...]
    dtype: str
    placement: Placement
    num_bytes: float
    is_smooth: bool

    def on(self, part: float) -> Passed:
        """Return what is passed where a rank of ``data`` has the same, and there are others."""
        placed = self.placement["data"]
        dim = placed.dim if isinstance(placed, Split) else -1
        shape = (round(n / part) if i == dim else n for i, n in enumerate(self.shape))
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True)
class Content:
    """What a stage computes of a model.

    Attributes:
        layers: how many.
        has_first: the model's first ops.
        has_last: its last ops.
        again: of the layers, how many backward computes again as a whole.
    """

    layers: int
    has_first: bool = False
    has_last: bool = False
    again: int = 0


@dataclass(frozen=True)
class Blocks:
    """The pieces of a model on the mesh of a stage, for one size of a micro-batch.

    Attributes:
        each: what every stage computes for itself.
        first: the first ops.
        layer: a layer, forward and backward, and its update.
        last: the last ops.
        passed: what a layer hands to the next.
        again: a layer that backward computes again as a whole; None where no such one is planned.
        norm: no rank updates before all have their gradients.
        mixes: by function, what streams do at a time, and for which part of the function's time.
    """

    each: Piece
    first: Piece
    layer: Piece
    last: Piece
    passed: tuple[Passed, ...] = ()
    again: Piece | None = None
    norm: bool = False
    mixes: Mapping[str, tuple[tuple[tuple[str, ...], float], ...]] = field(
        default_factory=dict[str, tuple[tuple[tuple[str, ...], float], ...]]
    )

    def on(self, before: int, after: int, link: float) -> Blocks:
        """Return the pieces on another number of ranks of ``data``, with the same samples each.

        Args:
            before: ranks that they were planned on, two or more.
            after: ranks that there are.
            link: how many times as long collectives over ``data`` take.
        """
        part = before / after
        return replace(
            self,
            each=self.each.on(part, link),
            first=self.first.on(part, link),
            layer=self.layer.on(part, link),
            last=self.last.on(part, link),
            again=None if self.again is None else self.again.on(part, link),
            passed=tuple(own.on(part) for own in self.passed),
        )

    def stage(self, content: Content) -> Piece:
        """Return what a stage takes, but for what comes from its neighbours and goes to them."""
        piece = self.each + self.layer.times(content.layers - content.again)
        if content.again:
            assert self.again is not None
            piece += self.again.times(content.again)
        piece += self.first if content.has_first else Piece()
        return piece + self.last if content.has_last else piece
