"""The functions of a program as a choice of placements runs them: compute, calls, collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.placement import Placement
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.search.graph import Graph
from irc.search.problem import Choice, Port
from irc.sharding.trees import Trees
from irc.simulate.chosen_kernels import Kernels

Slot: TypeAlias = int
"""A value of a function under one placement."""


@dataclass(frozen=True)
class Collective:
    """A step of a boxing that ranks talk in.

    Attributes:
        kind, axis: which, and over which mesh axis.
        seconds: that it takes alone.
        dtype: of what it moves.
        num_bytes: by which it is priced: what a rank holds where its buffer is full.
        net: the net of the problem that it is of.
    """

    kind: str
    axis: str
    seconds: float
    dtype: str
    num_bytes: int
    net: int


@dataclass
class Item:
    """Something that a function does: an op, a call, or a collective.

    Attributes:
        reads, gives: values.
        seconds: of an op, or of a boxing's copy on the rank itself.
        collective: what is moved among ranks.
        callee: of a call.
    """

    reads: list[Slot]
    gives: list[Slot]
    seconds: float = 0.0
    collective: Collective | None = None
    callee: str = ""


@dataclass
class Body:
    """A function.

    Attributes:
        items: in the order of the program.
        arguments, results: values.
        before, after: collectives that its callers run for it, by argument and by result.
    """

    items: list[Item] = field(default_factory=list[Item])
    arguments: list[Slot] = field(default_factory=list[Slot])
    results: list[Slot] = field(default_factory=list[Slot])
    before: dict[int, list[Collective]] = field(default_factory=dict[int, list[Collective]])
    after: dict[int, list[Collective]] = field(default_factory=dict[int, list[Collective]])


def bodies(graph: Graph, choice: Choice, trees: Trees) -> dict[str, Body]:
    """Return the functions of a module by name, callees before callers.

    Args:
        graph: the problem of a module that is no stage of a pipeline.
        choice: the option of each node.
        trees: the boxings of a value for all its readers.
    """
    known: dict[str, Body] = {}
    steps = _Steps(graph, trees)
    kernels = Kernels(graph, choice)
    for name, func in graph.functions.items():
        known[name] = body = _Builder(graph, choice, trees, steps, kernels, known).build(func)
        if name != "forward":
            while _hoist(body):
                pass
    return known


class _Priced(NamedTuple):
    """A step of a boxing: its copy's seconds, or its collective's."""

    seconds: float
    kind: str
    axis: str
    num_bytes: int


class _Steps:
    """The steps of boxings, remembered."""

    def __init__(self, graph: Graph, trees: Trees) -> None:
        self._boxing, self._trees = graph.options.cost.boxing, trees
        self._known: dict[object, list[_Priced]] = {}

    def __call__(
        self, shape: tuple[int, ...], dtype: str, source: Placement, target: Placement
    ) -> list[_Priced]:
        key = shape, dtype, source, target
        if key not in self._known:
            self._known[key] = list(self._of(shape, dtype, source, target))
        return self._known[key]

    def _of(
        self, shape: tuple[int, ...], dtype: str, source: Placement, target: Placement
    ) -> Iterator[_Priced]:
        here = source
        for step in self._boxing.path(shape, dtype, source, target):
            priced = self._boxing.steps(shape, dtype, here)
            seconds = next((s for each, s in priced if each.result == step.result), None)
            if seconds is None:
                raise InternalError(f"a boxing leads to {step.result} by a step without a price")
            sides = (self._trees.num_bytes(shape, dtype, p) for p in (here, step.result))
            yield _Priced(seconds, step.kind, step.axis, max(sides))
            here = step.result


class _Builder:
    def __init__(
        self,
        graph: Graph,
        choice: Choice,
        trees: Trees,
        steps: _Steps,
        kernels: Kernels,
        known: Mapping[str, Body],
    ) -> None:
        self.graph, self.choice, self.trees, self.known = graph, choice, trees, known
        self.steps, self.kernels = steps, kernels
        self.body = Body()
        self.count = 0
        self.slots: dict[tuple[SSAValue, int, Placement | None], Slot] = {}
        self.parents: dict[tuple[SSAValue, int], dict[Placement, Placement]] = {}
        self.apart: dict[tuple[Operation, int], int] = {}

    def build(self, func: FuncOp) -> Body:
        block = func.body.block
        for value in (*block.args, *(v for op in block.ops for v in op.results)):
            for number, group in enumerate(self.graph.groups.get(value, ())):
                for use in group:
                    self.apart[use.operation, use.index] = number
        self.body.arguments = [self._root(value) for value in block.args]
        for op in block.ops:
            reads = [self._read(op, i, value) for i, value in enumerate(op.operands)]
            match op:
                case ReturnOp():
                    self.body.results = reads
                case CallOp():
                    self._call(op, reads)
                case FlowOp():
                    gives = [self._root(value) for value in op.results]
                    self.body.items.append(Item(reads, gives, self.kernels(op)))
                case _:
                    pass
        return self.body

    def _new(self) -> Slot:
        self.count += 1
        return self.count

    def _root(self, value: SSAValue) -> Slot:
        return self.slots.setdefault((value, -1, None), self._new())

    def _call(self, op: CallOp, reads: list[Slot]) -> None:
        name = op.callee.string_value()
        callee = self.known[name]
        for place, moved in callee.before.items():
            for collective in moved:
                reads[place] = self._moved(reads[place], collective)
        gives = [self._new() for _ in op.results]
        self.body.items.append(Item(reads, [*gives], callee=name))
        for place, moved in callee.after.items():
            for collective in moved:
                gives[place] = self._moved(gives[place], collective)
        for value, slot in zip(op.results, gives, strict=True):
            self.slots[value, -1, None] = slot

    def _moved(self, slot: Slot, collective: Collective) -> Slot:
        gives = self._new()
        self.body.items.append(Item([slot], [gives], collective=collective))
        return gives

    def _at(self, port: Port) -> Placement:
        return port.placements[self.choice[port.node]]

    def _read(self, op: Operation, index: int, value: SSAValue) -> Slot:
        """Return the value that an op reads, boxed by what is appended."""
        number = self.apart.get((op, index), 0)
        nets = self.graph.nets.get(value, ())
        net = nets[number] if number < len(nets) else None
        if net is None or not isinstance(value.type, TensorType):
            return self._root(value)
        wanted = self._at(self.graph.reads[op, index])
        if wanted == self._at(self.graph.sources[value]):
            return self._root(value)
        return self._boxed(value, number, net, wanted)

    def _boxed(self, value: SSAValue, number: int, net: int, wanted: Placement) -> Slot:
        key = value, number, wanted
        if key in self.slots:
            return self.slots[key]
        source = self._at(self.graph.sources[value])
        if (value, number) not in self.parents:
            tree = self.graph.problem.tree(self.graph.problem.nets[net], self.choice, self.trees)
            assert tree is not None
            self.parents[value, number] = {b.target: b.source for b in tree.branches}
        parent = self.parents[value, number][wanted]
        slot = self._root(value) if parent == source else self._boxed(value, number, net, parent)
        shape, dtype = self.graph.facts.kind(value)
        for step in self.steps(shape, dtype, parent, wanted):
            if step.kind == "local_chunk":
                gives = self._new()
                self.body.items.append(Item([slot], [gives], step.seconds))
                slot = gives
            else:
                slot = self._moved(
                    slot,
                    Collective(step.kind, step.axis, step.seconds, dtype, step.num_bytes, net),
                )
        self.slots[key] = slot
        return slot


def _hoist(body: Body) -> bool:
    """Give the outermost collectives of a function to its callers; return whether any were."""
    uses: dict[Slot, int] = {}
    reader: dict[Slot, Item] = {}
    maker: dict[Slot, Item] = {}
    for item in body.items:
        for slot in item.reads:
            uses[slot] = uses.get(slot, 0) + 1
            reader[slot] = item
        for slot in item.gives:
            maker[slot] = item
    for slot in body.results:
        uses[slot] = uses.get(slot, 0) + 1
    moved: list[Item] = []
    arguments = set(body.arguments)
    for place, slot in enumerate(body.arguments):
        item = reader.get(slot)
        if item is None or uses[slot] != 1 or item.collective is None:
            continue
        body.before.setdefault(place, []).append(item.collective)
        body.arguments[place] = item.gives[0]
        moved.append(item)
    for place, slot in enumerate(body.results):
        item = maker.get(slot)
        if item is None or uses[slot] != 1 or item.collective is None or item in moved:
            continue
        if item.reads[0] not in arguments:
            body.after.setdefault(place, []).insert(0, item.collective)
            body.results[place] = item.reads[0]
            moved.append(item)
    gone = {id(item) for item in moved}
    body.items = [item for item in body.items if id(item) not in gone]
    return bool(moved)
