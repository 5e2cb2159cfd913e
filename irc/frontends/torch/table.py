"""The whole table: importing this module enters every row."""

from __future__ import annotations

from functools import cache

import torch

from irc.frontends.torch import (
    adaptive_pools,
    annotations,
    bags,
    creation,
    diagonals,
    einsum,
    indexing,
    linear,
    losses,
    norms,
    padding,
    pointwise,
    reductions,
    shapes,
    varlen,
    vector_norms,
    view_writes,
    window_gradients,
    windows,
)
from irc.frontends.torch.lowering import TABLE, Row

MODULES = (
    adaptive_pools, annotations, bags, creation, diagonals, einsum, indexing, linear, losses, norms,
    padding, pointwise, reductions, shapes, varlen, vector_norms, view_writes,
    window_gradients, windows,
)  # fmt: skip


@cache
def row_of(op: torch._ops.OpOverload) -> Row | None:
    """Return the row of an op: of its overload, else of its name; None where it has none."""
    namespace, _, name = op._schema.name.partition("::")
    if op._schema.is_mutable:
        return None
    if namespace != "aten":
        return TABLE.get(op._schema.name)
    return TABLE.get(f"{name}.{op._overloadname}") or TABLE.get(name)
