"""What a kernel of several ops saves, and what it would waste."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, tensor
from irc.dialects.types import ITEM_BYTES
from irc.kernels.holds import COMPUTE_OPS, shape_of
from irc.kernels.nest import Nest
from irc.kernels.trace import leaf_set
from irc.ops.functions import POINTWISE

MIN_TASKS = 16
"""Rows below which a large kernel with reductions would leave cores idle."""
LARGE = 1 << 16
"""Points from which idle cores cost more than another pass over memory (about 50 us)."""
OPEN_TASKS = 12
"""As ``MIN_TASKS`` where sizes are open: plans are compared where no such dim has fewer rows."""
CHEAP = 4
"""Operations a point that may be done again for each point of a dim that they do not have."""


def wasteful(nest: Nest, *, any_rows: bool = False) -> str | None:
    """Say what a legal kernel would waste.

    Args:
        nest: of the kernel.
        any_rows: the answer is to be that of other sizes too.
    """
    tasks, everything = frozenset(nest.tasks), frozenset((*nest.tasks, *nest.reduced))
    for node in nest.nodes:
        if node.kind != "pointwise" or POINTWISE[node.attrs["fn"]].flops <= CHEAP:
            continue
        wanted = everything if node in nest.full else tasks
        if not leaf_set(node.axes) >= wanted:
            return f"{node.attrs['fn']} would be computed again for each point of a dim"
    if nest.template == "matmul" or not nest.reduced:
        return None
    # A lone reduction is as it is; with others it takes them along.
    if nest.num_tasks < (OPEN_TASKS if any_rows else MIN_TASKS) and _is_large(nest, any_rows):
        return f"{nest.num_tasks} rows would keep the other cores idle"
    stores_full = any(node in nest.full for _, node, _ in nest.outputs)
    if stores_full and _reduces_columns(nest):
        return "a store down the columns of a reduction"
    return None


def _is_large(nest: Nest, any_rows: bool) -> bool:
    """True for a kernel of many points; with ``any_rows``, for one that may have many.

    A reduction over several dims (the range of a whole tensor) then has any number of them, one
    over a single dim (a norm of one token) those that it has.
    """
    return nest.num_points > LARGE or (any_rows and len(nest.reduced) > 1)


def _reduces_columns(nest: Nest) -> bool:
    """True where the dim that lies together in memory is not among the reduced ones."""
    for node, access in nest.accesses.items():
        if node.kind == "load" and node in nest.full and not node.operands:
            steps = {abs(s): axis for axis, s in access.strides.items() if s}
            return bool(steps) and steps[min(steps)] not in nest.reduced
    return False


def saved_bytes(ops: Sequence[FlowOp], outputs: Sequence[SSAValue]) -> int:
    """Count the bytes of intermediates that a kernel neither writes nor reads back."""
    kept = set(outputs)
    inner = [v for op in ops if op.name in COMPUTE_OPS for v in op.outputs if v not in kept]
    return sum(2 * tensor_bytes(value) for value in inner)


def tensor_bytes(value: SSAValue) -> int:
    """Count the bytes of a tensor."""
    count = ITEM_BYTES[tensor(value).dtype]
    for size in shape_of(value):
        count *= size
    return count


def describe(kind: str, ops: Sequence[FlowOp], outputs: Sequence[SSAValue]) -> str:
    """Say in a line why a group is one kernel."""
    compute = [op for op in ops if op.name in COMPUTE_OPS]
    if len(compute) <= 1:
        return "one op"
    saved = saved_bytes(ops, outputs)
    if kind == "matmul":
        names = [op.fn for op in compute if isinstance(op, PointwiseOp)]
        return f"{', '.join(names)} where the matmul leaves its result: {saved} bytes less to move"
    reductions = sum(isinstance(op, ReduceOp) for op in compute)
    text = f"{len(compute)} ops in one pass"
    if reductions:
        text += f" over rows, {reductions} reductions"
    return f"{text}: {saved} bytes less to move"
