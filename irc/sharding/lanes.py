"""The ops of several lanes, written in turns: a segment of one, then that segment of the next."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.comm import WaitOp


class Lanes:
    """Takes ops in the order of the program that they come of, and puts them in turns.

    A segment ends where a lane waits for a collective that it has begun, or reads what only all
    lanes together give. So while the collective of one lane is under way, the next lane computes::

        lane 0:  f0 send      wait f1 send        wait
        lane 1:       f0 send         wait f1 send     wait

    What belongs to no lane stays in its place, or behind the segment whose values it reads.

    Args:
        count: how many lanes.
    """

    def __init__(self, count: int) -> None:
        self.ops: list[Operation] = []
        self._lanes: list[list[Operation]] = [[] for _ in range(count)]
        self._behind: list[Operation] = []
        self._in_lanes: set[SSAValue] = set()
        self._in_behind: set[SSAValue] = set()

    def put(self, op: Operation) -> None:
        """Take an op of no lane."""
        if isinstance(op, ReturnOp):
            self._end_segment()
        reads = [value for each in op.walk() for value in each.operands]
        if any(value in self._in_lanes or value in self._in_behind for value in reads):
            self._behind.append(op)
            self._in_behind.update(op.results)
        else:
            self.ops.append(op)

    def put_each(self, ops: Sequence[Operation]) -> None:
        """Take an op of each lane."""
        reads = [value for op in ops for value in op.operands]
        waits = any(isinstance(op, WaitOp) for op in ops)
        if any((waits and v in self._in_lanes) or v in self._in_behind for v in reads):
            self._end_segment()
        for lane, op in zip(self._lanes, ops, strict=True):
            lane.append(op)
            self._in_lanes.update(op.results)

    def _end_segment(self) -> None:
        self.ops += [*(op for lane in self._lanes for op in lane), *self._behind]
        for lane in self._lanes:
            lane.clear()
        self._behind.clear()
        self._in_lanes.clear()
        self._in_behind.clear()
