"""Checks inside functions that torch transforms: ``vmap``, ``grad``, ``jvp``, associative scans.

A graph of Dynamo has the ends of a transform as calls. What is computed between them is known to
that transform alone, and leaves it as torch lets results leave: the rows of a ``vmap`` as a dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import predispatch
from torch.fx import Graph, Node

ROWS = "_vmap_increment_nesting"
OPENING = frozenset({ROWS, "_grad_increment_nesting", "_jvp_increment_nesting"})
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]  # of C
CLOSING = frozenset(
    {"_vmap_decrement_nesting", "_grad_decrement_nesting", "_jvp_decrement_nesting"}
)


class Transforms:
    """The transforms that are open while one goes through a graph, and what is inside of them.

    Args:
        graph: of Dynamo.
        results: what checks look at; those from inside are exchanged for what leaves.
    """

    def __init__(self, graph: Graph, results: list[Any]) -> None:
        self._graph, self._results = graph, results
        self._open: list[Any] = []  # of a vmap the number of rows
        self._inside: list[int] = []

    @property
    def are_open(self) -> bool:
        """Whether the node at hand is inside of one."""
        return bool(self._open)

    def keep(self, places: Iterable[int]) -> None:
        """Let results leave the transforms that are open now."""
        if self._open:
            self._inside += places

    def pass_by(self, node: Node) -> None:
        """Go on past a node."""
        name = getattr(node.target, "__name__", "")
        if name in OPENING:
            self._open.append(node.args[0] if name == ROWS else None)
        elif name in CLOSING and self._open:
            self._leave(node)

    def _leave(self, node: Node) -> None:
        level, rows = len(self._open), self._open.pop()
        with self._graph.inserting_before(node):
            for place in self._inside:
                self._results[place] = self._left(self._results[place], level, rows)
        if not self._open:
            with self._graph.inserting_after(node):
                for place in self._inside:
                    value = self._graph.call_function(torch.all, (self._results[place],))
                    self._results[place] = value
            self._inside.clear()

    def _left(self, value: Node, level: int, rows: Any) -> Node:
        if rows is None:
            return self._graph.call_function(_functorch._unwrap_for_grad, (value, level))
        remove = predispatch._remove_batch_dim  # pyright: ignore[reportPrivateUsage]
        return self._graph.call_function(remove, (value, level, rows, 0))
