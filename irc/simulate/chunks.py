"""Into how many pieces a collective and the products beside it are cut, so that a block ends first.

The price of a degree is that of the program that it gives: a few ops around the collective, cut,
list-scheduled on compute and links, with the launches, the narrower products, the latencies and the
copies of joined pieces that it has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from xdsl.ir import Block, Operation, SSAValue

from irc.cost.model import ClusterCost, collective_kind
from irc.dialects.comm import CollectiveOp
from irc.dialects.flow import FlowOp
from irc.sharding.chunks import Group, cut_group, cuts_of
from irc.sharding.pieces import Cut, Pieces
from irc.simulate.around import AROUND, copied
from irc.simulate.block import BlockTimes

DEGREES = (2, 4, 8)
FAR = 4 * AROUND
"""A reader so many ops behind its collective does not count."""
LEAST = 0.05
"""A cut is worth it where it saves this part of its collective: nothing is known more exactly."""


class Choice(NamedTuple):
    """A cut, and what it saves.

    Attributes:
        cut: of the gathered value, or of the one that is scattered.
        saved_s: seconds by which the ops around it end sooner; None where the degree was asked for.
    """

    cut: Cut
    saved_s: float | None = None


class Chooser:
    """Chooses cuts for the groups of a module; those that look alike are cut alike.

    Args:
        cost: of its mesh.
        times: of its blocks.
        degree: that is asked for; 0 for the best, or none.
    """

    def __init__(self, cost: ClusterCost, times: BlockTimes, degree: int = 0) -> None:
        self._cost, self._times = cost, times
        self._degree = degree
        self._known: dict[Hashable, Choice | None] = {}

    def choice(self, group: Group, pieces: Pieces) -> Choice | None:
        """Return how a group is cut, None where it is left whole.

        Args:
            group: of a block.
            pieces: what is known of the block.
        """
        ranks = self._cost.mesh.size(group.start.axis)
        if self._degree:
            first = next(cuts_of(group, pieces, ranks, self._degree), None)
            return None if first is None else Choice(first)
        if not self._is_long(group.start):
            return None
        key = _key(group)
        if key not in self._known:
            self._known[key] = self._best(group, pieces, ranks)
        known = self._known[key]
        if known is None or known.cut not in cuts_of(group, pieces, ranks, known.cut.degree):
            return None
        return known

    def _best(self, group: Group, pieces: Pieces, ranks: int) -> Choice | None:
        """Return the cut by which the ops around a group end first, if that is worth it."""
        whole = self._end(group, pieces, None)
        best, end = None, whole - LEAST * self._cost.start_seconds(group.start)
        tried: dict[Cut, float] = {}
        for degree in DEGREES:
            for cut in cuts_of(group, pieces, ranks, degree):
                half, quarter = (replace(cut, degree=degree // n) for n in (2, 4))
                if tried.get(half, 0.0) > tried.get(quarter, inf):
                    continue  # fewer pieces were better
                tried[cut] = self._end(group, pieces, cut)
                if tried[cut] < end:
                    best, end = cut, tried[cut]
        return None if best is None else Choice(best, whole - end)

    def _is_long(self, start: CollectiveOp) -> bool:
        """Return whether a collective takes longer than to begin two, as its pieces have to."""
        begun = self._cost.collective_seconds(collective_kind(start), 1, start.axis)
        return self._cost.start_seconds(start) > 2 * begun

    def _end(self, group: Group, pieces: Pieces, cut: Cut | None) -> float:
        """Return when the ops around a group end with a cut of it."""
        block, known = _around(group)
        if cut is not None:
            cut_group(group.among(known), cut, pieces.among(known))
        return self._times.end(block)


def _key(group: Group) -> Hashable:
    start = group.start
    beside = start.x.owner, *(use.operation for use in group.wait.outputs[0].uses)
    return _form(start), *(_form(op) for op in beside if isinstance(op, FlowOp))


def _form(op: FlowOp) -> Hashable:
    operands = tuple(value.type for value in op.inputs)
    return op.name, tuple(op.properties.items()), operands


def _around(group: Group) -> tuple[Block, dict[SSAValue, SSAValue]]:
    """Return a copy of the ops around a group, and the values of it by those that they stand for.

    What is scattered is among them: it is cut with what computes it.
    """
    source = group.start.x.owner
    first: Operation = source if isinstance(source, Operation) else group.start
    for _ in range(AROUND):
        first = first.prev_op or first
    ops = [*takewhile(lambda op: op is not group.start, _from(first)), group.start]
    return copied([*ops, *islice(_from(group.start.next_op), _last(group) + AROUND - 1)])


def _from(op: Operation | None) -> Iterator[Operation]:
    """Yield an op and those behind it, but for the last of the block."""
    while op is not None and op.next_op is not None:
        yield op
        op = op.next_op


def _last(group: Group) -> int:
    """Return how far behind the start of a group the last op is that counts.

    A reader far behind does not count; the wait is cut with its start, however far.
    """
    readers = {use.operation for use in group.wait.outputs[0].uses}
    left: set[Operation] = {group.wait, *(op for op in readers if op.next_op is not None)}
    last = 0
    for place, op in enumerate(_from(group.start.next_op), 1):
        if op in left and (place <= FAR or op is group.wait):
            left.discard(op)
            last = place
        if place == FAR and left - {group.wait}:
            last = FAR
        if not left or (place >= FAR and group.wait not in left):
            break
    return last
