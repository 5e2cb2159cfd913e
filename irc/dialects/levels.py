"""At which level a program may be, told from its text.

The levels share the ops of flow, so that text does not always say: on one device a program of level
flow is one of level spmd as it stands, and one without any op is at every level.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from irc.dialects.flow import FusionOp
from irc.dialects.types import TensorType

LEVELS = ("flow", "flow+sbp", "spmd", "task")
"""From the top down. What is below, the actions of a plan, is no module."""


def levels_of(module: ModuleOp) -> tuple[str, ...]:
    """Return the levels that a module may be at, in order. One walk, none into kernels.

    >>> from irc.dialects.text import load
    >>> levels_of(load("func.func @f(%x: !flow.tensor<[4], f32, [data = B]>) { func.return }"))
    ('flow+sbp',)
    """
    has_flow = has_ranks = is_placed = False
    for op in module.walk():
        dialect = op.name.partition(".")[0]
        if dialect == "task":
            return ("task",)
        has_flow = has_flow or dialect == "flow"
        has_ranks = has_ranks or dialect == "comm" or isinstance(op, FusionOp)
        is_placed = is_placed or dialect == "sbp" or _is_placed(op)
    if is_placed:
        return ("flow+sbp",)
    mesh = module.attributes.get("irc.mesh")
    if has_ranks or (mesh is not None and getattr(mesh, "data", "")):
        return ("spmd",)
    return ("flow", "spmd") if has_flow else LEVELS


def _is_placed(op: Operation) -> bool:
    values = [*op.results, *(arg for region in op.regions for b in region.blocks for arg in b.args)]
    return any(isinstance(v.type, TensorType) and v.type.placement is not None for v in values)
