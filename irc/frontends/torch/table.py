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
def row_of(op: torch._ops.OpOverload) -> Row | None:  # pyright: ignore[reportPrivateUsage]
    """Return the row of an op: of its overload, else of its name; None where it has none."""
    schema = op._schema  # pyright: ignore[reportPrivateUsage]
    namespace, _, name = schema.name.partition("::")
    if schema.is_mutable:
        return None
    if namespace != "aten":
        return TABLE.get(schema.name)
    overload = op._overloadname  # pyright: ignore[reportPrivateUsage]
    return TABLE.get(f"{name}.{overload}") or TABLE.get(name)
