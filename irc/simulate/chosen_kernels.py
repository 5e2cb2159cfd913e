"""Seconds of ops as the kernels compute them that a choice of placements leaves.

A search prices each op by itself. Ops of one kernel compute while they read and write: the longer
of both sums counts, and not the sum of the longer ones. And where the choice boxes a value between
two ops of a kernel (`irc.search.candidates`), there are two kernels, of which each reads again what
the other had, and launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation, SSAValue, Use

from irc.dialects.flow import FlowOp, PointwiseOp, ShapeOp
from irc.kernels.fusion.groups import anchor, is_literal
from irc.kernels.fusion.profit import tensor_bytes
from irc.kernels.holds import SHAPE_OPS
from irc.ops.work import Traffic, looks_up
from irc.search.candidates import part_read
from irc.search.graph import Graph
from irc.search.problem import Choice


class Kernels:
    """Seconds of the ops of a program; the sum over those of a kernel is what it takes.

    Args:
        graph: the problem.
        choice: the option of each node.
    """

    def __init__(self, graph: Graph, choice: Choice) -> None:
        self._graph, self._choice = graph, choice
        self._seconds: dict[Operation, float] = {}
        group: list[FlowOp] = []
        for op, traffic in graph.facts.traffic.items():
            if traffic.launches:
                self._price(group)
                group = []
            if op in graph.ops and _is_looked_up(op):
                self._seconds[op] = 0.0
            elif op in graph.ops and traffic.reads:
                group.append(op)
        self._price(group)

    def __call__(self, op: FlowOp) -> float:
        """Return what an op adds to its kernel."""
        if op in self._seconds:
            return self._seconds[op]
        index, signatures = self._graph.ops[op]
        return self._graph.options.seconds(op, signatures[self._choice[index]])

    def _price(self, group: Sequence[FlowOp]) -> None:
        if len(group) < 2:
            return
        for kernel in self._parted(group):
            self._price_kernel(kernel, is_whole=len(kernel) == len(group))

    def _parted(self, group: Sequence[FlowOp]) -> list[list[FlowOp]]:
        """Return the ops of a kernel by how many boxings of their values come before them."""
        depth: dict[object, int] = {}
        for op in group:
            own = 0
            for index, value in enumerate(op.inputs):
                maker = anchor(value).owner
                if maker in depth:
                    own = max(own, depth[maker] + self._is_boxed(op, index, value))
            depth[op] = own
        return [[op for op in group if depth[op] == number] for number in sorted({*depth.values()})]

    def _is_boxed(self, op: Operation, index: int, value: SSAValue) -> bool:
        """Return whether a value lies otherwise where it is read than where it is made."""
        graph = self._graph
        while True:
            source, read = graph.sources[value], graph.reads[op, index]
            placement = source.placements[self._choice[source.node]]
            if placement != read.placements[self._choice[read.node]]:
                return True
            op, index = value.owner, 0  # type: ignore[assignment]  # an op's result, if read in
            if not isinstance(op, ShapeOp):
                return False
            value = op.x

    def _price_kernel(self, kernel: Sequence[FlowOp], *, is_whole: bool) -> None:
        cost = self._graph.options.cost
        flops_s = bytes_s = 0.0
        for number, (op, traffic) in enumerate(self._traffic(kernel, is_whole=is_whole)):
            index, signatures = self._graph.ops[op]
            parts = cost.parts(op, signatures[self._choice[index]], traffic)
            if parts is None:
                continue
            before = max(flops_s, bytes_s)
            flops_s, bytes_s = flops_s + parts[0], bytes_s + parts[1]
            launch = 0.0 if number else cost.cluster.device.launch_s
            self._seconds[op] = max(flops_s, bytes_s) - before + launch

    def _traffic(
        self, kernel: Sequence[FlowOp], *, is_whole: bool
    ) -> Iterator[tuple[FlowOp, Traffic]]:
        known = self._graph.facts.traffic
        if is_whole:
            yield from ((op, known[op]) for op in kernel)
            return
        inside: set[object] = set(kernel)
        read: set[SSAValue] = set()
        for op in kernel:
            reads: list[float] = []
            for value in op.inputs:
                root = anchor(value)
                is_free = root in read or root.owner in inside or is_literal(root)
                reads.append(0.0 if is_free else part_read(value, root))
                read.add(root)
            writes = tuple(
                float(bool(known[op].writes[place]) or _is_kept(value, inside))
                for place, value in enumerate(op.outputs)
            )
            yield op, Traffic(tuple(reads), writes)


def _is_looked_up(op: FlowOp) -> bool:
    """Return whether elements of an op's result are looked up, so that only those are computed."""
    readers = [use for value in op.outputs for use in _readers(value)]
    return isinstance(op, PointwiseOp) and bool(readers) and all(map(_looks_up, readers))


def _looks_up(use: Use) -> bool:
    """Return whether of the value that is read so only elements are read."""
    reader = use.operation
    return isinstance(reader, FlowOp) and looks_up(reader) and use.index == 0


def _is_kept(value: SSAValue, inside: set[object]) -> bool:
    """Return whether a kernel writes a value for one that it was one with but for a boxing.

    What is computed by elements of one tensor is computed again, which reads no more.
    """
    if len({*_large_roots(value, tensor_bytes(value) / 2, inside)}) == 1:
        return False
    return any(use.operation not in inside for use in _readers(value))


def _large_roots(value: SSAValue, least: float, inside: set[object]) -> Iterator[SSAValue]:
    """Yield what a kernel reads for a value, of tensors of so many bytes; itself where it reduces.

    Sums, products and lookups of a kernel are not computed twice.
    """
    for operand in value.owner.operands if isinstance(value.owner, PointwiseOp) else ():
        root = anchor(operand)
        if root.owner not in inside:
            if tensor_bytes(root) >= least:
                yield root
        elif isinstance(root.owner, PointwiseOp):
            yield from _large_roots(root, least, inside)
        else:
            yield from (root, operand)


def _readers(value: SSAValue) -> Iterator[Use]:
    for use in value.uses:
        op = use.operation
        if isinstance(op, FlowOp) and op.name in SHAPE_OPS:
            yield from _readers(op.outputs[0])
        else:
            yield use
