"""Outlining: what can be compiled becomes functions, and the host program calls them.

A program that only the run can size has ops that the host runs: loops and branches, ops that decide
a size, values that are no tensors. All other ops are gathered, each as early as what it reads
allows, into *regions*: functions of tensors whose sizes are known when they are called.

Before: ``y = f(x); z = decide(y); w = g(z); v = h(x)``
After: ``y, v = region_0(x); z = decide(y); w = region_1(z)``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, arguments, finish_function, functions
from irc.dialects.flow import ExternOp, loc_of
from irc.dialects.size import Size, symbol
from irc.dialects.types import ShapeAttr, SizeAttr, TensorType
from irc.interpret.dynamic import WEIGHTS
from irc.runtime.onnx_ops.run import decoded, functions_of

PREFIX = "region_"


@dataclass(frozen=True)
class Region:
    """A function that can be compiled.

    Attributes:
        func: its inputs are named ``v0``, ``v1``, ...; weights have their own names.
        symbols: names of sizes that it depends on; each stands in a dim of an input.
    """

    func: FuncOp
    symbols: frozenset[str]


def outline(module: ModuleOp, roots: Mapping[str, frozenset[str]]) -> list[Region]:
    """Move what can be compiled into functions of the module, in place, and return them.

    Args:
        module: level flow; all functions.
        roots: for each size that is a quotient, the names that it follows from.
    """
    regions: list[Region] = []
    earlier = set[str]()
    for func in list(functions(module).values()):
        outliner = _Outliner(func, module, roots, regions, frozenset(earlier))
        earlier |= _names(func.body.block.args)
        earlier = earlier.union(*(_op_names(op) for op in func.body.block.ops))
        outliner.run()
    return regions


@dataclass
class _Outliner:
    func: FuncOp
    module: ModuleOp
    roots: Mapping[str, frozenset[str]]
    regions: list[Region]
    earlier: frozenset[str]
    known: set[SSAValue] = field(default_factory=set[SSAValue])
    sizes: set[str] = field(default_factory=set[str])
    decided: set[str] = field(default_factory=set[str])

    def run(self) -> None:
        block = self.func.body.block
        *ops, last = block.ops
        assert isinstance(last, ReturnOp)
        self.known.update(block.args)
        self.weights = {
            value: (role, name) for role, name, value in arguments(self.func) if role in WEIGHTS
        }
        self.places = {op: index for index, op in enumerate(ops)}
        hosted = self._hosted(ops)
        self.free = self._free(ops, hosted)
        for op in (*ops, last):
            op.detach()
        self.builder = FlowBuilder(block, prefix="h")
        pending = [op for op in ops if op not in self.free]
        while pending:
            region = self._ready(pending, lambda op: op not in hosted)
            if region:
                self._emit(region)
            taken = set(region)
            ready = self._ready([op for op in pending if op not in taken], hosted.__contains__)
            taken |= set(ready)
            pending = [op for op in pending if op not in taken]
            for op in ready:
                self._literals(op.operands)
                block.add_op(op)
            assert region or ready, "an op waits for nothing that comes"
        self._literals(last.operands)
        block.add_op(last)
        for op in reversed(ops):
            if op.parent is None:
                op.erase(safe_erase=False)

    def _hosted(self, ops: Sequence[Operation]) -> set[Operation]:
        """Return the ops that the host runs; sizes that they decide are not there before them."""
        # A size that a function around this one knows is there from the start.
        seen = set(_names(self.func.body.block.args) | self.earlier)
        hosted: set[Operation] = set()
        for op in ops:
            fresh = _names(op.results) - seen - _names(op.operands)
            if isinstance(op, ExternOp) and (
                not all(isinstance(v.type, TensorType) for v in (*op.operands, *op.results))
                or functions_of(decoded(op.arguments))
                or fresh
            ):
                hosted.add(op)
                self.decided |= fresh
            seen |= _names(op.results)
        return hosted

    def _free(self, ops: Sequence[Operation], hosted: set[Operation]) -> set[Operation]:
        """Return literals, and what is made of them alone: written where they are read."""
        free: set[Operation] = set()
        for op in ops:
            if op not in hosted and all(value.owner in free for value in op.operands):
                free.add(op)
        return free

    def _ready(
        self, pending: Iterable[Operation], wanted: Callable[[Operation], bool]
    ) -> list[Operation]:
        """Return those of some ops, in order, for which everything is there; their results are."""
        ready: list[Operation] = []
        for op in pending:
            if not wanted(op):
                continue
            values = [v for v in op.operands if v not in self.known]
            if not all(v.owner in self.free for v in values):
                continue
            needed = (_op_names(op) | self._names_of_free(values)) & self.decided
            own = _names(op.results) if isinstance(op, ExternOp) else frozenset[str]()
            if not needed - own <= self.sizes:
                continue
            ready.append(op)
            self.known.update(op.results)
            self.sizes |= _names(op.results)
        return ready

    def _names_of_free(self, values: Iterable[SSAValue]) -> frozenset[str]:
        names = frozenset[str]()
        for op in self._chain(values):
            names |= _op_names(op)
        return names

    def _chain(self, values: Iterable[SSAValue]) -> list[Operation]:
        """Return the free ops that make values, operands first."""
        chain: set[Operation] = set()
        stack = list(values)
        while stack:
            op = stack.pop().owner
            if isinstance(op, Operation) and op in self.free and op not in chain:
                chain.add(op)
                stack += op.operands
        return sorted(chain, key=self.places.__getitem__)

    def _literals(self, values: Iterable[SSAValue]) -> None:
        """Put the free ops that the host reads where it is now."""
        for op in self._chain(values):
            if op.parent is None:
                self.func.body.block.add_op(op)

    def _emit(self, region: Sequence[Operation]) -> None:
        """Make a function of ops, and call it."""
        inside = {result for op in region for result in op.results}
        members = set(region)
        outputs = [
            value
            for op in region
            for value in op.results
            if any(use.operation not in members for use in value.uses)
        ]
        if not outputs:
            return
        block, mapped = Block(), dict[SSAValue, SSAValue]()
        attrs: list[DictionaryAttr] = []
        operands: list[SSAValue] = []
        literals = self._chain(v for op in region for v in op.operands)
        computed = inside | {result for op in literals for result in op.results}
        for op in region:
            for value in op.operands:
                if value in computed or value in mapped:
                    continue
                role, name = self.weights.get(value, ("input", f"v{len(operands)}"))
                mapped[value] = block.insert_arg(value.type, len(block.args))
                attrs.append(argument_attrs(role, name))
                operands.append(value)
        names = frozenset[str]().union(*(_op_names(op) for op in (*literals, *region)))
        names = names.union(*(self.roots.get(name, frozenset()) for name in names))
        for name in sorted(names - _plain(block.args) - frozenset(self.roots)):
            # A size that no input shows comes as the length of a tensor of its own.
            mark = self.builder.constant([0], [symbol(name)], "i1")
            block.insert_arg(mark.type, len(block.args))
            attrs.append(argument_attrs("input", f"v{len(operands)}"))
            operands.append(mark)
        for op in (*literals, *region):
            block.add_op(op.clone(mapped))
        func = finish_function(
            f"{PREFIX}{len(self.regions)}",
            block,
            [mapped[value] for value in outputs],
            arg_attrs=attrs,
            res_attrs=[argument_attrs("output", f"output{i}") for i in range(len(outputs))],
        )
        self.module.body.block.add_op(func)
        self.regions.append(Region(func, names))
        self.builder.loc = loc_of(region[0])
        results = self.builder.call(func.sym_name.data, operands, [v.type for v in outputs])
        for value, result in zip(outputs, results, strict=True):
            value.replace_uses_with_if(result, lambda use: use.operation not in members)
            self.known.add(result)


def _names(values: Iterable[SSAValue]) -> frozenset[str]:
    dims = [d for v in values if isinstance(v.type, TensorType) for d in v.type.shape]
    return frozenset(name for dim in dims if isinstance(dim, Size) for name in dim.names())


def _plain(values: Iterable[SSAValue]) -> frozenset[str]:
    """Return the names that stand in a dim by themselves."""
    dims = [d for v in values if isinstance(v.type, TensorType) for d in v.type.shape]
    return frozenset(str(d) for d in dims if isinstance(d, Size) and str(d).isidentifier())


def _op_names(op: Operation) -> frozenset[str]:
    """Return the names in the types and attributes of an op."""
    names = _names((*op.operands, *op.results))
    for attribute in (*op.properties.values(), *op.attributes.values()):
        names |= _attribute_names(attribute)
    return names


def _attribute_names(attribute: Attribute) -> frozenset[str]:
    match attribute:
        case SizeAttr():
            return attribute.data.names()
        case ShapeAttr():
            dims = [dim for dim in attribute.data if isinstance(dim, Size)]
            return frozenset(name for dim in dims for name in dim.names())
        case _:
            return frozenset()
