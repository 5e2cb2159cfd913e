"""Whether a value of a traced graph is written to after it was made."""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

from torch.fx import Node
from torch.utils import _pytree as pytree


def is_written(node: Node) -> bool:
    """Return whether something writes to what shares the memory of a node: it, or a view of it."""
    return any(
        writes_to(user, node) or (gives_view(user, node) and is_written(user))
        for user in node.users
    )


def writes_to(user: Node, node: Node) -> bool:
    """True for a call that writes to a node's tensor."""
    return any(alias is not None and alias.is_write for alias in _aliases(user, node))


def gives_view(user: Node, node: Node) -> bool:
    """True for a call that gives a node's tensor, a view of it, or one of several."""
    if user.target is getitem:
        return True
    schema = getattr(user.target, "_schema", None)
    returns: list[Any] = [] if schema is None else schema.returns
    return any(each.alias_info is not None for each in returns) and any(
        alias is not None for alias in _aliases(user, node)
    )


def _aliases(user: Node, node: Node) -> Iterator[Any]:
    """Yield what the schema of a call says of each place in which it is given a node."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return
    for place, argument in enumerate(schema.arguments):
        value = user.args[place] if place < len(user.args) else user.kwargs.get(argument.name)
        if any(leaf is node for leaf in pytree.tree_leaves(value)):
            yield argument.alias_info
