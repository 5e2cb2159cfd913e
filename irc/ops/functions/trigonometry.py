"""Functions of angles, and the angles of sines, cosines and tangents."""

from __future__ import annotations

from irc.ops.functions.formula import Expression, Operands
from irc.ops.functions.record import Accuracy, Pointwise


def _inverse_square(v: Operands) -> Expression:
    """One by the squared length of both operands, and 0 by that of 0."""
    square = v.a * v.a + v.b * v.b
    return square.number(0).where(square.of("eq", 0), square.of("reciprocal"))


FUNCTIONS = (
    Pointwise(
        "sin",
        complex=True,
        flops=12,
        derivative=(lambda v: v.g * v.a.of("cos"),),
        torch="sin",
        onnx="Sin",
        libm="sin",
        triton="tl.sin({0})",
        cuda="sin{f}({0})",
        accuracy=Accuracy(1.5, 1.0, -1000000.0, 1000000.0),
    ),
    Pointwise(
        "cos",
        complex=True,
        flops=12,
        derivative=(lambda v: -v.g * v.a.of("sin"),),
        torch="cos",
        onnx="Cos",
        libm="cos",
        triton="tl.cos({0})",
        cuda="cos{f}({0})",
        accuracy=Accuracy(1.5, 1.0, -1000000.0, 1000000.0),
    ),
    Pointwise(
        "tan",
        complex=True,
        flops=20,
        derivative=(lambda v: v.g * (1 + v.y * v.y),),
        torch="tan",
        onnx="Tan",
        libm="tan",
        triton="libdevice.tan({0})",
        cuda="tan{f}({0})",
        accuracy=Accuracy(3.0, 1.0, -1000000.0, 1000000.0),
    ),
    Pointwise(
        "asin",
        complex=True,
        flops=20,
        derivative=(lambda v: v.g * (1 - v.a * v.a).of("rsqrt"),),
        torch="asin",
        onnx="Asin",
        libm="asin",
        triton="libdevice.asin({0})",
        cuda="asin{f}({0})",
        accuracy=Accuracy(1.0, 1.0, -1.0, 1.0),
    ),
    Pointwise(
        "acos",
        complex=True,
        flops=20,
        derivative=(lambda v: -v.g * (1 - v.a * v.a).of("rsqrt"),),
        torch="acos",
        onnx="Acos",
        libm="acos",
        triton="libdevice.acos({0})",
        cuda="acos{f}({0})",
        accuracy=Accuracy(1.0, 1.0, -1.0, 1.0),
    ),
    Pointwise(
        "atan",
        complex=True,
        flops=20,
        derivative=(lambda v: v.g / (v.a * v.a + 1),),
        torch="atan",
        onnx="Atan",
        libm="atan",
        triton="libdevice.atan({0})",
        cuda="atan{f}({0})",
        accuracy=Accuracy(1.0, 1.0, -1e38, 1e38),
    ),
    Pointwise(
        "atan2",
        arity=2,
        flops=20,
        derivative=(
            lambda v: v.g * (v.b * _inverse_square(v)),
            lambda v: -v.g * (v.a * _inverse_square(v)),
        ),
        torch="atan2",
        libm="atan2",
        triton="libdevice.atan2({0}, {1})",
        cuda="atan2{f}({0}, {1})",
    ),
)
