"""Whether a value of a traced graph is written to after it was made."""

# pyright: basic
from __future__ import annotations

from torch.fx import Node


def is_written(node: Node) -> bool:
    """Return whether something writes to what shares the memory of a node: it, or a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return True
        returns = [] if schema is None else schema.returns
        if any(each.alias_info is not None for each in returns) and is_written(user):
            return True
    return False
