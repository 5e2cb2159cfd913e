"""Write a solved problem into the module: placements in all types, and the boxings between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from irc.dialects.builder import functions
from irc.dialects.flow import id_of, loc_of, tensor
from irc.dialects.placement import Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import PlacementAttr, TensorType
from irc.errors import InternalError
from irc.search.graph import Graph
from irc.search.problem import Choice, Port
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

Shared: TypeAlias = tuple[SSAValue, int]
"""A value and the group of its readers that share boxings."""


def write_placements(
    module: ModuleOp, graph: Graph, choice: Choice, trees: Trees, boxing: Boxing
) -> None:
    """Place every value of every function and insert the boxings, each as late as its first reader.

    A boxing of several steps has them in ``via``, the placements between, so that later passes need
    no prices to do what was priced.

    Args:
        module: what the graph was made from; changed.
        graph: the problem.
        choice: the option of each node.
        trees: the boxings of a value for all its readers.
        boxing: the steps of one boxing.
    """
    for func in functions(module).values():
        block = func.body.block
        ops = list(block.ops)
        defined: list[SSAValue] = [*block.args, *(v for op in ops for v in op.results)]
        values = {value: _at(graph.sources[value], choice) for value in defined}
        wanted = {
            (op, i): _at(graph.reads[op, i], choice) for op in ops for i in range(len(op.operands))
        }
        apart = {
            (use.operation, use.index): number
            for value in defined
            for number, group in enumerate(graph.groups.get(value, ()))
            for use in group
        }
        held = {
            (value, number): _at(graph.source(value, group[0]), choice)
            for value in defined
            for number, group in enumerate(graph.groups.get(value, ()))
            if graph.facts.is_of_sum(value, group[0])
        }
        boxings = _Boxings(values, wanted, apart, held, trees, boxing)
        boxings.insert(ops)
        boxings.retype()
        func.update_function_type()


def _at(port: Port, choice: Choice) -> Placement:
    return port.placements[choice[port.node]]


@dataclass
class _Boxings:
    """The boxings of one function.

    Attributes:
        values: how each value is made.
        wanted: how each reader wants it.
        apart: the group of each reader: those of one group share boxings.
        held: of readers that read what holds a value (a sum's accumulator), how that lies.
    """

    values: Mapping[SSAValue, Placement]
    wanted: Mapping[tuple[Operation, int], Placement]
    apart: Mapping[tuple[Operation, int], int]
    held: Mapping[Shared, Placement]
    trees: Trees
    boxing: Boxing

    def __post_init__(self) -> None:
        self._boxed: dict[tuple[Shared, Placement], SSAValue] = {}
        self._parents: dict[Shared, Mapping[Placement, Placement]] = {}
        self._numbers: dict[SSAValue, int] = {}
        targets: dict[Shared, list[Placement]] = {}
        for use, placement in self.wanted.items():
            targets.setdefault(self._shared(*use), []).append(placement)
        for shared, asked in targets.items():
            if isinstance(shared[0].type, TensorType):
                self._parents[shared] = self._tree(shared, asked)

    def _shared(self, op: Operation, index: int) -> Shared:
        return op.operands[index], self.apart.get((op, index), 0)

    def _source(self, shared: Shared) -> Placement:
        return self.held.get(shared, self.values[shared[0]])

    def _tree(self, shared: Shared, asked: Iterable[Placement]) -> Mapping[Placement, Placement]:
        value, source = shared[0], self._source(shared)
        kind = tensor(value)
        tree = self.trees.tree(kind.static_shape(), kind.dtype, source, asked)
        if tree is None:
            raise InternalError(f"{value.owner} is {source} and wanted as {[*map(str, asked)]}")
        return {branch.target: branch.source for branch in tree.branches}

    def insert(self, ops: Iterable[Operation]) -> None:
        """Give every operand that wants another placement its boxing."""
        for op in ops:
            for i, value in enumerate(op.operands):
                if isinstance(value.type, TensorType):
                    shared = self._shared(op, i)
                    op.operands[i] = self._under(shared, self.wanted[op, i], op)

    def _under(self, shared: Shared, placement: Placement, reader: Operation) -> SSAValue:
        if placement == self._source(shared):
            return self._root(shared, reader)
        key = (shared, placement)
        if key not in self._boxed:
            parent = self._parents[shared][placement]
            before = self._under(shared, parent, reader)
            self._boxed[key] = self._box(shared[0], before, (parent, placement), reader)
        return self._boxed[key]

    def _root(self, shared: Shared, reader: Operation) -> SSAValue:
        """Return what a group's boxings begin with: the value, or as it is returned and held."""
        value = shared[0]
        if shared not in self.held:
            return value
        held = self.held[shared]
        own = next(
            self._shared(use.operation, use.index)
            for use in value.uses
            if isinstance(use.operation, ReturnOp) and self.wanted[use.operation, use.index] == held
        )
        return self._under(own, held, reader)

    def _box(
        self,
        value: SSAValue,
        before: SSAValue,
        way: tuple[Placement, Placement],
        reader: Operation,
    ) -> SSAValue:
        parent, placement = way
        number = self._numbers[value] = self._numbers.get(value, -1) + 1
        name, loc = _origin(value, reader)
        kind = tensor(value)
        op = BoxingOp.make(
            [before], [kind.with_placement(placement)], loc=loc, id=f"{name}.box{number}"
        )
        path = self.boxing.path(kind.static_shape(), kind.dtype, parent, placement)
        if len(path) > 1:
            op.attributes["via"] = ArrayAttr([PlacementAttr(step.result) for step in path[:-1]])
        Rewriter.insert_op(op, InsertPoint.before(reader))
        return op.outputs[0]

    def retype(self) -> None:
        """Write the placements into the types of what the function had before."""
        for value, placement in self.values.items():
            if isinstance(value.type, TensorType):
                Rewriter.replace_value_with_new_type(value, value.type.with_placement(placement))


def _origin(value: SSAValue, reader: Operation) -> tuple[str, str]:
    """Return the id and the source line that a boxing of a value has."""
    if isinstance(value, BlockArgument):
        return f"arg{value.index}", loc_of(reader)
    assert isinstance(value, OpResult)
    suffix = f".{value.index}" if len(value.op.results) > 1 else ""
    return id_of(value.op) + suffix, loc_of(value.op)
