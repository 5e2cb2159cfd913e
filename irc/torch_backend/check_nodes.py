"""Nodes that checks of tensors are written with, in graphs of Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg


def output_of(gm: GraphModule) -> Any:
    """Return the node of a graph's results, which are in its first argument."""
    (output,) = gm.graph.find_nodes(op="output")
    return output


def true(graph: Graph) -> Node:
    """Return a truth value that holds."""
    return graph.call_function(torch.ones, ((),), {"dtype": torch.bool})


def holds(graph: Graph, value: Any) -> Node:
    """Return whether what a check looks at holds, as a truth value of its own memory."""
    return called(graph, torch.reshape, called(graph, torch.ne, value, 0), ())


def nothing_of(graph: Graph, operand: Node) -> Node:
    """Return 0, which has a gradient by an operand: the sum of none of its elements."""
    flat = graph.call_method("reshape", (operand, (-1,)))
    none = graph.call_function(getitem, (flat, slice(0, 0)))
    return graph.call_method("sum", (none,))


def differentiated(operands: Sequence[Any]) -> int | None:
    """Return which of the operands of an op has a gradient; None where none has."""
    for i, operand in enumerate(operands):
        value = operand.meta.get("example_value") if isinstance(operand, Node) else None
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point():
            return i
    return None


def both(graph: Graph, one: Any, other: Any) -> Node:
    """Return whether two truth values hold."""
    return called(graph, torch.logical_and, one, other)


def are_probabilities(graph: Graph, tensor: Any) -> Node:
    """Return whether all numbers of a tensor are from 0 to 1."""
    from_zero, to_one = called(graph, torch.ge, tensor, 0), called(graph, torch.le, tensor, 1)
    return called(graph, torch.all, both(graph, from_zero, to_one))


def called(graph: Graph, function: Callable[..., Any], *args: Any) -> Node:
    """Return the node of a call, with its fake value where those of its operands are known."""
    node = graph.call_function(function, args)
    values: Any = map_arg(args, lambda operand: operand.meta.get("example_value"))
    if all(value is not None for value in values):
        with torch.no_grad():
            node.meta["example_value"] = function(*values)
    return node


def more_arguments(gm: GraphModule, position: int, count: int) -> list[Node]:
    """Give a graph more arguments, in front of argument ``position``."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    place = placeholders[position] if position < len(placeholders) else None
    behind = placeholders[-1].next if placeholders else next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(place or behind):
        first = len(placeholders)
        return [gm.graph.placeholder(f"held_{first + i}") for i in range(count)]


def written_into(gm: GraphModule, part: GraphModule, args: Sequence[Any]) -> Sequence[Any]:
    """Write what a graph computes into another one, where that one's nodes are inserted.

    Args:
        gm: the graph that is written to.
        part: the graph that is copied; its results are in a tuple.
        args: nodes of the first graph, for each argument of the other.
    """
    placeholders = part.graph.find_nodes(op="placeholder")
    known: dict[Node, Any] = dict(zip(placeholders, args, strict=True))
    for node in part.graph.find_nodes(op="get_attr"):
        name = _free_name(gm, str(node.target).replace(".", "_"))
        value: Any = part
        for piece in str(node.target).split("."):
            value = getattr(value, piece)
        setattr(gm, name, value)
        known[node] = gm.graph.get_attr(name)
    results: Any = gm.graph.graph_copy(part.graph, known)
    return results


def _free_name(gm: GraphModule, name: str) -> str:
    number = 0
    while hasattr(gm, f"{name}_checked_{number}"):
        number += 1
    return f"{name}_checked_{number}"
