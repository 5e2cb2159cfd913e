"""Whether a loop over experts writes to memory that something else sees.

A loop that is replaced no longer writes after each expert, but once. What reads the same memory by
another name (a view taken before the loop) would see other numbers, so such loops are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.fx import Graph, Node

from irc.frontends.torch.expert_rows import ACTIVATIONS, aten, getitem
from irc.frontends.torch.repeat import is_mark


def _source(node: Node) -> Any:
    """Return the node whose memory a value may be; None where it has memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is getitem:
        container, number = node.args
        return container.args[0][number] if is_mark(container) else container  # type: ignore[union-attr,index]
    if node.target is aten.dropout.default:
        return node.args[0]
    schema = getattr(node.target, "_schema", None)
    if schema is None or all(value.alias_info is None for value in schema.returns):
        return None
    for argument, value in zip(schema.arguments, node.args, strict=False):
        if argument.alias_info is not None:
            return value
    return None


def _names(node: Any) -> Iterator[Node]:
    """Yield a value, and what it is a view of, outwards."""
    while isinstance(node, Node):
        yield node
        node = _source(node)


def is_seen(graph: Graph, start: Node, additions: list[Node], helpers: AbstractSet[Node]) -> bool:
    """Return whether what a loop writes in place may be seen under another name.

    Args:
        graph: has the loop.
        start: what is added to.
        additions: the loop's ops that write, in order.
        helpers: its other ops that read the result so far.
    """
    path = list(_names(start))
    own = {*path, *additions}
    begun = False
    for node in graph.nodes:
        begun = begun or node is additions[0]
        names = list(_names(node))
        if node not in own and path[-1] in names and additions[-1] not in names:
            return True
        if (
            not isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
            and node.op != "output"
        ):
            continue  # a size, or a statement about one
        late = begun and node not in own and node not in helpers
        if late and any(operand in path for operand in node.all_input_nodes):
            return True
    return False


def activates_shared(read: AbstractSet[Node]) -> bool:
    """Return whether an activation in place writes to what others read."""
    for node in read:
        if node.target in ACTIVATIONS and node.target._schema.is_mutable:  # type: ignore[union-attr]
            operand = node.args[0]
            assert isinstance(operand, Node)
            if set(operand.users) != {node} or _source(operand) is not None:
                return True
    return False
