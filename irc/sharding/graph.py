"""From a module to the planning problem: which values lie how, function by function.

Blocks are solved once: the nodes of a function count as often as it is called, and its arguments
and results are ports that all calls share. An argument with one reader takes the placement of that
reader, and a result with no other reader that of its producer: boxing on the other side of the call
is never dearer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue, Use

from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, functions, results
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.errors import InternalError
from irc.sharding.boxing import LocalShape, even_shape
from irc.sharding.constraints import Constraints
from irc.sharding.partials import Partials
from irc.sharding.problem import Net, Node, Port, Problem
from irc.sharding.prune import undominated
from irc.sharding.signatures import NdSignature

Inputs: TypeAlias = Literal["replicated", "any"]
LOADED = ("parameter", "buffer", "constant", "state")
"""Roles whose ranks may load any slice."""


@dataclass(frozen=True)
class Wishes:
    """What the user fixes.

    Attributes:
        inputs: how the entry gets its inputs: whole on each rank, or as the plan likes.
        constraints: pins and forbids.
        memory_bytes: how many bytes of parameters and buffers a device may hold.
    """

    inputs: Inputs = "replicated"
    constraints: Constraints = field(default_factory=Constraints)
    memory_bytes: int | None = None


class Graph:
    """The problem of a module, and what its ports stand for.

    Attributes:
        problem: nodes and nets.
        ops: the node of each op and the signature of each of its options.
        sources: the port that makes each value.
        reads: the port that each operand is read by, by (op, operand index).
    """

    def __init__(self, module: ModuleOp, cost: ClusterCost, wishes: Wishes) -> None:
        self.problem = Problem(memory_bytes=wishes.memory_bytes)
        self.ops: dict[Operation, tuple[int, list[NdSignature]]] = {}
        self.sources: dict[SSAValue, Port] = {}
        self.reads: dict[tuple[Operation, int], Port] = {}
        self._cost, self._wishes, self._mesh = cost, wishes, cost.mesh
        self._functions = functions(module)
        self._counts = call_counts(self._functions)
        self._partials = Partials(self._functions, self._mesh)
        self._whole = Placement.replicated(self._mesh.names)
        self._fixed = Port(self.problem.add_node(Node("replicated", (0.0,))), (self._whole,))
        # Callees before callers, whose calls read the callees' ports.
        for name in _callees_first(self._functions):
            self._add_function(name, self._functions[name])
        self.problem.merge_nets()

    def _add_function(self, name: str, func: FuncOp) -> None:
        is_entry = name == "forward"
        for op in func.body.block.ops:
            if isinstance(op, CallOp):
                self._add_call(op)
            elif isinstance(op, FlowOp):
                self._add_op(op, name)
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        if is_entry:
            self._add_entry_arguments(func, end)
            self._add_entry_results(func, end)
        else:
            self._add_block_results(end, name)
            self._add_block_arguments(func, name)
        for value in (
            *func.body.block.args,
            *(r for op in func.body.block.ops for r in op.results),
        ):
            self._add_net(value, self._counts[name])

    def _add_op(self, op: FlowOp, function: str) -> None:
        found = self._wishes.constraints.signatures(function, op, self._partials.signatures[op])
        seconds = [self._cost.op_seconds(op, signature) for signature in found]
        kept = undominated(op, found, seconds, self._cost.boxing)
        found, seconds = [found[i] for i in kept], [seconds[i] for i in kept]
        node = Node(f"{function}/{id_of(op)}", tuple(seconds), self._counts[function])
        index = self.problem.add_node(node)
        self.ops[op] = (index, found)
        for i in range(len(op.inputs)):
            self.reads[op, i] = Port(index, tuple(s.operands[i] for s in found))
        for i, value in enumerate(op.outputs):
            self.sources[value] = Port(index, tuple(s.results[i] for s in found))

    def _add_call(self, op: CallOp) -> None:
        callee = self._functions[op.callee.string_value()]
        end = callee.body.block.last_op
        assert end is not None
        for i, argument in enumerate(callee.body.block.args):
            self.reads[op, i] = self.sources[argument]
        for i, value in enumerate(op.results):
            self.sources[value] = self.reads[end, i]

    def _add_entry_arguments(self, func: FuncOp, end: ReturnOp) -> None:
        updated = {name for role, name in results(func) if role == "state"}
        twins: dict[object, Port] = {}
        for role, name, value in arguments(func):
            loaded = role in LOADED or (role == "input" and self._wishes.inputs == "any")
            uses = _uses(value)
            if not isinstance(value.type, TensorType):
                self.sources[value] = self._fixed
                continue
            if self._wishes.constraints.restricts(name, loaded=loaded):
                options = self._wishes.constraints.placements(
                    name, self._any_placement(value, uses), value.type
                )
            elif not loaded or not uses:
                self.sources[value] = self._fixed
                continue
            elif self._follows(role, name in updated, uses):
                self.sources[value] = self.reads[uses[0].operation, uses[0].index]
                continue
            else:
                options = self._any_placement(value, uses)
            self.sources[value] = self._argument(role, name, value, options, uses, twins)

    def _follows(self, role: str, updated: bool, uses: Sequence[Use]) -> bool:
        if len(uses) != 1 or updated or isinstance(uses[0].operation, ReturnOp):
            return False
        if self._wishes.memory_bytes is not None and role != "input":
            return False
        port = self.reads[uses[0].operation, uses[0].index]
        return not any(placement.partial_axes() for placement in port.placements)

    def _argument(
        self,
        role: str,
        name: str,
        value: SSAValue,
        options: tuple[Placement, ...],
        uses: Sequence[Use],
        twins: dict[object, Port],
    ) -> Port:
        """Add the node of an argument; equal weights of the calls of one block decide together."""
        shape, dtype = self._shape(value)
        held = tuple(_num_bytes(shape, dtype, p, self._mesh) for p in options)
        held = () if role == "input" else held
        readers = tuple(self.reads.get((use.operation, use.index)) for use in uses)
        key = (role, shape, dtype, options, readers)
        if None not in readers and key in twins:
            port = twins[key]
            twin = self.problem.nodes[port.node]
            self.problem.nodes[port.node] = Node(
                twin.name,
                twin.seconds,
                twin.count,
                tuple(a + b for a, b in zip(twin.num_bytes, held, strict=True)),
            )
            return port
        node = Node(f"argument {name}", (0.0,) * len(options), num_bytes=held)
        twins[key] = Port(self.problem.add_node(node), options)
        return twins[key]

    def _add_entry_results(self, func: FuncOp, end: ReturnOp) -> None:
        held = {name: value for _, name, value in arguments(func)}
        for i, (role, name) in enumerate(results(func)):
            buffer = held.get(name) if role == "state" else None
            self.reads[end, i] = self._fixed if buffer is None else self.sources[buffer]

    def _add_block_results(self, end: ReturnOp, function: str) -> None:
        for i, value in enumerate(end.operands):
            if not isinstance(value.type, TensorType):
                self.reads[end, i] = self._fixed
            elif len(_uses(value)) == 1 and value in self.sources:
                self.reads[end, i] = self.sources[value]
            else:
                made = self.sources[value].placements if value in self.sources else ()
                options = tuple(dict.fromkeys((*self._free(value), *made)))
                node = Node(f"{function}/result {i}", (0.0,) * len(options))
                self.reads[end, i] = Port(self.problem.add_node(node), options)

    def _add_block_arguments(self, func: FuncOp, function: str) -> None:
        for i, value in enumerate(func.body.block.args):
            uses = _uses(value)
            if not isinstance(value.type, TensorType) or not uses:
                self.sources[value] = self._fixed
            elif len(uses) == 1:
                self.sources[value] = self.reads[uses[0].operation, uses[0].index]
            else:
                options = self._any_placement(value, uses)
                node = Node(f"{function}/argument {i}", (0.0,) * len(options))
                self.sources[value] = Port(self.problem.add_node(node), options)

    def _any_placement(self, value: SSAValue, uses: Sequence[Use]) -> tuple[Placement, ...]:
        """Return all placements without partial axes, and those that readers ask for."""
        asked = [
            p
            for use in uses
            if (use.operation, use.index) in self.reads
            for p in self.reads[use.operation, use.index].placements
            if self._partials.possible(value, p)
        ]
        return tuple(dict.fromkeys((*self._free(value), *asked)))

    def _free(self, value: SSAValue) -> list[Placement]:
        return even_placements(self._shape(value)[0], self._mesh)

    def _add_net(self, value: SSAValue, count: int) -> None:
        if not isinstance(value.type, TensorType):
            return
        source = self.sources[value]
        sinks = [self.reads[use.operation, use.index] for use in _uses(value)]
        if all(sink == source for sink in sinks):
            return
        shape, dtype = self._shape(value)
        self.problem.add_net(Net(shape, dtype, source, tuple(sinks), count))

    def _shape(self, value: SSAValue) -> tuple[LocalShape, str]:
        assert isinstance(value.type, TensorType)
        return value.type.static_shape(), value.type.dtype


def even_placements(shape: LocalShape, mesh: Mesh) -> list[Placement]:
    """Return the placements without partial axes whose shards are equal, axes in mesh order."""
    how = [
        [B, *(Split(dim) for dim in range(len(shape)))] if size > 1 else [B]
        for _, size in mesh.axes
    ]
    every = (Placement.in_mesh_order(tuple(zip(mesh.names, p, strict=True))) for p in product(*how))
    return [placement for placement in every if even_shape(shape, placement, mesh) is not None]


def call_counts(known: Mapping[str, FuncOp]) -> dict[str, int]:
    """Return how often each function runs when the entry runs once."""
    counts = dict.fromkeys(known, 0)
    counts["forward"] = 1
    for name in reversed(_callees_first(known)):
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                counts[op.callee.string_value()] += counts[name]
    return counts


def _callees_first(known: Mapping[str, FuncOp]) -> list[str]:
    order: dict[str, None] = {}

    def visit(name: str, inside: tuple[str, ...]) -> None:
        if name in inside:
            raise InternalError(f"function @{name} calls itself")
        if name in order:
            return
        for op in known[name].body.block.ops:
            if isinstance(op, CallOp):
                visit(op.callee.string_value(), (*inside, name))
        order[name] = None

    for name in known:
        visit(name, ())
    return list(order)


def _uses(value: SSAValue) -> list[Use]:
    """Return the uses in program order: xDSL's order is that of its edits."""
    found = list(value.uses)
    if len(found) < 2:
        return found
    block = found[0].operation.parent_block()
    assert block is not None
    place = {op: i for i, op in enumerate(block.ops)}
    return sorted(found, key=lambda use: (place[use.operation], use.index))


def _num_bytes(shape: LocalShape, dtype: str, placement: Placement, mesh: Mesh) -> int:
    local = even_shape(shape, placement, mesh)
    assert local is not None
    return prod(local) * ITEM_BYTES[dtype]
