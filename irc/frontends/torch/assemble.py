"""A program from a functional graph: arguments with roles and names, blocks, results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.frontends.torch.locations import location
from irc.frontends.torch.lowering import Lowering
from irc.frontends.torch.outline import Region, regions
from irc.frontends.torch.sizes import SizeError, SizeNames
from irc.frontends.torch.translate import Scope, Translation
from irc.kernels.holds import LIBRARY_DTYPES
from irc.program import Program
from irc.runtime.dtypes import dtype_name

LITERAL = 64
"""Constants of more elements are arguments."""

SEED = TensorType.of((), "i64")

SEED_BITS = 24
"""Seeds count calls of the program: so many bits of them come before those of its blocks."""


@dataclass(frozen=True)
class Argument:
    """What a placeholder of the graph is: its role, original name, and value unless an input."""

    role: str
    name: str
    tensor: torch.Tensor | None = None


@dataclass(frozen=True)
class Result:
    """What an output of the graph is: role (output or state) and name."""

    role: str
    name: str


@dataclass
class Assembly:
    """A program, and what was left to libraries."""

    program: Program
    externs: Counter[str] = field(default_factory=Counter[str])


def assemble(
    module: GraphModule,
    arguments: Mapping[Node, Argument],
    results: Sequence[tuple[Any, Result]],
    names: SizeNames,
    *,
    source: str,
    outline: bool = True,
    refused: set[Node] | None = None,
) -> Assembly:
    """Translate a functional graph.

    Args:
        module: the graph; its placeholders that are tensors are the keys of ``arguments``.
        arguments: per placeholder its meaning; those of one name become one argument.
        results: per result of the entry, in order, the node (or number) and its meaning.
        names: the user's names of dynamic sizes.
        source: what the program is made from, for reports.
        outline: make functions of repeated layers.
        refused: takes the nodes that the errors are about, where there are any.

    Raises:
        IrcError: all causes at once.
    """
    assembler = _Assembler(module, names)
    try:
        return assembler.run(arguments, results, source, outline)
    finally:
        if refused is not None:
            refused |= assembler.shared.refused


class _Assembler:
    def __init__(self, module: GraphModule, names: SizeNames) -> None:
        self.module = module
        self.block = Block()
        self.shared = Translation(names, self._seed)
        self.scope = Scope(self.shared, FlowBuilder(self.block), module)
        self.arguments: dict[str, tuple[Argument, SSAValue]] = {}
        self.functions: list[FuncOp] = []
        self.blocks: dict[str, str] = {}
        self.drawn = 0

    def run(
        self,
        arguments: Mapping[Node, Argument],
        results: Sequence[tuple[Any, Result]],
        source: str,
        outline: bool,
    ) -> Assembly:
        # What is written and not read is an argument, too: it is where the new value goes.
        written = {result.name for _, result in results if result.role == "state"}
        for node, argument in arguments.items():
            if argument.role == "input" or node.users or argument.name in written:
                self._argument(node, argument)
        self._constants()
        self._body(outline)
        values = [self._result(value) for value, _ in results]
        self.shared.errors.check()
        entry = finish_function(
            "forward",
            self.block,
            values,
            arg_attrs=[argument_attrs(a.role, a.name) for a, _ in self.arguments.values()],
            res_attrs=[argument_attrs(result.role, result.name) for _, result in results],
        )
        tensors = {a.name: a.tensor for a, _ in self.arguments.values() if a.tensor is not None}
        return Assembly(
            Program(ModuleOp([*self.functions, entry]), tensors, source), self.shared.externs
        )

    def _argument(self, node: Node, argument: Argument) -> None:
        if argument.name not in self.arguments:
            try:
                kind = self.shared.kind(node.meta["val"])
            except (IrcError, SizeError) as error:
                self.shared.errors.add(IrcError("capture-failed", f"'{argument.name}': {error}"))
                self.shared.refused.update(node.users)
                kind = TensorType.of([1] * node.meta["val"].ndim)
            value = self.block.insert_arg(kind, len(self.block.args))
            self.arguments[argument.name] = argument, value
        self.scope.values[node] = self.arguments[argument.name][1]

    def _seed(self) -> SSAValue:
        if "seed" not in self.arguments:
            value = self.block.insert_arg(SEED, len(self.block.args))
            seed = Argument("seed", "seed", torch.zeros((), dtype=torch.int64))
            self.arguments["seed"] = seed, value
        return self.arguments["seed"][1]

    def _next_seed(self) -> SSAValue:
        """Return the seed of one call of a block, that no call of this step or a later one has."""
        self.drawn += 1
        number = self.scope.b.scalar(self.drawn << SEED_BITS, "i64")
        return self.scope.b.pointwise("add", self._seed(), number)

    def _constants(self) -> None:
        for node in self.module.graph.nodes:
            if node.op != "get_attr" or not node.users:
                continue
            value = self.module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            if isinstance(value, torch.Tensor):
                self.scope.b.loc = location(node)
                self.scope.values[node] = self.constant(str(node.target), value)

    def constant(self, name: str, value: torch.Tensor) -> SSAValue:
        """Return a tensor as a literal, or as an argument where it is large."""
        dtype, kind = dtype_name(value.dtype), self.shared.kind(value)
        if value.numel() <= LITERAL and value.device.type != "meta" and dtype not in LIBRARY_DTYPES:
            values = value.detach().flatten().tolist() or [0]
            return self.scope.b.constant(values, kind.shape, dtype)
        self.arguments[name] = (
            Argument("constant", name, value),
            self.block.insert_arg(kind, len(self.block.args)),
        )
        return self.arguments[name][1]

    def _body(self, outline: bool) -> None:
        nodes = list(self.module.graph.nodes)
        repeated = regions(nodes) if outline else []
        position = 0
        for region in repeated:
            self.scope.run(nodes[position : region.start])
            self._call(region, nodes[region.start : region.stop])
            position = region.stop
        self.scope.run(nodes[position:])

    def _call(self, region: Region, nodes: Sequence[Node]) -> None:
        inputs = [self.scope.values[node] for node in region.inputs]
        if region.key not in self.blocks:
            self.blocks[region.key] = f"block_{len(self.blocks)}"
            self._block(self.blocks[region.key], region, nodes, inputs)
        self.scope.b.loc = region.loc
        if region.draws:
            inputs.append(self._next_seed())
        kinds = [self.shared.kind(node.meta["val"]) for node in region.outputs]
        values = self.scope.b.call(self.blocks[region.key], inputs, kinds)
        self.scope.values.update(zip(region.outputs, values, strict=True))

    def _block(
        self, name: str, region: Region, nodes: Sequence[Node], inputs: Sequence[SSAValue]
    ) -> None:
        block = Block(arg_types=[value.type for value in inputs])
        prefix = f"b{name.rpartition('_')[2]}n"
        scope = Scope(self.shared, FlowBuilder(block, prefix), self.module)
        scope.values.update(zip(region.inputs, block.args, strict=True))
        if region.draws:
            with self.shared.drawing_from(block.insert_arg(SEED, len(block.args))):
                scope.run(nodes)
        else:
            scope.run(nodes)
        self.functions.append(
            finish_function(name, block, [scope.resolve(node) for node in region.outputs])
        )

    def _result(self, value: Any) -> SSAValue:
        try:
            resolved = self.scope.resolve(value)
        except SizeError as error:
            where = location(value) if isinstance(value, Node) else ""
            self.shared.errors.add(IrcError("capture-failed", f"a result: {error}", where))
            resolved = 0
        if isinstance(resolved, SSAValue):
            return resolved
        if isinstance(resolved, bool | float):
            return self.scope.b.scalar(resolved, "i1" if isinstance(resolved, bool) else "f64")
        # A size that the module returns is computed where the program runs.
        return Lowering(self.scope.b, [], [], self.shared.random).size_value(resolved)
