"""Whether traced code calls what torch does not ship: nobody knows what such a call does besides.

An op of a user may count its calls, or draw from a generator of its own. To run it once more than
eager mode does is to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from irc.frontends.torch.repeat import LAYERS

_HIGHER_ORDER: Any = torch._ops.HigherOrderOperator  # pyright: ignore[reportPrivateUsage]
"""As Any: what isinstance says of it has arguments of unknown types."""

KNOWN = frozenset({"torch", "irc", "_operator", "math", "builtins"})
"""Packages of functions that compute and do no more."""
KNOWN_OPS = frozenset({"aten", "prims", "prim", "irc", LAYERS})
"""Namespaces of ops that compute and do no more."""
OPS = "torch._ops."
"""The module of an op is this and its namespace."""


class ForeignCalls:
    """Notes whether there is such a call.

    Attributes:
        any: there was one.
    """

    def __init__(self) -> None:
        self.any = False

    def note(self, function: Callable[..., Any], _: Sequence[Any], __: Mapping[str, Any]) -> None:
        """Look at a call before it runs."""
        self.any = self.any or is_foreign(function)


def is_foreign(function: object) -> bool:
    """Return whether it is neither torch's own nor Python's.

    >>> [is_foreign(each) for each in (torch.sin, torch.ops.aten.sin.default, max, Callable)]
    [False, False, False, True]
    """
    module = getattr(function, "__module__", None)
    if not isinstance(module, str):
        return False  # a method of tensors, written in C
    if module.startswith(OPS):
        return module.removeprefix(OPS) not in KNOWN_OPS
    return module.partition(".")[0] not in KNOWN


def calls_foreign(graph: GraphModule) -> bool:
    """Return whether a traced graph, or one inside it, has such a call."""
    inner = [each for each in graph.modules() if isinstance(each, GraphModule)]
    return any(_is_foreign_call(each, node) for each in inner for node in each.graph.nodes)


def _is_foreign_call(graph: GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        return is_foreign(type(graph.get_submodule(str(node.target))))
    if node.op != "call_function":
        return False
    if isinstance(node.target, _HIGHER_ORDER):
        # What it does is what graphs do that it is given; without one it calls Python.
        return not any(_is_graph(graph, each) for each in node.all_input_nodes)
    return is_foreign(node.target)


def _is_graph(graph: GraphModule, node: Node) -> bool:
    value = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(value, GraphModule)
