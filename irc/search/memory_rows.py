"""Memory in the integer program: rows that say exactly what a device holds at a moment.

Of a moment, with room for the bytes ``M`` (`irc.search.liveness` says what is held when):

    sum of held[n, o] x[n, o]  +  sum over values v and placements q of bytes[v, q] y[v, q]
                               +  sum over values v of e[v]  +  aside   <=  M

    y[v, q] >= x[k at q] - x[v at q]                    reader k is there at that moment
    y[v, q] >= x[j at q] + x[k at q] - 1 - x[v at q]    j reads before it, and k after it
    aside   >= what a library call holds

``y`` says that a boxed copy of v at placement q is live, and the inequalities hold of any choice:
rows that no choice satisfies prove that nothing fits. What they leave out (copies that others are
made from, what is packed on the way, what a library of collectives holds) is added when a choice
that does not fit is seen: where a value lies and its readers want it as there, ``e[v]`` or
``aside`` is what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from irc.search.liveness import copies_of
from irc.search.problem import Port, Problem
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from irc.dialects.placement import Placement
    from irc.search.liveness import Moment, Reads
    from irc.search.relaxation import Relaxation

FAINT = 1e-5
"""Copies that take less of the room have no ``y``: they are added where they are missed."""

Entries = dict[int, float]
"""The coefficient of each column of a row."""


@dataclass
class _Moment:
    """A moment that is bounded.

    Attributes:
        values: those that are read around it, and the op of their function.
        row: the number of its row.
        more: the column ``e`` of a value, where there is one.
    """

    values: list[tuple[Reads, int]] = field(default_factory=list["tuple[Reads, int]"])
    row: int = 0
    more: dict[int, int] = field(default_factory=dict[int, int])


class MemoryRows:
    """The rows of memory of one problem.

    Args:
        problem: with its liveness.
        search: the relaxation, which rows are added to.
        trees: boxings.
        unit: the bytes that are 1 in the rows.
    """

    def __init__(self, problem: Problem, search: Relaxation, trees: Trees, unit: int) -> None:
        assert problem.liveness is not None
        self._liveness, self._search, self._trees = problem.liveness, search, trees
        self._first = search.matrix.first
        self._unit = max(unit, 1)
        self._moments: dict[Moment, _Moment] = {}
        self._aside: int | None = None
        self._known: set[object] = set()

    def __contains__(self, moment: Moment) -> bool:
        return moment in self._moments

    def bound(self, moment: Moment, limit: int) -> None:
        """Add the rows of a moment; of the empty one: what is loaded has room.

        Args:
            moment: when.
            limit: the bytes that it may need.
        """
        bounded = self._moments[moment] = _Moment()
        # What is loaded may be far less than a device has, and shares no column with other rows.
        unit = self._unit if moment or self._search.is_free else max(limit, 1)
        row: Entries = {}
        # Whatever is chosen, the least of each node is held: the rest shares what it leaves.
        held = self._liveness.held_at(moment)
        least = sum(float(np.min(sizes)) for sizes in held.values())
        for node, sizes in held.items():
            for option in np.flatnonzero(sizes > np.min(sizes)):
                more = float(sizes[option] - np.min(sizes))
                column = int(self._first[node] + option)
                if more > limit - least and not self._search.is_free:
                    self._search.forbid_option(column)
                else:
                    row[column] = more / unit
        for name, at in moment:
            for reads in self._liveness.functions[name].reads:
                places = [place for place, _, _ in reads.at]
                if reads.slots(places) is not None:
                    self._bound_kept(reads, at, row)
                    bounded.values.append((reads, at))
                elif min(places) <= at <= max(places):
                    self._bound_copies(reads, at, row, limit - least)
                    bounded.values.append((reads, at))
        if moment:
            row[self._aside_column()] = 1.0
        bounded.row = self._search.limit(row, limit / unit, least=least / unit)

    def _bound_copies(self, reads: Reads, at: int, row: Entries, room: float) -> None:
        ports = [(place, port) for place, _, port in reads.at]
        now = list(dict.fromkeys(port for place, port in ports if place == at))
        before = list(dict.fromkeys(port for place, port in ports if place < at))
        after = list(dict.fromkeys(port for place, port in ports if place > at))
        for placement in dict.fromkeys(p for _, port in ports for p in port.placements):
            if not (size := self._size(reads, placement)):
                continue
            early, late = (self._any(some, placement) for some in (before, after))
            here = [columns for port in now if (columns := self._at(port, placement))]
            if not here and not (early and late):
                continue
            fits = size <= room or self._search.is_free
            copy = self._search.new_column(upper=inf if fits else 0.0)
            if fits:
                row[copy] = size / self._unit
            lies = self._at(reads.source, placement)
            for columns in here:
                self._imply(copy, 1.0, [columns], lies)
            if early and late:
                self._imply(copy, 1.0, [early, late], lies)

    def _bound_kept(self, reads: Reads, at: int, row: Entries) -> None:
        """Hold a copy that several functions of a stage read in all its places, at any moment."""
        ports = [(place, port) for place, _, port in reads.at]
        kinds = list(dict.fromkeys(reads.kinds[place] for place, _ in ports))
        own = reads.kinds.get(at)
        for placement in dict.fromkeys(p for _, port in ports for p in port.placements):
            if not (size := self._size(reads, placement)):
                continue
            copy = self._search.new_column()
            row[copy] = 1.0
            lies = self._at(reads.source, placement)
            wants = {
                kind: self._any([p for place, p in ports if reads.kinds[place] == kind], placement)
                for kind in kinds
            }
            for i, first in enumerate(kinds):
                for last in kinds[i + 1 :]:
                    slots = reads.slots(p for p, k in reads.kinds.items() if k in (first, last))
                    if wants[first] and wants[last] and slots:
                        least = slots * size / self._unit
                        self._imply(copy, least, [wants[first], wants[last]], lies)
            here = [(place, port) for place, port in ports if reads.kinds[place] == own]
            now = self._any([port for place, port in here if place == at], placement)
            before = self._any([port for place, port in here if place < at], placement)
            after = self._any([port for place, port in here if place > at], placement)
            if now:
                self._imply(copy, size / self._unit, [now], lies)
            if before and after:
                self._imply(copy, size / self._unit, [before, after], lies)

    def _size(self, reads: Reads, placement: Placement) -> int:
        """Return the bytes of a copy; zero for one that is too small for a column."""
        size = self._trees.num_bytes(reads.shape, reads.dtype, placement)
        return size if size > FAINT * self._unit else 0

    def _any(self, ports: Sequence[Port], placement: Placement) -> list[int]:
        """Return columns whose sum is 1 at least where one of some readers wants a placement."""
        several = [columns for port in ports if (columns := self._at(port, placement))]
        if len(several) < 2:
            return several[0] if several else []
        wants = self._search.new_column(upper=1.0)
        for columns in several:
            self._imply(wants, 1.0, [columns], [])
        return [wants]

    def _at(self, port: Port, placement: Placement) -> list[int]:
        start = int(self._first[port.node])
        return [start + i for i, p in enumerate(port.placements) if p == placement]

    def _imply(
        self, column: int, least: float, all_of: Sequence[Sequence[int]], none_of: Iterable[int]
    ) -> None:
        """Add that a column is ``least`` where each group has a 1, and the last one has none."""
        row: Entries = {column: -1.0}
        for columns in all_of:
            for each in columns:
                row[each] = row.get(each, 0.0) + least
        for each in none_of:
            row[each] = row.get(each, 0.0) - least
        self._search.limit(row, least * (len(all_of) - 1))

    def _aside_column(self) -> int:
        if self._aside is None:
            self._aside = self._search.new_column()
        return self._aside

    def correct(self, choice: Sequence[int], moment: Moment) -> None:
        """Add what a choice needs at a moment that is bounded, where the rows say less.

        Where they say it all, the difference is the solver's tolerance, and the options that
        matter at that moment are cut off together.
        """
        added = self._correct_aside(choice) if moment else False
        bounded = self._moments[moment]
        for index, (reads, at) in enumerate(bounded.values):
            missing = self._held(reads, at, choice) - self._said(reads, at, choice)
            if missing > 0:
                if index not in bounded.more:
                    bounded.more[index] = self._search.new_column()
                    self._search.extend(bounded.row, bounded.more[index], 1.0)
                added |= self._where_as_in(choice, reads, bounded.more[index], missing)
        if not added:
            self._search.forbid(choice, self._matter(choice, moment))

    def _held(self, reads: Reads, at: int, choice: Sequence[int]) -> int:
        copies = copies_of(reads, choice, self._trees)
        return sum(size for start, end, size in copies if start <= at <= end)

    def _said(self, reads: Reads, at: int, choice: Sequence[int]) -> int:
        source = reads.source.placements[choice[reads.source.node]]
        places: dict[Placement, list[int]] = {}
        for place, _, port in reads.at:
            places.setdefault(port.placements[choice[port.node]], []).append(place)
        places.pop(source, None)
        said = 0
        for placement, wanted in places.items():
            slots = reads.slots(wanted)
            if slots is not None or min(wanted) <= at <= max(wanted):
                said += self._size(reads, placement) * (1 if slots is None else slots)
        return said

    def _where_as_in(self, choice: Sequence[int], reads: Reads, column: int, missing: int) -> bool:
        """Add that a value needs more where it lies, and is wanted, as in a choice."""
        ports = list(dict.fromkeys([reads.source, *(port for _, _, port in reads.at)]))
        wanted = tuple(port.placements[choice[port.node]] for port in ports)
        key = column, id(reads), wanted
        if key in self._known:
            return False
        self._known.add(key)
        groups = [self._at(port, p) for port, p in zip(ports, wanted, strict=True)]
        self._imply(column, missing / self._unit, groups, [])
        return True

    def _correct_aside(self, choice: Sequence[int]) -> bool:
        """Add what libraries allocate: the call that needs most, and the boxing."""
        added, column = False, self._aside_column()
        computed, reads = self._liveness.library(choice), self._liveness.beside(choice, self._trees)
        if computed is not None and computed not in self._known:
            self._known.add(computed)
            row: Entries = {column: -1.0}
            for span in self._liveness.computed(computed):
                for option, size in enumerate(span.num_bytes):
                    at = int(self._first[span.node]) + option
                    row[at] = row.get(at, 0.0) + size / self._unit
            self._search.limit(row, 0.0)
            added = True
        if reads is not None:
            added |= self._where_as_in(choice, reads[0], column, reads[1])
        return added

    def _matter(self, choice: Sequence[int], moment: Moment) -> set[int]:
        """Return the nodes that say what is held at a moment."""
        nodes = set(self._liveness.held_at(moment))
        values = [reads for reads, _ in self._moments[moment].values]
        if moment:
            computed = self._liveness.library(choice)
            nodes |= {s.node for s in self._liveness.computed(computed)} if computed else set()
            reads = self._liveness.beside(choice, self._trees)
            values += [reads[0]] if reads is not None else []
        for each in values:
            nodes |= {each.source.node, *(port.node for _, _, port in each.at)}
        return nodes
