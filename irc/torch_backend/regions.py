"""A graph cut where torch has to run a part of it: what lies between is compiled.

A region is a run of neighbouring nodes that irc does not take: control flow on values, operations
on sparse, nested or quantised tensors, operations that write to what they are given. Torch runs it
as in eager mode, and the parts before and after are graphs like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from irc.calls.left import leave
from irc.errors import IrcError
from irc.frontends.torch.graphs import flat_program
from irc.frontends.torch.locations import location
from irc.pipeline import Options
from irc.torch_backend.compiled import Flat, runner_of
from irc.torch_backend.counts import count_left

OUTSIDE = ("placeholder", "get_attr", "output")
"""Nodes that belong to no part: each part reads what it needs of them."""

MANY: tuple[type[Any], ...] = (list, tuple)


@dataclass(frozen=True)
class Part:
    """Neighbouring nodes of a graph, as a graph of their own.

    Attributes:
        module: the graph; it returns a tuple.
        inputs: the nodes of the whole graph that it takes.
        outputs: those that it gives.
        is_left: torch runs it.
    """

    module: GraphModule
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    is_left: bool


class Divided:
    """Runs a graph part by part.

    Args:
        whole: the graph.
        runs: its parts in order, and what runs each of them.
    """

    def __init__(self, whole: GraphModule, runs: Sequence[tuple[Part, Flat]]) -> None:
        self._placeholders = [n for n in whole.graph.nodes if n.op == "placeholder"]
        self._results: Any = next(n for n in whole.graph.nodes if n.op == "output").args[0]
        last: dict[Node, int] = {}
        for i, (part, _) in enumerate(runs):
            last |= dict.fromkeys(part.inputs, i)
            last |= dict.fromkeys(part.outputs, i)
        kept: set[Node] = set()
        map_arg(self._results, kept.add)
        self._steps = [
            (part, run, [n for n, at in last.items() if at == i and n not in kept])
            for i, (part, run) in enumerate(runs)
        ]
        self._fixed = {
            node: _attribute(whole, str(node.target)) for node in kept if node.op == "get_attr"
        }

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run on the graph's arguments."""
        values = dict(zip(self._placeholders, args, strict=True)) | self._fixed
        for part, run, over in self._steps:
            results = run(*[values[node] for node in part.inputs])
            values.update(zip(part.outputs, results, strict=True))
            for node in over:
                del values[node]
        outputs: Any = map_arg(self._results, values.__getitem__)
        return outputs if isinstance(outputs, MANY) else (outputs,)


def divided(
    whole: GraphModule,
    left: Collection[Node],
    run_of: Callable[[Part], Flat],
    note: Callable[[Part], object],
) -> Divided:
    """Cut a graph around the nodes that are left to torch.

    Args:
        whole: the graph.
        left: what torch has to run.
        run_of: compiles a part.
        note: is told of each part that torch runs.
    """
    cut = parts(whole, left)
    for part in cut:
        if part.is_left:
            note(part)
    return Divided(whole, [(part, run_of(part)) for part in cut])


def note_region(options: Options, reason: str, part: Part) -> None:
    """Count and note a part that torch runs."""
    calls = (node for node in part.module.graph.nodes if node.op.startswith("call"))
    count_left(options, "region", reason, next(calls, None))


def _reason(error: IrcError, part: Part) -> str:
    """Return why torch runs a part: of several errors the one that is about a line of it."""
    every: Sequence[IrcError] = getattr(error, "errors", (error,))
    lines = {location(node) for node in part.module.graph.nodes if node.op.startswith("call")}
    return next((each for each in every if each.where in lines), every[0]).message


def parts(whole: GraphModule, left: Collection[Node]) -> list[Part]:
    """Return the parts of a graph, in order."""
    segments: list[tuple[bool, list[Node]]] = []
    known: dict[Node, bool] = {}
    for node in whole.graph.nodes:
        if node.op in OUTSIDE:
            continue
        is_left = node in left or _depends_on_values(node)
        # The items of a result stay with what gives it: parts exchange tensors and numbers.
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            is_left = known.get(node.args[0], is_left)
        known[node] = is_left
        if not segments or segments[-1][0] is not is_left:
            segments.append((is_left, []))
        segments[-1][1].append(node)
    return [_part(whole, nodes, is_left) for is_left, nodes in segments]


def _depends_on_values(node: Node) -> bool:
    """True for a number that only a run can tell, which the parts after it are given."""
    value = node.meta.get("val")
    is_number = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return is_number and bool(free_unbacked_symbols(value))


def _part(whole: GraphModule, nodes: Sequence[Node], is_left: bool) -> Part:
    own = set(nodes)
    inputs: dict[Node, Node] = {}
    copies: dict[Node, Node] = {}
    graph = Graph()
    read = dict.fromkeys(source for node in nodes for source in node.all_input_nodes)
    for source in read:
        if source not in own and source.op != "get_attr":
            inputs[source] = copies[source] = graph.placeholder(source.name)
            copies[source].meta = dict(source.meta)
            if (named := getattr(source, "_dynamo_source", None)) is not None:
                copies[source]._dynamo_source = named
    for source in read:
        if source.op == "get_attr":
            copies[source] = graph.node_copy(source)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = tuple(node for node in nodes if any(user not in own for user in node.users))
    graph.output(tuple(copies[node] for node in outputs))
    return Part(GraphModule(whole, graph), tuple(inputs), outputs, is_left)


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def by_parts(
    whole: GraphModule,
    refused: Collection[Node],
    error: IrcError,
    options: Options,
    held: Mapping[Node, tuple[str, torch.Tensor]] | None = None,
) -> Flat:
    """Compile a functional ATen graph around nodes that cannot be translated.

    Args:
        whole: the graph.
        refused: those nodes; others that a part turns out to have divide that again.
        error: what they were refused with.
        options: of the plans.
        held: placeholders that are parameters: name and value.
    """

    def run_of(part: Part) -> Flat:
        if part.is_left:
            return _by_torch(part, lambda graph: _inner(graph, options))
        more: set[Node] = set()
        names = {i: held[n] for i, n in enumerate(part.inputs) if held and n in held}
        try:
            try:
                with untouched_by_errors(part.module):
                    program = flat_program(part.module, names, "a part", refused=more)
            except IrcError as again:
                if not more:
                    raise
                return by_parts(part.module, more, again, options)
            return runner_of(program, options)
        except Exception as error:  # what it is, leave() decides
            leave("a part of a graph", error, options)
            return part.module.forward

    return divided(
        whole, refused, run_of, lambda part: note_region(options, _reason(error, part), part)
    )


@contextmanager
def untouched_by_errors(module: GraphModule) -> Generator[None]:
    """Take back what was added to a graph, where an error ends the block."""
    before = set(module.graph.nodes)
    (output,) = module.graph.find_nodes(op="output")
    args = output.args
    try:
        yield
    except BaseException:
        output.args = args
        for node in reversed(module.graph.nodes):
            if node not in before:
                module.graph.erase_node(node)
        raise


def _inner(graph: GraphModule, options: Options) -> Flat | None:
    """Compile a graph that control flow runs; None where torch has to."""
    try:
        return runner_of(flat_program(graph, {}, "a branch"), options)
    except IrcError:
        return None


def _by_torch(part: Part, compiled: Callable[[GraphModule], Flat | None]) -> Flat:
    """Return what runs a part as eager mode does; graphs that its control flow runs are compiled.

    Args:
        part: what is left to torch.
        compiled: compiles a graph, gives None where that cannot be.
    """
    module = part.module
    for node in module.graph.nodes:
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(inner, GraphModule):
            run = compiled(inner)
            if run is not None:
                setattr(module, str(node.target), _Alike(inner, run))

    def run_part(*args: Any) -> Sequence[Any]:
        # Autograd has been dealt with: the graph is its forward pass, or its backward pass.
        with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage]
            return module.forward(*args)

    return run_part


class _Alike(torch.nn.Module):
    """A graph inside a region: compiled for tensors like those of its trace, torch for others."""

    def __init__(self, graph: GraphModule, run: Flat) -> None:
        super().__init__()
        self._graph, self._run = graph, run
        (output,) = graph.graph.find_nodes(op="output")
        self._is_tuple = isinstance(output.args[0], MANY)
        fakes = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        self._kinds = [
            (x.shape, x.dtype) if isinstance(x, torch.Tensor) else (x, None) for x in fakes
        ]

    def forward(self, *args: Any) -> Any:
        """Run on tensors and numbers."""
        for argument, (shape, dtype) in zip(args, self._kinds, strict=True):
            if isinstance(argument, torch.Tensor):
                if argument.shape != shape or argument.dtype is not dtype:
                    return self._graph(*args)
            elif argument != shape:
                return self._graph(*args)
        results = tuple(self._run(*args))
        return results if self._is_tuple else results[0]
