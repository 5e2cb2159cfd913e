"""From a planning problem to what is held when: the timelines of `irc.search.liveness`.

Views hold nothing of their own, and neither does what one kernel makes and reads again: a pointwise
result that only a pointwise op or a reduction reads (`irc.passes.fuse` joins them). A state is
updated where it lies. An output is there from the start. What a library computes it allocates
itself, before it is copied to its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import arguments, results
from irc.dialects.flow import (
    ExternOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ShapeOp,
    id_of,
    phase_of,
    tensor,
)
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.placement import Placement
from irc.dialects.types import TensorType
from irc.kernels.attention import is_attention
from irc.kernels.attention_backward import is_attention_backward
from irc.kernels.holds import has_kernel
from irc.ops.attention_ops import ATTENTION, BACKWARD
from irc.search.liveness import Liveness, Reads, Span, Timeline
from irc.search.problem import Port
from irc.sharding.spaces import num_bytes
from irc.training.call_parts import is_cheap
from irc.training.functions import last_kind
from irc.training.stage_runs import MICRO_BATCH
from irc.training.stages import BOUNDARY

if TYPE_CHECKING:
    from irc.search.graph import Graph
    from irc.sharding.boxing import LocalShape

JOINED = (PointwiseOp, ConstantOp, IotaOp)
"""Ops that a kernel computes where it reads them."""

SCORES_BYTES = 5 * 4 << 18
"""What masked attention holds of scores at a time (`irc.runtime.attention`): five blocks."""

KINDS: Mapping[str, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "constant": "buffers",
    "state": "optimizer state",
    "cache": "key-value cache",
    "accumulator": "gradients",
    "boundary": "boundaries",
    "input": "inputs",
}


def liveness_of(graph: Graph) -> Liveness:
    """Return the memory of every choice of a graph's problem."""
    updated = _updated(graph.functions)
    walks = {
        name: _Walk(graph, name, func, updated[name]) for name, func in graph.functions.items()
    }
    released = _released(list(walks.values()))
    return Liveness({name: walk.timeline(released.get(name, ())) for name, walk in walks.items()})


def _released(walks: Sequence[_Walk]) -> dict[str, set[int]]:
    """Return, by function, the arguments that nobody reads after any of its calls."""
    released: dict[str, set[int]] = {}
    for walk in walks:
        for callee, operands in walk.released():
            released[callee] = released.get(callee, operands) & operands
    return released


def _updated(known: Mapping[str, FuncOp]) -> dict[str, set[SSAValue]]:
    """Return the new values of states, by function: they take the place of the old ones.

    In a function that is called, those that are a state's new value in every call.
    """
    func = known["forward"]
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    pairs = zip(results(func), end.operands, strict=True)
    updated: dict[str, set[SSAValue]] = {name: set() for name in known}
    updated["forward"] = {value for (role, _), value in pairs if role == "state"}
    kept: dict[str, set[int]] = {}
    for op in func.body.block.ops:
        if isinstance(op, CallOp):
            here = {i for i, value in enumerate(op.results) if value in updated["forward"]}
            callee = op.callee.string_value()
            kept[callee] = kept.get(callee, here) & here
    for name, indices in kept.items():
        last = known[name].body.block.last_op
        assert isinstance(last, ReturnOp)
        updated[name] = {last.operands[i] for i in indices}
    return updated


class _Walk:
    """One function on its way to a timeline."""

    def __init__(self, graph: Graph, name: str, func: FuncOp, updated: set[SSAValue]) -> None:
        self._graph, self._func, self._updated = graph, func, updated
        self._is_entry = name == "forward"
        self._ops: list[Operation] = list(func.body.block.ops)
        self._place = {op: i for i, op in enumerate(self._ops)}
        self._end: dict[SSAValue, int] = {}
        self._sizes: dict[tuple[Port, LocalShape, str], tuple[int, ...]] = {}
        self._sinks: dict[int, dict[Port, int]] = {}
        self._timeline = Timeline([_label(op) for op in self._ops])
        self._kinds = graph.facts.kinds if self._is_entry else dict[Operation, str]()
        self._crossing = self._boundaries()
        self._known: dict[SSAValue, int | None] = {}
        self._outputs = self._allocated_first()
        for op in reversed(self._ops):
            for value in op.results:
                self._end[value] = self._last_reader(value)
        for value in func.body.block.args:
            self._end[value] = self._last_reader(value)

    def released(self) -> Iterator[tuple[str, set[int]]]:
        """Yield, for each call, the operands whose last reader it is."""
        for at, op in enumerate(self._ops):
            if isinstance(op, CallOp):
                shown = [_shown(value) for value in op.operands]
                last = {
                    i
                    for i, value in enumerate(shown)
                    if isinstance(value.owner, Operation)
                    and self._end[value] == at
                    and not self._is_joined(value.owner)
                    and value not in self._outputs | self._updated
                    and self._slots(value) is None
                    and shown.count(value) == 1
                }
                yield op.callee.string_value(), last

    def timeline(self, released: Iterable[int]) -> Timeline:
        """Return what the function holds when.

        Args:
            released: the arguments whose memory is free after their last reader in here.
        """
        timeline = self._timeline
        for i in released:
            self._add_release(self._func.body.block.args[i])
        roles = self._argument_roles()
        for value in self._func.body.block.args:
            if self._is_entry:
                self._add_argument(value, roles.get(value, "input"))
            self._add_reads(value)
        for at, op in enumerate(self._ops):
            if isinstance(op, CallOp):
                timeline.calls[at] = op.callee.string_value()
            self._add_inner(op, at)
            for value in op.results:
                if not self._is_joined(op) and value not in self._updated:
                    self._add_made(value, at)
                if _in_library(op):
                    self._add_library(value, at)
                self._add_reads(value)
        if not self._is_entry:
            self._add_given()
        return timeline

    def _add_inner(self, op: Operation, at: int) -> None:
        """Hold what an op's local program holds beside its operands and results."""
        if not isinstance(op, FlowOp) or op not in self._graph.ops:
            return
        node, signatures = self._graph.ops[op]
        sizes = tuple(self._graph.options.inner_bytes(op, s) for s in signatures)
        if any(sizes):
            self._timeline.spans.append(Span("transients", node, sizes, at, at))

    def _allocated_first(self) -> set[SSAValue]:
        """Return the outputs of the entry: a call begins with their memory."""
        end = self._ops[-1]
        if not (self._is_entry and isinstance(end, ReturnOp)):
            return set()
        pairs = zip(results(self._func), end.operands, strict=True)
        return {_shown(value) for (role, _), value in pairs if role == "output"}

    def _last_reader(self, value: SSAValue) -> int:
        """Return the last op that reads a value, itself or through a view."""
        last = -1
        for use in value.uses:
            op = use.operation
            last = max(last, self._place[op])
            if self._is_joined(op):
                last = max(last, *(self._end[result] for result in op.results))
        return last

    def _argument_roles(self) -> dict[SSAValue, str]:
        if not self._is_entry:
            return {}
        return {value: role for role, _, value in arguments(self._func)}

    def _boundaries(self) -> dict[SSAValue, str]:
        """Return what comes from another stage or goes to one, by the names of their registers."""
        if not self._kinds:
            return {}
        end = self._ops[-1]
        names = {value: name for role, name, value in arguments(self._func) if role == BOUNDARY}
        for (role, name), value in zip(results(self._func), end.operands, strict=True):
            if role == BOUNDARY:
                names.setdefault(value, name)
        return names

    def _slots(self, value: SSAValue) -> int | None:
        """Return the places of what functions of a stage hand on; None for what stays in one."""
        if value not in self._known:
            self._known[value] = self._slots_of(value) if self._kinds else None
        return self._known[value]

    def _slots_of(self, value: SSAValue) -> int | None:
        runs, owner = self._graph.facts.runs, value.owner
        assert runs is not None
        if (name := self._crossing.get(value)) is not None:
            return runs.slots_between("", "", name)
        if not isinstance(owner, Operation) or is_cheap(owner) or value in self._updated:
            return None
        readers = {kind for kind in self._readers(value) if kind in MICRO_BATCH}
        first = self._kinds[owner]
        if not readers - {first}:
            return None
        return runs.slots_between(first, last_kind(readers))

    def _readers(self, value: SSAValue) -> Iterator[str]:
        """Yield the functions that read a value, itself or what each makes again of it."""
        for use in value.uses:
            op = use.operation
            if op in self._kinds and not is_cheap(op):
                yield self._kinds[op]
            elif op in self._kinds:
                for result in op.results:
                    yield from self._readers(result)

    def _add_argument(self, value: SSAValue, role: str) -> None:
        last = self._end[value] if role == "input" else len(self._ops) - 1
        if last >= 0:
            is_stored = role not in ("input", BOUNDARY)
            slots = self._slots(value)
            self._add_span(KINDS.get(role, "buffers"), value, 0, last, is_stored, slots or 1)

    def _is_joined(self, op: Operation) -> bool:
        """True for what holds nothing: a view, or what only a later op of its kernel reads."""
        if any(self._slots(value) is not None for value in op.results):
            return False
        traffic = self._graph.facts.traffic.get(op) if isinstance(op, FlowOp) else None
        return _is_joined(op) if traffic is None else not any(traffic.writes)

    def _add_made(self, value: SSAValue, at: int) -> None:
        """Hold a value from its op to its last reader; an output that is whole, from the start."""
        kind, last = self._kind(value, at), max(at, self._end[value])
        if (slots := self._slots(value)) is not None:
            self._add_span(kind, value, 0, len(self._ops) - 1, times=slots)
            return
        if value not in self._outputs or not isinstance(value.type, TensorType):
            self._add_span(kind, value, at, last)
            return
        end, port = len(self._ops) - 1, self._graph.sources[value]
        size, whole = self._bytes(port, value), self._whole(value)
        parts = [p.is_replicated for p in port.placements]
        own = tuple(0 if w else n for n, w in zip(size, parts, strict=True))
        spans = self._timeline.spans
        spans.append(Span(kind, port.node, own, at, last))
        spans.append(Span("outputs", port.node, (whole,) * len(size), 0, end - 1))
        # At the end its boxed copy is counted, if it is one.
        there = tuple(n if w else 0 for n, w in zip(size, parts, strict=True))
        spans.append(Span("outputs", port.node, there, end, end))

    def _whole(self, value: SSAValue) -> int:
        shape, dtype = self._graph.facts.kind(value)
        whole = Placement.replicated(self._graph.mesh.names)
        return num_bytes(shape, dtype, whole, self._graph.mesh)

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
        self,
        what: str,
        value: SSAValue,
        start: int,
        end: int,
        is_stored: bool = False,
        times: int = 1,
    ) -> None:
        if isinstance(value.type, TensorType):
            port = self._graph.sources[value]
            size = tuple(times * n for n in self._bytes(port, value))
            self._timeline.spans.append(Span(what, port.node, size, start, end, is_stored))

    def _add_library(self, value: SSAValue, at: int) -> None:
        if isinstance(value.type, TensorType):
            port = self._graph.sources[value]
            size = self._bytes(port, value)
            if value is self._ops[at].results[0] and _in_blocks(self._ops[at]):
                size = tuple(n + SCORES_BYTES for n in size)
            self._timeline.library.append(Span("library", port.node, size, at, at))

    def _add_release(self, value: SSAValue) -> None:
        """Take off an argument, which is counted outside, from its last reader on."""
        if isinstance(value.type, TensorType):
            port, last = self._graph.sources[value], len(self._ops) - 1
            size = tuple(-n for n in self._bytes(port, value))
            if self._end[value] < last:
                self._timeline.spans.append(
                    Span("activations", port.node, size, self._end[value] + 1, last)
                )

    def _add_given(self) -> None:
        end = self._ops[-1]
        for i, value in enumerate(end.operands):
            owner = value.owner
            if not isinstance(owner, Operation) or value in self._updated:
                continue
            if self._is_joined(owner):
                continue
            if isinstance(value.type, TensorType):
                port = self._graph.reads[end, i]
                size = self._bytes(port, value)
                self._timeline.returned.append(Span("given", port.node, size, 0, 0))

    def _add_reads(self, value: SSAValue) -> None:
        if not isinstance(value.type, TensorType):
            return
        graph = self._graph
        groups = zip(graph.groups.get(value, ()), graph.nets.get(value, ()), strict=True)
        for group, net in groups:
            if net is None:
                continue
            if net not in self._sinks:
                sinks = graph.problem.nets[net].sinks
                self._sinks[net] = {port: i for i, port in enumerate(sinks)}
            sinks, source = self._sinks[net], graph.source(value, group[0])
            at = [
                (self._place[use.operation], sinks[port], port)
                for use in group
                if (port := graph.reads[use.operation, use.index]) is not source
            ]
            shape, dtype = graph.facts.kind(value)
            kinds = {
                self._place[use.operation]: kind
                for use in (group if self._kinds else ())
                if (kind := graph.facts.runs_in(value, use)) is not None
            }
            last = len(self._ops) - 1
            reads = Reads(net, shape, dtype, source, tuple(at), kinds, graph.facts.runs, last)
            self._timeline.reads.append(reads)

    def _bytes(self, port: Port, value: SSAValue) -> tuple[int, ...]:
        key = (port, *self._graph.facts.kind(value))
        if key not in self._sizes:
            _, shape, dtype = key
            mesh = self._graph.mesh
            self._sizes[key] = tuple(num_bytes(shape, dtype, p, mesh) for p in port.placements)
        return self._sizes[key]


def _is_joined(op: Operation) -> bool:
    """True for what holds nothing: a view, or a part of a later kernel."""
    if isinstance(op, ShapeOp):
        return True
    if not isinstance(op, JOINED):
        return False
    uses = [use.operation for result in op.results for use in result.uses]
    small = isinstance(op, ConstantOp) and len(op.results) == 1
    return (
        bool(uses)
        and (len(uses) == 1 or small)
        and all(isinstance(use, PointwiseOp | ReduceOp) for use in uses)
    )


def _in_library(op: Operation) -> bool:
    """True for an op whose result the library allocates, and which is then copied to its place."""
    if not isinstance(op, FlowOp) or isinstance(op, ShapeOp):
        return False
    return not has_kernel(op) and not _streams(op)


def _streams(op: Operation) -> bool:
    """True for attention, and its derivative, that kernels compute."""
    return is_attention(op, "cpu") or is_attention_backward(op, "cpu")


def _in_blocks(op: Operation) -> bool:
    """True for attention that no flash kernel computes: with a mask, or heads that share keys."""
    target = op.target if isinstance(op, ExternOp) else ""
    places = {ATTENTION: (0, 1, 3), BACKWARD: (1, 2, 6)}
    if target not in places or not isinstance(op, ExternOp) or _streams(op):
        return False
    q, k, count = places[target]
    shapes = [tensor(op.operands[place]).shape for place in (q, k)]
    return len(op.inputs) > count or shapes[0][:-2] != shapes[1][:-2]


def _shown(value: SSAValue) -> SSAValue:
    """Return what a view shows."""
    while isinstance(value.owner, ShapeOp):
        value = value.owner.operands[0]
    return value


def _label(op: Operation) -> str:
    if isinstance(op, ReturnOp):
        return "return"
    return id_of(op) if isinstance(op, FlowOp | CallOp) else op.name
