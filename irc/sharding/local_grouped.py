"""Local programs of grouped matmuls: the rows that a rank holds of the groups that it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from xdsl.ir import SSAValue

from irc.dialects.comm import LocalChunkOp
from irc.dialects.flow import ExternOp, PadOp, tensor
from irc.dialects.types import TensorType
from irc.ops import names
from irc.ops.grouped import GROUPED_ROWS, GROUPS
from irc.sharding.local_ops import Local

CALL = json.dumps([[{"operand": i} for i in range(4)], {}])


def _bounds(local: Local) -> list[SSAValue]:
    """Return where each group of the rank starts and ends, counted from the rank's first row."""
    (x, _, offs, *_), rows = local.inputs, local.signature.operands[0]
    kind = tensor(offs)
    shifted = local.before(PadOp, [offs], kind, low=(1,), high=(-1,), value=0.0)
    bounds: list[SSAValue] = []
    for value in (shifted, offs):
        value = _own_groups(local, value)
        if rows.split_axes(0):
            start = local.start_of(0, 0, kind.dtype)
            value = local.pointwise("sub", value, start)
            value = local.pointwise("maximum", value, local.scalar(0, kind.dtype))
            held = local.scalar(tensor(x).static_shape()[0], kind.dtype)
            value = local.pointwise("minimum", value, held)
        bounds.append(value)
    return bounds


def _own_groups(local: Local, value: SSAValue) -> SSAValue:
    for axis in local.signature.operands[1].split_axes(0):
        kind = tensor(value)
        part = TensorType.of((kind.static_shape()[0] // local.mesh.size(axis),), kind.dtype)
        value = local.before(LocalChunkOp, [value], part, axis=axis, dim=0)
    return value


def _grouped(local: Local) -> list[SSAValue]:
    rows, matrices, *_ = local.inputs
    operands = [rows, matrices, *_bounds(local)]
    return local.last(ExternOp, operands, target=GROUPED_ROWS, arguments=CALL)


def _gradients(local: Local) -> list[SSAValue]:
    rows, matrices, _, g = local.inputs
    operands = [rows, matrices, *_bounds(local), g]
    op = local.op
    assert isinstance(op, ExternOp)
    *_, wanted = json.loads(op.arguments)
    call = {"target": GROUPED_ROWS, "arguments": CALL}
    arguments = json.dumps([ExternOp.name, call, 4, [0], wanted])
    return local.last(ExternOp, operands, target=names.VJP, arguments=arguments)


GROUPED_PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    GROUPS: _grouped,
    f"{GROUPS}-back": _gradients,
}
