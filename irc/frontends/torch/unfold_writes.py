"""Writes through ``unfold``, as writes through slices.

Where torch makes a graph functional, what is written to windows becomes a new tensor that lies row
by row, and has zeros between windows that leave gaps. What is written to a slice becomes one that
lies as before, with the numbers around the slice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, Node

from irc.errors import IrcError
from irc.frontends.torch.locations import location
from irc.frontends.torch.overlapping_writes import name_of, written_by
from irc.frontends.torch.tensor_memory import memory_of

aten: Any = torch.ops.aten


def unfold_by_slices(graph: Graph) -> None:
    """Write ``x.unfold(dim, size, step)`` as slices of x, where its memory is written to.

    Windows of one element are every ``step``-th element. Others are the beginnings of pieces of
    ``step`` elements, of a known number. Those that overlap are left: torch refuses to make them
    functional.

    Args:
        graph: of torch.export or of Dynamo, with its writes; it is changed.

    Raises:
        IrcError: ``capture-failed``: where the last window is, there may be no whole piece.
    """
    windows = [node for node in graph.nodes if name_of(node).partition(".")[0] == "unfold"]
    if not windows:
        return
    written = {memory_of(value) for node in graph.nodes for value in written_by(node)} - {None}
    for node in windows:
        key = "val" if "val" in node.meta else "example_value"
        if memory_of(node.meta.get(key)) in written:
            _write_by_slices(_Writer(graph, node, key), node)


class _Writer:
    """Writes calls in front of a node, with fake values of what they give.

    Args:
        graph: the graph.
        node: the node.
        key: under which nodes have their fake values.
    """

    def __init__(self, graph: Graph, node: Node, key: str) -> None:
        self._graph, self._node, self._key = graph, node, key

    def __call__(self, op: Callable[..., Any], *args: Any) -> Any:
        """Return the node of a call."""
        with enable_python_dispatcher(), torch.no_grad():
            value = op(*torch.fx.map_arg(args, self.value))
        with self._graph.inserting_before(self._node):
            node = self._graph.call_function(op, args)
        node.meta = {**self._node.meta, self._key: value}
        return node

    def value(self, node: Node) -> Any:
        """Return a node's fake value."""
        return node.meta[self._key]


def _write_by_slices(call: _Writer, node: Node) -> None:
    names = ("dimension", "size", "step")
    asked = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    source: Any = node.args[0] if node.args else node.kwargs["self"]
    dim, size, step = (asked[name] for name in names)
    ndim = call.value(source).ndim
    if not ndim or not isinstance(size, int) or not isinstance(step, int) or step < size:
        return
    dim %= ndim
    if size == 1:
        # Not unsqueezed: the stride of a window's one element is that of the dim.
        elements = call(aten.unflatten.int, source, dim, [-1, 1])
        every = call(aten.slice.Tensor, elements, dim, 0, sys.maxsize, step)
        unfolded = call(aten.movedim.int, every, dim + 1, -1)
    else:
        length = call.value(source).shape[dim]
        count = (length - size) // step + 1 if isinstance(length, int) else 0
        if not count or count * step > length:
            raise _behind_the_last(node)
        pieces = call(aten.slice.Tensor, source, dim, 0, count * step, 1)
        pieces = call(aten.unflatten.int, pieces, dim, [count, step])
        windows = call(aten.slice.Tensor, pieces, dim + 1, 0, size, 1)
        unfolded = call(aten.movedim.int, windows, dim + 1, -1)
    unfolded.meta = dict(node.meta)
    node.replace_all_uses_with(unfolded)
    node.graph.erase_node(node)


def _behind_the_last(node: Node) -> IrcError:
    return IrcError(
        "capture-failed",
        "windows are written to, and behind the last one there may be no whole step",
        location(node),
        because="torch writes zeros between the windows where it makes that functional",
        help="pad the tensor to whole steps, or write to slices of it",
    )
