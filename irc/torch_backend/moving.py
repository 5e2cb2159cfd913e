"""Graphs that name a place in an argument's memory: a plan for each way in which arguments lie.

``as_strided`` with a storage offset counts from the start of the memory, not of the tensor. Dynamo
guards sizes and strides, and not where in its memory an argument starts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from irc.frontends.torch.overlapping_writes import name_of, writes
from irc.frontends.torch.stride_reads import reaches_around
from irc.pipeline import Options
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import count_left
from irc.torch_backend.specialising import items_of, with_numbers
from irc.torch_backend.tracing import Compile

MAX_PLACES = 16
"""Plans for one graph; torch runs what lies in yet another way."""

WRITES = "as_strided names a place in memory, and the graph writes"
OTHER_PLACES = f"arguments lie in memory in more than {MAX_PLACES} ways"
"""Why torch runs a graph."""

OFFSET = 3
"""The place of ``storage_offset`` among the arguments of ``as_strided``."""


class MovingGraph:
    """A graph with a plan for each way in which its arguments lie.

    Args:
        gm: the graph.
        options: of the plans.
        compiled: compiles it for values of its placeholders.
    """

    def __init__(self, gm: GraphModule, options: Options, compiled: Compile) -> None:
        self._gm, self._options, self._compiled = gm, options, compiled
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._numbers = [i for i, node in enumerate(placeholders) if items_of(node)]
        self._writes = any(map(writes, gm.graph.nodes))
        self._known: dict[tuple[Any, ...], Flat] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the plan for arguments that lie as these."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        # What is written around a tensor a functional graph has no name for.
        if self._writes:
            count_left(self._options, "graph", WRITES)
            return self._gm.forward(*args)
        key = (
            torch.is_grad_enabled(),
            *map(_lies, args),
            *(args[i].item() for i in self._numbers),
        )
        with self._lock:
            if key not in self._known:
                if len(self._known) == MAX_PLACES:
                    count_left(self._options, "graph", OTHER_PLACES)
                    return self._gm.forward(*args)
                self._known[key] = self._compiled(with_numbers(self._gm, args), tensors)
            run = self._known[key]
        return run(*tensors)


def _lies(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    is_strided = arg.layout is torch.strided
    return arg.shape, *((arg.stride(), arg.storage_offset()) if is_strided else ())


def names_places(gm: GraphModule) -> bool:
    """True for a graph with an ``as_strided`` that looks around its operand, or may do so.

    One that counts from the start of the memory does, for an argument that starts elsewhere.
    """
    looks = [
        node
        for node in gm.graph.nodes
        if node.op.startswith("call") and name_of(node).startswith("as_strided")
    ]
    is_written = any(map(writes, gm.graph.nodes))
    return any(
        node.kwargs.get("storage_offset") is not None
        or len(node.args) > OFFSET
        or (is_written and _looks_around(node))
        for node in looks
    )


def _looks_around(node: Node) -> bool:
    operand = node.args[0] if node.args else None
    known = operand.meta.get("example_value") if isinstance(operand, Node) else None
    return known is None or reaches_around(known, node)
