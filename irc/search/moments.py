"""From a planning problem to what is held when: the timelines of `irc.search.liveness`.

Views hold nothing of their own, and neither does what one kernel makes and reads again: a pointwise
result that only a pointwise op or a reduction reads (`irc.passes.fuse` joins them). A state is
updated where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, results
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.types import TensorType
from irc.ops.work import VIEWS
from irc.search.liveness import Liveness, Reads, Span, Timeline
from irc.search.problem import Port
from irc.search.twins import phase_of
from irc.sharding.spaces import num_bytes

if TYPE_CHECKING:
    from irc.search.graph import Graph

JOINED = frozenset({"flow.pointwise", "flow.constant", "flow.iota"})
"""Ops that a kernel computes where it reads them."""

KINDS: Mapping[str, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "constant": "buffers",
    "state": "optimizer state",
    "input": "inputs",
}


def liveness_of(graph: Graph) -> Liveness:
    """Return the memory of every choice of a graph's problem."""
    return Liveness(
        {name: _Walk(graph, name, func).timeline() for name, func in graph.functions.items()}
    )


class _Walk:
    """One function on its way to a timeline."""

    def __init__(self, graph: Graph, name: str, func: FuncOp) -> None:
        self._graph, self._func = graph, func
        self._is_entry = name == "forward"
        self._ops: list[Operation] = list(func.body.block.ops)
        self._place = {op: i for i, op in enumerate(self._ops)}
        self._end: dict[SSAValue, int] = {}
        self._sizes: dict[tuple[Port, TensorType], tuple[int, ...]] = {}
        self._timeline = Timeline([_label(op) for op in self._ops])
        for op in reversed(self._ops):
            for value in op.results:
                self._end[value] = self._last_reader(value)
        for value in func.body.block.args:
            self._end[value] = self._last_reader(value)

    def timeline(self) -> Timeline:
        """Return what the function holds when."""
        made = self._timeline
        roles = self._argument_roles()
        for value in self._func.body.block.args:
            if self._is_entry:
                self._add_argument(value, roles.get(value, "input"))
            self._add_reads(value)
        updated = self._updated()
        for at, op in enumerate(self._ops):
            if isinstance(op, CallOp):
                made.calls[at] = op.callee.string_value()
            for value in op.results:
                if not _is_joined(op) and value not in updated:
                    self._add_span(self._kind(value, at), value, at, max(at, self._end[value]))
                self._add_reads(value)
        if not self._is_entry:
            self._add_given()
        return made

    def _last_reader(self, value: SSAValue) -> int:
        """Return the last op that reads a value, itself or through a view."""
        last = -1
        for use in value.uses:
            op = use.operation
            last = max(last, self._place[op])
            if _is_joined(op):
                last = max(last, *(self._end[result] for result in op.results))
        return last

    def _argument_roles(self) -> dict[SSAValue, str]:
        if not self._is_entry:
            return {}
        return {value: role for role, _, value in arguments(self._func)}

    def _updated(self) -> set[SSAValue]:
        """Return the new values of states, which take the place of the old ones."""
        end = self._ops[-1]
        if not (self._is_entry and isinstance(end, ReturnOp)):
            return set()
        pairs = zip(results(self._func), end.operands, strict=True)
        return {value for (role, _), value in pairs if role == "state"}

    def _add_argument(self, value: SSAValue, role: str) -> None:
        last = self._end[value] if role == "input" else len(self._ops) - 1
        if last >= 0:
            self._add_span(KINDS.get(role, "buffers"), value, 0, last, role != "input")

    def _kind(self, value: SSAValue, at: int) -> str:
        """Say what a value of the entry is, by who makes it and who reads it last."""
        readers = {self._phase(use.operation) for use in value.uses}
        phase = self._phase(self._ops[at])
        if phase == "forward" and readers & {"backward"}:
            return "activations"
        if phase == "backward" and readers & {"step", "return"}:
            return "gradients"
        return "transients"

    def _phase(self, op: Operation) -> str:
        if isinstance(op, ReturnOp):
            return "return"
        return phase_of(op) or "forward"

    def _add_span(
        self, what: str, value: SSAValue, start: int, end: int, is_stored: bool = False
    ) -> None:
        if isinstance(value.type, TensorType):
            port = self._graph.sources[value]
            size = self._bytes(port, value.type)
            self._timeline.spans.append(Span(what, port.node, size, start, end, is_stored))

    def _add_given(self) -> None:
        end = self._ops[-1]
        for i, value in enumerate(end.operands):
            owner = value.owner
            if not isinstance(owner, Operation) or _is_joined(owner):
                continue
            if isinstance(value.type, TensorType):
                port = self._graph.reads[end, i]
                size = self._bytes(port, value.type)
                self._timeline.given.append(Span("given", port.node, size, 0, 0))

    def _add_reads(self, value: SSAValue) -> None:
        if not isinstance(value.type, TensorType):
            return
        graph = self._graph
        groups = zip(graph.groups.get(value, ()), graph.nets.get(value, ()), strict=True)
        for group, net in groups:
            if net is None:
                continue
            sinks = graph.problem.nets[net].sinks
            source = graph.sources[value]
            at = [
                (self._place[use.operation], sinks.index(port), port)
                for use in group
                if (port := graph.reads[use.operation, use.index]) is not source
            ]
            shape, dtype = value.type.static_shape(), value.type.dtype
            self._timeline.reads.append(Reads(net, shape, dtype, source, tuple(at)))

    def _bytes(self, port: Port, kind: TensorType) -> tuple[int, ...]:
        key = (port, kind)
        if key not in self._sizes:
            shape, dtype, mesh = kind.static_shape(), kind.dtype, self._graph.mesh
            self._sizes[key] = tuple(num_bytes(shape, dtype, p, mesh) for p in port.placements)
        return self._sizes[key]


def _is_joined(op: Operation) -> bool:
    """True for what holds nothing: a view, or a part of a later kernel."""
    if op.name in VIEWS:
        return True
    if op.name not in JOINED:
        return False
    uses = [use.operation for result in op.results for use in result.uses]
    small = op.name == "flow.constant" and len(op.results) == 1
    return (
        bool(uses)
        and (len(uses) == 1 or small)
        and all(use.name in ("flow.pointwise", "flow.reduce") for use in uses)
    )


def _label(op: Operation) -> str:
    if isinstance(op, ReturnOp):
        return "return"
    return id_of(op) if isinstance(op, FlowOp | CallOp) else op.name
