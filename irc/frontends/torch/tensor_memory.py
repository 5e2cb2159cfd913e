"""Which memory a tensor lies in, real or fake: tensors share it where the answer is the same."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def memory_of(value: object) -> int | None:
    """Return the memory that a value lies in; None for what is no tensor or lies nowhere.

    Sparse tensors, and what torch transforms functions with, have no memory of their own.

    >>> x = torch.zeros(4, 4)
    >>> [memory_of(y) == memory_of(x) for y in (x[1:], x.t(), x.clone())]
    [True, True, False]
    >>> memory_of(3), memory_of(x.to_sparse())
    (None, None)
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if not torch._C._has_storage(value):  # pyright: ignore[reportPrivateUsage]
        return None
    storage: Any = value.untyped_storage()
    return storage._cdata


def memory_of_node(node: Node) -> int | None:
    """Return the memory that a node's fake value lies in."""
    return memory_of(node.meta.get("val"))
