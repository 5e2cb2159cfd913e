"""One-hot vectors of classes that are looked at, in graphs that AOTAutograd traces.

Eager's ``one_hot`` refuses a class below zero or beyond the last one; torch takes it apart to a
comparison with each class, which gives such a class zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

ONE_HOT: frozenset[Any] = frozenset(
    {torch._C._nn.one_hot, torch.ops.aten.one_hot, torch.ops.aten.one_hot.default}  # type: ignore[attr-defined]  # not in stubs
)


def look_at_classes(module: GraphModule) -> None:
    """Let a graph, and those that it runs, look its classes up before it compares them."""
    for child in module.modules():
        if isinstance(child, GraphModule):
            nodes = [node for node in child.graph.nodes if node.target in ONE_HOT]
            for node in nodes:
                node.target = one_hot
            if nodes:
                child.recompile()


def one_hot(
    input: torch.Tensor,  # noqa: A002 - torch's
    num_classes: int | torch.SymInt = -1,
) -> torch.Tensor:
    """Return a vector for each class, as torch does.

    Args:
        input: int64, of any shape.
        num_classes: how many there are.

    Returns:
        int64, of the same shape and ``num_classes``.
    """
    if not isinstance(num_classes, int) or num_classes <= 0 or input.dtype is not torch.int64:
        return torch._C._nn.one_hot(input, num_classes)  # type: ignore[attr-defined]  # not in stubs
    classes = torch.arange(num_classes, device=input.device)
    return (torch.nn.functional.embedding(input, classes[:, None]) == classes).long()
