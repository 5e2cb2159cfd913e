"""Graphs whose sizes Dynamo leaves open: open in the plan too where that can be, or a plan each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from irc.calls.open_graph import RefusedError
from irc.calls.recompiles import Recompiles
from irc.frontends.torch.graphs import source_name
from irc.pipeline import Options
from irc.record import Recompile
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import counters, first_line
from irc.torch_backend.powers import keep_bases
from irc.torch_backend.tracing import compile_graph

MAX_SIZES = 32
"""Plans kept for the sizes of one graph of open sizes."""

Size: TypeAlias = tuple[int, ...] | float
"""What a plan is kept for: the sizes of a tensor, or a number."""


class SpecialisingGraph:
    """A graph of open sizes: a plan per combination of sizes that is called."""

    def __init__(self, gm: GraphModule, options: Options) -> None:
        self._gm = gm
        self._options = options
        self._known: OrderedDict[tuple[Any, ...], Flat] = OrderedDict()
        self._refused = ""
        self._opened: dict[tuple[Any, ...], Flat | None] = {}
        self._recompiles = Recompiles(is_open=True)
        self._lock = threading.RLock()
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._names = [source_name(getattr(n, "_dynamo_source", n.name)) for n in placeholders]
        self._numbers = [i for i, node in enumerate(placeholders) if items_of(node)]
        values = [node.meta.get("example_value") for node in placeholders]
        self._has_open_strides = any(map(_has_open_strides, values))

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the plan for these sizes."""
        opened = self._opened_for(args)
        if opened is not None:
            try:
                return opened(*args)
            except RefusedError as refused:
                self._refused = str(refused)
        return self._specialised(args)

    def _opened_for(self, args: Sequence[Any]) -> Flat | None:
        """Return what runs any sizes, if that could be made and admits those of a call."""
        key = (torch.is_grad_enabled(), *(args[i].item() for i in self._numbers))
        with self._lock:
            if key not in self._opened:
                self._opened[key] = self._open(args)
            return self._opened[key]

    def _open(self, args: Sequence[Any]) -> Flat | None:
        """Trace with the symbols of Dynamo; None where that cannot be."""
        placeholders = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        fakes = [node.meta.get("example_value") for node in placeholders]
        if self._has_open_strides or any(value is None for value in fakes):
            return None
        graph = with_numbers(self._gm, args, sizes=False) if self._numbers else self._gm
        try:
            run = compile_graph(graph, args, self._options, fakes=fakes)
        except Exception as error:  # the sizes of each call are tried by themselves
            self._refused = str(error)
            return None
        counters["opened"] += 1
        return run

    def _specialised(self, args: Sequence[Any]) -> Sequence[Any]:
        grad = torch.is_grad_enabled()
        sizes = (tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args)
        key = (grad, *sizes, *(args[i].item() for i in self._numbers))
        if self._has_open_strides:
            key += tuple(arg.stride() for arg in _tensors(args))
        with self._lock:
            run = self._known.get(key)
            if run is None:
                run = self._add(key, args)
            self._known.move_to_end(key)
        return run(*_tensors(args))

    def _add(self, key: tuple[Any, ...], args: Sequence[Any]) -> Flat:
        counters["specialised"] += 1
        if self._known:
            resized = self._resized(next(reversed(self._known)), key)
            because = f" ({self._refused})" if self._refused else ""
            reason = f"other sizes: {resized}{because}"
            self._recompiles.add(reason, resized)
            if self._options.record is not None:
                self._options.record.note(Recompile(reason, first_line(self._gm)))
        run = compile_graph(with_numbers(self._gm, args), _tensors(args), self._options)
        self._known[key] = run
        if len(self._known) > MAX_SIZES:
            self._known.popitem(last=False)
        return run

    def _resized(
        self, was: tuple[Size, ...], now: tuple[Size, ...]
    ) -> tuple[str, int, int, int] | None:
        """Return the first tensor of another size than in a call before: name, dim, both sizes."""
        for name, old, new in zip(self._names, was[1:], now[1:], strict=False):
            if isinstance(old, tuple) and isinstance(new, tuple):
                for dim, (a, b) in enumerate(zip(old, new, strict=False)):
                    if a != b:
                        return name, dim, a, b
        return None


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def has_open_sizes(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    """True where Dynamo has left a size or a number of the graph's inputs open."""
    values = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    return any(
        not isinstance(value, torch.Tensor)
        or any(isinstance(size, torch.SymInt) for size in value.shape)
        or _has_open_strides(value)
        for value in (*values, *inputs)
        if value is not None
    )


def _has_open_strides(value: Any) -> bool:
    """True for a tensor whose strides Dynamo has left open by themselves, not with its sizes."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    opened: list[Any] = [size for size in value.shape if isinstance(size, torch.SymInt)]
    sizes = [size.node.expr for size in opened]
    known = set[Any]().union(*(size.free_symbols for size in sizes))
    opened = [each for each in value.stride() if isinstance(each, torch.SymInt)]
    strides = [each.node.expr for each in opened]
    return any(not each.free_symbols <= known for each in strides)


def with_numbers(gm: GraphModule, args: Sequence[Any], *, sizes: bool = True) -> GraphModule:
    """Return a copy of a graph with its numbers in place of the placeholders for them.

    With ``sizes`` it is as the arguments are, whatever Dynamo knew of others.

    Args:
        gm: the graph.
        args: of a call.
        sizes: also sizes, not only the numbers that Dynamo has wrapped into tensors.
    """
    from copy import copy

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    old, new = ([n for n in g.nodes if n.op == "placeholder"] for g in (gm.graph, graph))
    for was, node, value in zip(old, new, args, strict=True):
        if hasattr(was, "_dynamo_source"):  # a copy loses it: its name in the user's terms
            node._dynamo_source = was._dynamo_source
        if sizes:
            node.meta.pop("example_value", None)
        if sizes and not isinstance(value, torch.Tensor):
            node.replace_all_uses_with(value)
            graph.erase_node(node)
        for item in items_of(node) if isinstance(value, torch.Tensor) else ():
            number: Any = value.item()
            item.replace_all_uses_with(number)
            graph.erase_node(item)
    numbered = GraphModule(copy(gm), graph)
    keep_bases(numbered)
    return numbered


def items_of(placeholder: Node) -> list[Node]:
    """Return where a graph takes the number out of a tensor that Dynamo has wrapped it in."""
    return [n for n in placeholder.users if n.op == "call_method" and n.target == "item"]
