"""The whole table: importing this module enters every row."""

from __future__ import annotations

from functools import cache

import torch

from irc.frontends.torch import (
    creation,
    indexing,
    linear,
    losses,
    norms,
    pointwise,
    reductions,
    shapes,
    windows,
)
from irc.frontends.torch.lowering import TABLE, Row

MODULES = (creation, indexing, linear, losses, norms, pointwise, reductions, shapes, windows)


@cache
def row_of(op: torch._ops.OpOverload) -> Row | None:
    """Return the row of an ATen op: of its overload, else of its name; None where it has none."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten" or op._schema.is_mutable:
        return None
    return TABLE.get(f"{name}.{op._overloadname}") or TABLE.get(name)
