"""Half-precision operands of comparisons are rounded, as those that eager reads from memory.

Kernels compute half types in float32 and round what they store. Of two roundings of one number a
comparison sees that they are equal; of a stored one and one that a kernel has just computed it does
not, and the derivative of a maximum has no element that is it.
"""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, carry, tensor
from irc.dialects.types import TensorType
from irc.kernels.holds import SHAPE_OPS

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
HALVES = ("f16", "bf16")
EXACT = frozenset({"neg", "abs", "maximum", "minimum", "relu"})
"""Functions that give a rounded number for rounded ones; a cast rounds by itself."""


def round_compared(block: Block) -> None:
    """Cast what comparisons read of half types to float32 and back: the second cast rounds."""
    rounded: dict[SSAValue, SSAValue] = {}
    for op in list(block.ops):
        if isinstance(op, PointwiseOp) and op.fn in COMPARISONS:
            for place, value in enumerate(op.operands):
                if _is_computed(value):
                    if value not in rounded:
                        rounded[value] = _rounded(block, value)
                    op.operands[place] = rounded[value]


def _is_computed(value: SSAValue) -> bool:
    """True for what a kernel may hold in float32."""
    source = value.owner
    if not isinstance(value.type, TensorType) or value.type.dtype not in HALVES:
        return False
    if not isinstance(source, FlowOp) or (isinstance(source, PointwiseOp) and source.fn == "cast"):
        return False
    if source.name in SHAPE_OPS or (isinstance(source, PointwiseOp) and source.fn in EXACT):
        return any(map(_is_computed, source.operands))
    return bool(source.operands)  # literals have none


def _rounded(block: Block, value: SSAValue) -> SSAValue:
    source, kind = value.owner, tensor(value)
    assert isinstance(source, FlowOp)
    float32 = TensorType.of(kind.shape, "f32", kind.placement)
    wide = PointwiseOp.make([value], [float32], fn="cast")
    half = PointwiseOp.make([wide.outputs[0]], [kind], fn="cast")
    block.insert_op_after(carry(wide, source, part=1), source)
    block.insert_op_after(carry(half, source, part=2), wide)
    if "sbp" in source.attributes:
        for cast in (wide, half):
            cast.attributes["sbp"] = source.attributes["sbp"]
    return half.outputs[0]
