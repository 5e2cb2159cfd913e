"""What a device holds when: the memory of a plan, moment by moment.

A *moment* is an op of the entry, and where that is a call, an op inside of the callee, and so on. A
device holds then all that is loaded, every value between the op that makes it and its last reader,
and the boxed copies that readers have asked for. Functions are walked once, however often they are
called: what is live outside and inside of a call add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from irc.search.problem import Choice, Port
from irc.sharding.trees import Tree, Trees
from irc.training.functions import first_kind, last_kind

if TYPE_CHECKING:
    from irc.sharding.boxing import LocalShape
    from irc.sharding.spaces import Numbers
    from irc.training.stage_runs import StageRuns

Moment: TypeAlias = tuple[tuple[str, int], ...]
"""From the entry inwards: the function, and the place of the op in it."""


@dataclass(frozen=True)
class Span:
    """A value that is held from one op to another.

    Attributes:
        what: the kind of the value, for reports: ``parameters``, ``activations``.
        node: whose option says how it lies.
        num_bytes: of each option.
        start: the op that makes it.
        end: its last reader.
        is_stored: it is loaded before the first call, and stays.
    """

    what: str
    node: int
    num_bytes: tuple[int, ...]
    start: int
    end: int
    is_stored: bool = False


@dataclass(frozen=True)
class Reads:
    """The readers of a value, in program order, which may want it boxed.

    Attributes:
        net: the index of its net.
        shape: the logical shape.
        dtype: the element type.
        source: where it is made.
        at: each reader's place, the number of its port among the net's readers, and the port.
        kinds: of a stage of a pipeline, by place, the function that reads there.
        runs: how these functions run.
        end: the last place.
    """

    net: int
    shape: LocalShape
    dtype: str
    source: Port
    at: tuple[tuple[int, int, Port], ...]
    kinds: Mapping[int, str] = field(default_factory=dict[int, str])
    runs: StageRuns | None = None
    end: int = 0

    def slots(self, places: Iterable[int]) -> int | None:
        """Return how many copies there are of what several functions read; None for one alone.

        Args:
            places: of its readers.
        """
        kinds = {self.kinds[place] for place in places if place in self.kinds}
        if self.runs is None or len(kinds) < 2:
            return None
        return self.runs.slots_between(first_kind(kinds), last_kind(kinds))


@dataclass
class Timeline:
    """One function: what it holds when.

    Attributes:
        labels: the name of each op.
        spans: values that are held.
        returned: values that are held inside and outside; counted outside.
        reads: values that may be boxed.
        library: of ops that a library computes: the results, which it allocates beside them.
        calls: the callee of each op that is a call.
        aside: the most that libraries of collectives hold, under the choice looked at last.
    """

    labels: list[str]
    spans: list[Span] = field(default_factory=list[Span])
    returned: list[Span] = field(default_factory=list[Span])
    reads: list[Reads] = field(default_factory=list[Reads])
    library: list[Span] = field(default_factory=list[Span])
    aside: int = 0
    calls: dict[int, str] = field(default_factory=dict[int, str])

    def held(self, choice: Choice, trees: Trees) -> Numbers:
        """Return the bytes at each op, without what its callee holds."""
        change = np.zeros(len(self.labels) + 1)
        for span in self.spans:
            size = span.num_bytes[choice[span.node]]
            change[span.start] += size
            change[span.end + 1] -= size
        self.aside = 0
        for start, end, size in self.copies(choice, trees):
            change[start] += size
            change[end + 1] -= size
        outside = sum(span.num_bytes[choice[span.node]] for span in self.returned)
        return np.cumsum(change)[:-1] - outside

    def copies(self, choice: Choice, trees: Trees) -> Iterable[tuple[int, int, int]]:
        """Yield the first and the last op of each boxed copy and of its scratch, and the bytes."""
        for reads in self.reads:
            self.aside = max(self.aside, aside_of(reads, choice, trees))
            yield from copies_of(reads, choice, trees)


def _tree(reads: Reads, choice: Choice, trees: Trees) -> Tree | None:
    """Return the boxings of a value; None where it needs none."""
    source = reads.source.placements[choice[reads.source.node]]
    wanted = [port.placements[choice[port.node]] for _, _, port in reads.at]
    if all(placement == source for placement in wanted):
        return None
    return trees.tree(reads.shape, reads.dtype, source, wanted)


def aside_of(reads: Reads, choice: Choice, trees: Trees) -> int:
    """Return the most that a library of collectives holds to box a value."""
    tree = _tree(reads, choice, trees)
    scratch = (
        trees.scratch_bytes(reads.shape, reads.dtype, branch.source, branch.target)
        for branch in (tree.branches if tree else ())
    )
    return max((aside for _, aside in scratch), default=0)


def copies_of(reads: Reads, choice: Choice, trees: Trees) -> Iterable[tuple[int, int, int]]:
    """Yield the first and the last op of each boxed copy and of its scratch, and the bytes."""
    tree = _tree(reads, choice, trees)
    if tree is None:
        return
    wanted = [(at, port.placements[choice[port.node]]) for at, _, port in reads.at]
    times = {
        branch.target: [at for at, p in wanted if p == branch.target] for branch in tree.branches
    }
    # A copy that others are made from is there from when the first of them is.
    for branch in reversed(tree.branches):
        if branch.source in times:
            times[branch.source].append(min(times[branch.target]))
    for branch in tree.branches:
        at = min(times[branch.target])
        packed, _ = trees.scratch_bytes(reads.shape, reads.dtype, branch.source, branch.target)
        if packed:
            yield at, at, packed
    for target, at in times.items():
        size = trees.num_bytes(reads.shape, reads.dtype, target)
        # What one function of a stage hands to another is there all the time.
        slots = reads.slots(at)
        yield (min(at), max(at), size) if slots is None else (0, reads.end, slots * size)


class Liveness:
    """The memory of all functions of a module.

    Args:
        functions: by name; the entry is ``forward``.
    """

    def __init__(self, functions: Mapping[str, Timeline]) -> None:
        self.functions = functions

    def worst(self, choice: Choice, trees: Trees) -> tuple[int, Moment]:
        """Return the bytes at the moment when a device holds most, and that moment."""
        by_function: dict[str, tuple[int, Moment]] = {}
        most, moment = self._worst("forward", choice, trees, by_function)
        return most + self._aside(choice), moment

    def _aside(self, choice: Choice) -> int:
        """Return the most that a library allocates at a time: the arena is there all the time."""
        asides = (timeline.aside for timeline in self.functions.values())
        return max([*self._computed(choice).values(), *asides], default=0)

    def _computed(self, choice: Choice) -> dict[tuple[str, int], int]:
        """Return the bytes that each call of a library allocates."""
        sizes: dict[tuple[str, int], int] = {}
        for name, timeline in self.functions.items():
            for span in timeline.library:
                at = name, span.start
                sizes[at] = sizes.get(at, 0) + span.num_bytes[choice[span.node]]
        return sizes

    def library(self, choice: Choice) -> tuple[str, int] | None:
        """Return the op whose library allocates most: its function and its place."""
        sizes = self._computed(choice)
        return max(sizes, key=lambda at: sizes[at]) if sizes else None

    def computed(self, op: tuple[str, int]) -> list[Span]:
        """Return what the library of an op allocates."""
        name, at = op
        return [span for span in self.functions[name].library if span.start == at]

    def beside(self, choice: Choice, trees: Trees) -> tuple[Reads, int] | None:
        """Return the value whose boxing needs most from a library of collectives, and the bytes."""
        every = (reads for timeline in self.functions.values() for reads in timeline.reads)
        largest = max(
            ((aside_of(reads, choice, trees), i, reads) for i, reads in enumerate(every)),
            default=None,
        )
        return (largest[2], largest[0]) if largest is not None and largest[0] else None

    def _worst(
        self, name: str, choice: Choice, trees: Trees, by_function: dict[str, tuple[int, Moment]]
    ) -> tuple[int, Moment]:
        if name in by_function:
            return by_function[name]
        timeline = self.functions[name]
        held = timeline.held(choice, trees)
        inside: dict[int, Moment] = {}
        for index, callee in timeline.calls.items():
            more, moment = self._worst(callee, choice, trees, by_function)
            if more > 0:
                held[index] += more
                inside[index] = moment
        if not len(held):
            return 0, ()
        at = int(np.argmax(held))
        by_function[name] = int(held[at]), ((name, at), *inside.get(at, ()))
        return by_function[name]

    def label(self, moment: Moment) -> str:
        """Return a moment's name, ``n12/b0n3``."""
        return "/".join(self.functions[name].labels[at] for name, at in moment)

    def stored(self, choice: Choice) -> int:
        """Return the bytes of what a device has loaded."""
        spans = self.functions["forward"].spans
        return sum(s.num_bytes[choice[s.node]] for s in spans if s.is_stored)

    def held_at(self, moment: Moment) -> dict[int, Numbers]:
        """Return the bytes that each node's options hold at a moment; at the empty one, loaded."""
        held: dict[int, Numbers] = {}

        def add(spans: Iterable[Span], sign: float) -> None:
            for span in spans:
                size = sign * np.array(span.num_bytes, dtype=float)
                held[span.node] = held[span.node] + size if span.node in held else size

        if not moment:
            add((s for s in self.functions["forward"].spans if s.is_stored), 1.0)
        for name, at in moment:
            timeline = self.functions[name]
            add((s for s in timeline.spans if s.start <= at <= s.end), 1.0)
            add(timeline.returned, -1.0)
        return held

    def breakdown(self, moment: Moment, choice: Choice, trees: Trees) -> dict[str, int]:
        """Return what the bytes at a moment are: by kind of value, and of boxed copies."""
        by_kind: dict[str, int] = {}
        for name, at in moment:
            timeline = self.functions[name]
            inside = "" if name == "forward" else "transients"
            for span in timeline.spans:
                if span.start <= at <= span.end:
                    # What a callee is done with is taken off where it was counted.
                    what = span.what if min(span.num_bytes) < 0 else inside or span.what
                    by_kind[what] = by_kind.get(what, 0) + span.num_bytes[choice[span.node]]
            for span in timeline.returned:
                by_kind[inside] = by_kind.get(inside, 0) - span.num_bytes[choice[span.node]]
            for start, end, size in timeline.copies(choice, trees):
                if start <= at <= end:
                    by_kind["boxed"] = by_kind.get("boxed", 0) + size
        by_kind["library"] = self._aside(choice)
        return {what: size for what, size in by_kind.items() if size}
