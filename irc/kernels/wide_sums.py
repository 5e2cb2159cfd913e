"""Sums of halves by a scatter go through float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, carry, id_of, tensor
from irc.dialects.indexing import ScatterOp
from irc.dialects.types import TensorType
from irc.kernels.along import literal_of
from irc.kernels.holds import shape_of


def wide_sums(op: FlowOp) -> list[FlowOp] | None:
    """Return the ops that add up halves in float32, for a scatter that does; None for others.

    A row that many indices name would lose what is small against its sum, one rounding a time.
    """
    dtype = tensor(op.outputs[0]).dtype
    if not isinstance(op, ScatterOp) or dtype not in ("f16", "bf16"):
        return None
    attrs = op.plain
    if attrs["fn"] not in ("sum", "prod"):
        return None
    x, index, source = op.inputs
    ops: list[FlowOp] = []

    def add(
        kind: type[FlowOp], inputs: Sequence[SSAValue], like: SSAValue, to: str, **attrs: Any
    ) -> SSAValue:
        part = kind.make(inputs, [TensorType.of(shape_of(like), to)], **attrs)
        carry(part, op)
        part.attributes["id"] = StringAttr(f"{id_of(op)}.{len(ops)}")
        ops.append(part)
        return part.outputs[0]

    wide = x if literal_of(x) is not None else add(PointwiseOp, [x], x, "f32", fn="cast")
    more = add(PointwiseOp, [source], source, "f32", fn="cast")
    total = add(ScatterOp, [wide, index, more], x, "f32", **attrs)
    add(PointwiseOp, [total], x, dtype, fn="cast")
    ops[-1].attributes.update(op.attributes)
    return ops
