"""Parts of a graph under autocast, or with gradients on or off, which lie in graphs of their own.

torch.export makes a function of what stands below ``with torch.autocast(...)`` in a module, and
calls it. Where that holds layers that were traced once, their copies read parameters that the
function is not given: its nodes are put in place of the call, and know that autocast was on.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from irc.errors import IrcError

WRAPPERS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Calls of such functions; of each how many arguments come before the function."""
AUTOCAST = "irc_autocast"
"""Key of a node's meta data: torch casts its operands to the dtype of its result by itself."""


def wrapper_of(node: Node) -> str:
    """Return the name of what a node calls a function with; empty where it does not."""
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.name() not in WRAPPERS:
        return ""
    return target.name()


def turn_gradients_off(module: GraphModule) -> None:
    """Leave gradients off in functions that torch.export has below ``enable_grad``.

    A trace is made without them, and notes by ops of its own what eager detaches. With a result of
    such a function, what takes the graph apart would trace a backward pass as well. Code below
    ``inference_mode(False)`` and ``no_grad`` ends in such a function: torch notes that gradients
    are on again behind it, and not that they were off around it.
    """
    for child in module.modules():
        for node in child.graph.nodes if isinstance(child, GraphModule) else ():
            if wrapper_of(node) == "wrap_with_set_grad_enabled":
                node.args = (False, *node.args[1:])


def is_autocast(node: Node, around: bool) -> bool:
    """Return whether autocast is on in the function that a node calls, by what is on around it."""
    return bool(node.args[2]) if wrapper_of(node) == "wrap_with_autocast" else around


def mark_autocast(graph: Graph) -> None:
    """Note in all nodes of a graph that autocast was on where it was traced."""
    for node in graph.nodes:
        node.meta.setdefault(AUTOCAST, True)


def cast_inside(module: GraphModule, is_plain: Callable[[Node], bool]) -> None:
    """Let composite ops under autocast be taken apart with autocast on, so that their parts cast.

    Eager runs the cell of a GRU with autocast on, and its products are cast. A trace takes ops
    apart behind autocast, where nothing is cast any more. (What autocast casts as a whole has its
    parts behind it in eager too.)

    Args:
        module: the graph, which changes; nothing but to trace it again can follow.
        is_plain: says of a call that it will not be taken apart.
    """
    around = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    _cast_inside(module, around, is_plain)


def _cast_inside(
    module: GraphModule, dtype: torch.dtype | None, is_plain: Callable[[Node], bool]
) -> None:
    for node in module.graph.nodes:
        if (name := wrapper_of(node)) == "wrap_with_autocast":
            own = (node.args[1] or torch.get_autocast_dtype("cpu")) if node.args[2] else None
            _cast_inside(_body(module, node), own, is_plain)
        elif name:
            _cast_inside(_body(module, node), dtype, is_plain)
        elif dtype is not None and _casts_parts(node.target) and not is_plain(node):
            node.target = _in_parts(node.target, dtype, _dtypes(node.meta.get("val")))


def casts_whole(op: Any) -> bool:
    """True for an op whose operands autocast casts before it runs."""
    is_op = isinstance(op, torch._ops.OpOverload)
    return is_op and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "AutocastCPU")


def _casts_parts(op: Any) -> bool:
    """True for an op that runs as its parts, with autocast on for each of them."""
    if not isinstance(op, torch._ops.OpOverload) or casts_whole(op):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _in_parts(
    op: torch._ops.OpOverload, dtype: torch.dtype, wanted: list[torch.dtype]
) -> Callable[..., Any]:
    # Of a function that a graph calls, torch writes the name, which a partial one has not.
    def in_parts(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype, cache_enabled=False):
            results = op.decompose(*args, **kwargs)
        if _dtypes(results) != wanted:
            raise IrcError(
                "capture-failed",
                f"{op} below autocast gives other dtypes once it is taken apart",
                help="leave it to torch, or cast its operands",
            )
        return results

    return in_parts


def _dtypes(values: Any) -> list[torch.dtype]:
    return [v.dtype for v in tree_leaves(values) if isinstance(v, torch.Tensor)]


def inline(module: GraphModule, holds: Callable[[Node], bool]) -> None:
    """Put the nodes of functions in place of their calls, where one of them is what is looked for.

    Args:
        module: the graph, which changes.
        holds: says of a node that the function with it is to be taken apart.
    """
    for node in list(module.graph.nodes):
        if wrapper_of(node) and any(holds(inner) for inner in _nodes(_body(module, node))):
            _inline(module, node)
    module.delete_all_unused_submodules()


def _body(module: GraphModule, node: Node) -> GraphModule:
    function = node.args[WRAPPERS[wrapper_of(node)]]
    assert isinstance(function, Node)
    return getattr(module, str(function.target))


def _nodes(module: GraphModule) -> list[Node]:
    children = (child for child in module.modules() if isinstance(child, GraphModule))
    return [node for child in children for node in child.graph.nodes]


def _inline(module: GraphModule, call: Node) -> None:
    """Replace a call, and calls in its function, by what they call."""
    graph, body = module.graph, _body(module, call)
    for node in list(body.graph.nodes):
        if wrapper_of(node):
            _inline(body, node)
    at = WRAPPERS[wrapper_of(call)]
    cast = is_autocast(call, bool(call.meta.get(AUTOCAST)))
    operands = iter(call.args[at + 1 :])
    copies: dict[Node, Any] = {}
    results: Any = ()
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(operands)
        elif node.op == "output":
            (results,) = node.args
        else:
            with graph.inserting_before(call):
                copies[node] = graph.node_copy(node, lambda x: copies[x])
            copies[node].meta.setdefault(AUTOCAST, cast)
            if node.op == "get_attr":
                copies[node].target = _held(module, body, str(node.target))
    for item in list(call.users):
        item.replace_all_uses_with(copies.get(own := results[item.args[1]], own))
        graph.erase_node(item)
    function = call.args[at]
    graph.erase_node(call)
    if isinstance(function, Node) and not function.users:
        graph.erase_node(function)


def _held(module: GraphModule, body: GraphModule, name: str) -> str:
    """Give a module what another one holds; return the name."""
    number, value = 0, getattr(body, name)
    while hasattr(module, own := f"{name}_{number}"):
        number += 1
    setattr(module, own, value)
    return own
