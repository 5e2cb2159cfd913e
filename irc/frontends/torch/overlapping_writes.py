"""Writes to tensors of which several elements are one place in memory, such as expanded ones.

Eager takes few of them (``fill_``, ``zero_``) and refuses the rest. A functional graph knows
neither: torch makes one a sum over the places, other numbers than eager's. So torch itself runs
what holds such a write.
"""

# pyright: basic
from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree


def overlapping_write(nodes: Iterable[Node]) -> Node | None:
    """Return the first call that writes to a tensor with a stride of 0 and several elements there.

    Args:
        nodes: of a graph of ``torch.export`` or of Dynamo, as traced: with its writes.
    """
    return next((n for n in nodes if any(map(is_overlapping, _written(n)))), None)


def is_overlapping(value: object) -> bool:
    """True for a tensor of which several elements are one place, as eager's check has it."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(
        isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def writes(node: Node) -> bool:
    """True for a call in a graph of Dynamo that writes to what it is given."""
    name = name_of(node)
    if getattr(node.target, "__module__", "") == "_operator":
        return name == "setitem" or (name.startswith("i") and hasattr(operator, name[1:]))
    is_in_place = name.endswith("_") and not name.endswith("__")
    return node.op.startswith("call") and (
        is_in_place or "out" in node.kwargs or node.kwargs.get("inplace") is True
    )


def name_of(node: Node) -> str:
    """Return what a node of Dynamo calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _written(node: Node) -> Iterator[Any]:
    if isinstance(node.target, OpOverload):
        if not node.target._schema.is_mutable:
            return
        for told, operand in zip(node.target._schema.arguments, node.args, strict=False):
            if told.alias_info is not None and told.alias_info.is_write:
                yield from map(_value, pytree.tree_leaves(operand))
    elif writes(node):
        first = [] if "out" in node.kwargs else node.args[:1]
        yield from map(_value, pytree.tree_leaves([first, node.kwargs.get("out")]))


def _value(operand: object) -> object:
    if not isinstance(operand, Node):
        return None
    return operand.meta.get("val", operand.meta.get("example_value"))
