"""Write a solved problem into the module: placements in all types, and the boxings between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from irc.dialects.builder import functions
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.placement import Placement
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.sharding.graph import Graph
from irc.sharding.problem import Choice, Port
from irc.sharding.trees import Trees


def write_placements(module: ModuleOp, graph: Graph, choice: Choice, trees: Trees) -> None:
    """Place every value of every function and insert the boxings, each as late as its first reader.

    Args:
        module: what the graph was made from; changed.
        graph: the problem.
        choice: the option of each node.
        trees: the boxings of a value for all its readers.
    """
    for func in functions(module).values():
        block = func.body.block
        ops = list(block.ops)
        values = {value: _at(graph.sources[value], choice) for value in block.args}
        values |= {v: _at(graph.sources[v], choice) for op in ops for v in op.results}
        wanted = {
            (op, i): _at(graph.reads[op, i], choice) for op in ops for i in range(len(op.operands))
        }
        _Boxings(values, wanted, trees).insert(ops)
        _retype(values)
        func.update_function_type()


def _at(port: Port, choice: Choice) -> Placement:
    return port.placements[choice[port.node]]


@dataclass
class _Boxings:
    """The boxings of one function."""

    values: Mapping[SSAValue, Placement]
    wanted: Mapping[tuple[Operation, int], Placement]
    trees: Trees

    def __post_init__(self) -> None:
        self._made: dict[tuple[SSAValue, Placement], SSAValue] = {}
        self._parents: dict[SSAValue, Mapping[Placement, Placement]] = {}
        targets: dict[SSAValue, list[Placement]] = {}
        for (op, i), placement in self.wanted.items():
            targets.setdefault(op.operands[i], []).append(placement)
        for value, asked in targets.items():
            if isinstance(value.type, TensorType):
                self._parents[value] = self._tree(value, asked)

    def _tree(self, value: SSAValue, asked: Iterable[Placement]) -> Mapping[Placement, Placement]:
        kind, source = tensor(value), self.values[value]
        tree = self.trees.tree(kind.static_shape(), kind.dtype, source, asked)
        if tree is None:
            raise InternalError(f"{value.owner} is {source} and wanted as {[*map(str, asked)]}")
        return {branch.target: branch.source for branch in tree.branches}

    def insert(self, ops: Iterable[Operation]) -> None:
        """Give every operand that wants another placement its boxing."""
        for op in ops:
            for i, value in enumerate(op.operands):
                if isinstance(value.type, TensorType):
                    op.operands[i] = self._under(value, self.wanted[op, i], op)

    def _under(self, value: SSAValue, placement: Placement, reader: Operation) -> SSAValue:
        if placement == self.values[value]:
            return value
        key = (value, placement)
        if key not in self._made:
            parent = self._parents[value][placement]
            self._made[key] = self._box(self._under(value, parent, reader), placement, value, reader)
        return self._made[key]

    def _box(
        self, before: SSAValue, placement: Placement, value: SSAValue, reader: Operation
    ) -> SSAValue:
        number = sum(1 for made, _ in self._made if made is value)
        owner = value.owner
        if isinstance(owner, FlowOp | CallOp):
            name, loc = f"{id_of(owner)}.{value.index}" if len(owner.results) > 1 else id_of(owner), loc_of(owner)
        else:
            assert isinstance(value, BlockArgument)
            name, loc = f"arg{value.index}", loc_of(reader)
        kind = tensor(value).with_placement(placement)
        op = BoxingOp.make([before], [kind], loc=loc, id=f"{name}.box{number}")
        Rewriter.insert_op(op, InsertPoint.before(reader))
        return op.outputs[0]


def _retype(values: Mapping[SSAValue, Placement]) -> None:
    for value, placement in values.items():
        if isinstance(value.type, TensorType):
            Rewriter.replace_value_with_new_type(value, value.type.with_placement(placement))


