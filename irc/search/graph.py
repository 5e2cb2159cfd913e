"""From a module to the planning problem: which values lie how, function by function.

Blocks are solved once: the nodes of a function count as often as it is called, and its arguments
and results are ports that all calls share. An argument with one reader takes the placement of that
reader, and a result with no other reader that of its producer: boxing on the other side of the call
is never dearer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue, Use

from irc.constraints.layouts import Layout
from irc.constraints.resolve import Constraints
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, results
from irc.dialects.flow import FlowOp, id_of, phase_of
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.search.facts import LOADED, Facts
from irc.search.layouts import LayoutRules
from irc.search.moments import liveness_of
from irc.search.options import Options
from irc.search.partials import AxisPartial, Partials, is_possible
from irc.search.problem import Net, Node, Port, Problem
from irc.sharding.boxing import LocalShape, even_shape
from irc.sharding.padding import is_front_of, padded_arguments
from irc.sharding.signatures import NdSignature
from irc.training.stages import BOUNDARY

SHOWN = 4

Inputs: TypeAlias = Literal["replicated", "any"]


@dataclass(frozen=True)
class Wishes:
    """What the user fixes.

    Attributes:
        inputs: how the entry gets its inputs: whole on each rank, or as the plan likes.
        constraints: pins and forbids.
        memory_bytes: how many bytes a device may hold at any moment.
        stored_bytes: how many of them may be parameters, states and buffers.
        stored_price: seconds of a step that one of these bytes counts as, where there is no bound.
        regather: what a block gives, and saves for backward, lies as it was made; what a reader
            of the block gathered of it is gathered again.
        layout: what the axes are for.
    """

    inputs: Inputs = "replicated"
    constraints: Constraints = field(default_factory=Constraints)
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    regather: bool = False
    layout: Layout = field(default_factory=Layout)
    stored_price: float = 0.0


class Graph:
    """The problem of a module, and what its ports stand for.

    Attributes:
        problem: nodes and nets.
        ops: the node of each op and the signature of each of its options.
        sources: the port that makes each value.
        reads: the port that each operand is read by, by (op, operand index).
    """

    def __init__(
        self,
        module: ModuleOp,
        cost: ClusterCost,
        wishes: Wishes,
        facts: Facts | None = None,
        options: Options | None = None,
    ) -> None:
        self.problem = Problem(memory_bytes=wishes.memory_bytes, stored_bytes=wishes.stored_bytes)
        self.ops: dict[Operation, tuple[int, list[NdSignature]]] = {}
        self.sources: dict[SSAValue, Port] = {}
        self.reads: dict[tuple[Operation, int], Port] = {}
        self.groups: dict[SSAValue, list[tuple[Use, ...]]] = {}
        self.nets: dict[SSAValue, list[int | None]] = {}
        self._restricted: set[str] = set()
        self._placements: dict[object, tuple[Placement, ...]] = {}
        self._even: dict[LocalShape, tuple[Placement, ...]] = {}
        self._wishes, self._cost = wishes, cost
        self.mesh, self._boxing = cost.mesh, cost.boxing
        self.facts = facts or Facts(module)
        self.options = options or Options(cost, self.facts.key, self.facts.traffic)
        self.functions = self.facts.functions
        self._rules = LayoutRules(wishes.layout, self.facts, self.mesh)
        self._rows = padded_arguments(self.functions["forward"])
        self._counts = self.facts.counts
        self._partials = Partials(self.functions, self.options, self._summed())
        self._whole = Placement.replicated(self.mesh.names)
        self._fixed = Port(self.problem.add_node(Node("replicated", (0.0,))), (self._whole,))
        # Callees come before callers, whose calls read the callees' ports.
        for name, func in self.functions.items():
            self._add_function(name, func)
        self.problem.liveness = liveness_of(self)
        if wishes.stored_price:
            self._price_stored(wishes.stored_price)

    def _price_stored(self, price: float) -> None:
        """Add to each option what the bytes count as that are held all the time."""
        assert self.problem.liveness is not None
        for span in self.problem.liveness.functions["forward"].spans:
            if span.is_stored:
                node = self.problem.nodes[span.node]
                seconds = (
                    own + price * size / max(node.count, 1)
                    for own, size in zip(node.seconds, span.num_bytes, strict=True)
                )
                self.problem.nodes[span.node] = replace(node, seconds=tuple(seconds))

    def _summed(self) -> dict[SSAValue, set[AxisPartial]]:
        """The partial axes of arguments that may begin as parts of a sum: those that are zero."""
        axes: set[AxisPartial] = {(name, Partial("sum")) for name in self.mesh.names}
        named = arguments(self.functions["forward"])
        return {value: axes for role, _, value in named if role == "accumulator"}

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
        signatures = self._wishes.constraints.signatures(
            function, op, self._partials.signatures[op]
        )
        signatures = self._rules.signatures(op, signatures)
        signatures = [signatures[i] for i in self.options.undominated(op, signatures)]
        seconds = [self.options.seconds(op, signature) for signature in signatures]
        count = self.facts.often.get(op, self._counts[function])
        node = Node(f"{function}/{id_of(op)}", tuple(seconds), count)
        index = self.problem.add_node(node)
        self.ops[op] = (index, signatures)
        for i in range(len(op.operands)):
            self.reads[op, i] = Port(index, tuple(s.operands[i] for s in signatures))
        for i, value in enumerate(op.results):
            self.sources[value] = Port(index, tuple(s.results[i] for s in signatures))

    def _add_call(self, op: CallOp) -> None:
        callee = self.functions[op.callee.string_value()]
        end = callee.body.block.last_op
        assert end is not None
        for i, argument in enumerate(callee.body.block.args):
            self.reads[op, i] = self.sources[argument]
        for i, value in enumerate(op.results):
            self.sources[value] = self.reads[end, i]

    def _add_entry_arguments(self, func: FuncOp, end: ReturnOp) -> None:
        updated = {name for role, name in results(func) if role == "state"}
        known: dict[object, Port] = {}
        linked: dict[str, dict[str, SSAValue]] = {}
        for role, name, value in arguments(func):
            uses = self.facts.uses(value)
            options = self._argument_options(role, name, value)
            if name in self._wishes.constraints.same:
                linked.setdefault(self._wishes.constraints.same[name], {})[name] = value
            elif options is None:
                self.sources[value] = self._fixed
            elif (
                name not in self._restricted
                and not self._rules.samples
                and self._follows(role, name in updated, uses)
            ):
                self.sources[value] = self.reads[uses[0].operation, uses[0].index]
            else:
                self.sources[value] = self._argument(role, name, value, options, uses, known)
        roles = {name: role for role, name, _ in arguments(func)}
        for group in linked.values():
            self._link(group, roles)

    def _argument_options(
        self, role: str, name: str, value: SSAValue
    ) -> tuple[Placement, ...] | None:
        """Return how an entry argument may lie; None: whole, as it is given."""
        options = self._unpadded_options(role, name, value)
        if options is None or (rows := self._rows.get(value)) is None:
            return options
        stored = self._shape(value)[0][0]
        return tuple(p for p in options if is_front_of(rows, stored, p, self.mesh))

    def _unpadded_options(
        self, role: str, name: str, value: SSAValue
    ) -> tuple[Placement, ...] | None:
        """Return how an entry argument may lie whose ranks' parts are all values."""
        loaded = role in LOADED or (role == "input" and self._wishes.inputs == "any")
        uses = self.facts.uses(value)
        if not isinstance(value.type, TensorType):
            return None
        if self._wishes.constraints.restricts(name, loaded=loaded):
            self._restricted.add(name)
            placements = self._any_placement(value, uses)
            return self._wishes.constraints.placements(name, placements, value.type)
        if not uses or not (loaded or self._rules.samples):
            return None
        whole = () if loaded else (self._whole,)
        return self._rules.argument(role, name, value, whole or self._any_placement(value, uses))

    def _link(self, group: Mapping[str, SSAValue], roles: Mapping[str, str]) -> None:
        """Let arguments lie in one way, whatever it is: they share a node.

        Raises:
            IrcError: ``sharding-infeasible``, where no placement suits all of them.
        """
        by_name = {n: self._argument_options(roles[n], n, v) for n, v in group.items()}
        allowed = {
            name: set(options or ([self._whole] if self.facts.uses(group[name]) else []))
            for name, options in by_name.items()
        }
        wanted = [options for options in allowed.values() if options]
        every = dict.fromkeys(p for options in by_name.values() for p in options or [self._whole])
        common = tuple(p for p in every if all(p in options for options in wanted))
        if not common:
            raise IrcError(
                "sharding-infeasible",
                f"no placement suits all of {', '.join(group)}, which are to lie in the same way",
                because=[
                    f"'{name}' can be {', '.join(sorted(map(str, options))[:SHOWN])}"
                    for name, options in allowed.items()
                ],
                help="drop one of the constraints",
            )
        node = Node(f"same {next(iter(group))}", (0.0,) * len(common))
        port = Port(self.problem.add_node(node), common)
        self.sources.update(dict.fromkeys(group.values(), port))

    def _follows(self, role: str, updated: bool, uses: Sequence[Use]) -> bool:
        # What a stage receives costs what its part of it is, which no op that reads it knows.
        if len(uses) != 1 or updated or isinstance(uses[0].operation, ReturnOp) or role == BOUNDARY:
            return False
        if self._is_short and role != "input":
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
        known: dict[object, Port],
    ) -> Port:
        """Add the node of an argument; equal weights of the calls of one block decide together."""
        own = [(use.operation, use.index) for use in uses]
        # A state's new value lies as the argument itself: its port is not known yet.
        readers = [self.reads.get(use) for use in own if not isinstance(use[0], ReturnOp)]
        is_received = role == BOUNDARY
        key = (role, name if is_received else "", *self._shape(value), options, *readers)
        if key not in known:
            node = Node(f"argument {name}", (0.0,) * len(options))
            if is_received:
                seconds = (self._cost.received_seconds(value.type, p) for p in options)
                often = 1 if self.facts.runs is None else self.facts.runs.micro_batches
                node = Node(node.name, tuple(seconds), often)
            known[key] = Port(self.problem.add_node(node), options)
        return known[key]

    def _add_entry_results(self, func: FuncOp, end: ReturnOp) -> None:
        held = {name: value for _, name, value in arguments(func)}
        inputs = {value for role, _, value in arguments(func) if role == "input"}
        for i, (role, name) in enumerate(results(func)):
            buffer = held.get(name) if role in ("state", "gradient") else None
            if role in ("cache", "boundary"):
                self.reads[end, i] = self._held_result(name, end.operands[i])
            elif role == "gradient" and buffer in inputs:
                self.reads[end, i] = self._fixed  # as inputs themselves are given
            elif role == "gradient" and buffer is not None:
                port, produced = self.sources[buffer], self.sources[end.operands[i]].placements
                lying = self._rules.gradient(port.placements, produced)
                self.reads[end, i] = (
                    Port(port.node, tuple(lying)) if lying != [*port.placements] else port
                )
            else:
                self.reads[end, i] = self._fixed if buffer is None else self.sources[buffer]

    def _held_result(self, name: str, value: SSAValue) -> Port:
        """Return the port of a result that lies as the plan likes: kept, or sent to a stage."""
        assert isinstance(value.type, TensorType)
        produced = [p for p in self.sources[value].placements if not p.partial_axes()]
        options = tuple(dict.fromkeys((*self._free(value), *produced)))
        options = self._wishes.constraints.placements(name, options, value.type)
        return Port(self.problem.add_node(Node(f"result {name}", (0.0,) * len(options))), options)

    def _add_block_results(self, end: ReturnOp, function: str) -> None:
        for i, value in enumerate(end.operands):
            if not isinstance(value.type, TensorType):
                self.reads[end, i] = self._fixed
            elif self._lies_as_made(value):
                self.reads[end, i] = self.sources[value]
            else:
                produced = self.sources[value].placements if value in self.sources else ()
                options = tuple(dict.fromkeys((*self._free(value), *produced)))
                node = Node(f"{function}/result {i}", (0.0,) * len(options))
                self.reads[end, i] = Port(self.problem.add_node(node), options)

    def _lies_as_made(self, value: SSAValue) -> bool:
        """True where a block gives an op's value as it is: no other way is cheaper, or allowed."""
        produced = self.sources[value].placements if value in self.sources else ()
        if len(self.facts.uses(value)) == 1 and produced and not self._is_short:
            return True
        if not produced or any(placement.partial_axes() for placement in produced):
            return False
        return self._wishes.regather

    def _add_block_arguments(self, func: FuncOp, function: str) -> None:
        for i, value in enumerate(func.body.block.args):
            uses = self.facts.uses(value)
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
        reads = (self.reads.get((use.operation, use.index)) for use in uses)
        ports = tuple(dict.fromkeys(port for port in reads if port is not None))
        partial = self._partials.axes(value)
        # The weights of all layers have one answer.
        key = self._shape(value)[0], ports, partial
        if key not in self._placements:
            asked = [p for port in ports for p in port.placements if is_possible(p, partial)]
            self._placements[key] = tuple(dict.fromkeys((*self._free(value), *asked)))
        return self._placements[key]

    def _free(self, value: SSAValue) -> tuple[Placement, ...]:
        shape = self._shape(value)[0]
        if shape not in self._even:
            self._even[shape] = tuple(even_placements(shape, self.mesh))
        return self._even[shape]

    @property
    def _is_short(self) -> bool:
        """Memory is bounded: values may lie otherwise between functions than their readers want."""
        bounds = self._wishes.memory_bytes, self._wishes.stored_bytes
        return bounds != (None, None) or self._wishes.stored_price > 0

    def _add_net(self, value: SSAValue, count: int) -> None:
        if not isinstance(value.type, TensorType):
            return
        shape, dtype = self._shape(value)
        self.groups[value] = groups = self._reader_groups(value)
        self.nets[value] = [
            self.problem.add_net(
                Net(
                    shape,
                    dtype,
                    self.source(value, group[0]),
                    tuple(self.reads[use.operation, use.index] for use in group),
                    self.facts.times(value, group[0], count),
                )
            )
            for group in groups
        ]

    def source(self, value: SSAValue, use: Use) -> Port:
        """Return the port of what a reader of a value reads: of a sum, that of its accumulator."""
        is_of_sum = self.facts.is_of_sum(value, use)
        return self.sources[self.facts.sums[value] if is_of_sum else value]

    def _reader_groups(self, value: SSAValue) -> list[tuple[Use, ...]]:
        """Return the readers of a value, apart where they do not share a boxing.

        A step does not read what each micro-batch boxes, but the sum after all of them.
        Where memory is short, what is gathered of a weight is dropped after a call, and gathered
        again for the backward pass.
        """
        uses, often = self.facts.uses(value), self.facts.often
        if self.facts.runs is None and any(use.operation in often for use in uses):
            return [(use,) for use in uses]
        is_dropped = value in self.facts.loaded and (self._is_short or self._rules.gathers_again)
        groups: dict[object, list[Use]] = {}
        for use in uses:
            op = use.operation
            apart = (op if isinstance(op, CallOp) else phase_of(op)) if is_dropped else None
            groups.setdefault((self.facts.shares(value, use), apart), []).append(use)
        return [tuple(group) for group in groups.values()]

    def _shape(self, value: SSAValue) -> tuple[LocalShape, str]:
        return self.facts.kind(value)


def even_placements(shape: LocalShape, mesh: Mesh) -> list[Placement]:
    """Return the placements without partial axes whose shards are equal, axes in mesh order."""
    how = [
        [B, *(Split(dim) for dim in range(len(shape)))] if size > 1 else [B]
        for _, size in mesh.axes
    ]
    every = (Placement.in_mesh_order(tuple(zip(mesh.names, p, strict=True))) for p in product(*how))
    return [placement for placement in every if even_shape(shape, placement, mesh) is not None]
