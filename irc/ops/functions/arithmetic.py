"""Arithmetic: sums, products, quotients and remainders, powers, extremes, signs.

In Triton ``div_rn`` and ``sqrt_rn`` are for float32 alone; the plain ones are exact in float64.
"""

from __future__ import annotations

import math

from irc.ops.functions.formula import Expression, Operands
from irc.ops.functions.record import Accuracy, Pointwise, Text


def _larger(g: Expression, a: Expression, b: Expression) -> Expression:
    """Give the gradient to the larger operand, half to each of equals (as torch does).

    Where one is NaN, and so the result, both have all of it.
    """
    return g.number(0).where(a.of("lt", b), (g * 0.5).where(a.of("eq", b), g))


def _smaller(g: Expression, a: Expression, b: Expression) -> Expression:
    return g.number(0).where(a.of("gt", b), (g * 0.5).where(a.of("eq", b), g))


def _pow_base(v: Operands) -> Expression:
    slope = v.g * (v.b * v.a.of("pow", v.b - 1))
    return slope.number(0).where(v.b.of("eq", 0), slope)


def _pow_exponent(v: Operands) -> Expression:
    # 0 ** b is flat for b >= 0, though the logarithm of 0 is infinite.
    flat = v.a.of("eq", 0).of("logical_and", v.b.of("ge", 0))
    slope = v.g * v.y * v.a.of("log")
    return slope.number(0).where(flat, slope)


def _hypot(v: Operands) -> Expression:
    """The larger one, times what the ratio adds: squares would overflow."""
    a, b = v.a.of("abs"), v.b.of("abs")
    high, low = a.of("maximum", b), a.of("minimum", b)
    ratio = (low / high).where(high.of("gt", 0), 0)
    length = high * (ratio * ratio + 1).of("sqrt")
    infinite = a.of("eq", math.inf).of("logical_or", b.of("eq", math.inf))
    return length.number(math.inf).where(infinite, length)


FUNCTIONS = (
    Pointwise(
        "add",
        arity=2,
        linear=((0, 1),),
        complex=True,
        derivative=(lambda v: v.g, lambda v: v.g),
        onnx="Add",
        triton=Text(floats="{0} + {1}", integers="{0} + {1}", bools="{0} | {1}"),
        cuda=Text(floats="{0} + {1}", integers="({T})(({U}){0} + ({U}){1})", bools="{0} || {1}"),
    ),
    Pointwise(
        "sub",
        arity=2,
        linear=((0, 1),),
        complex=True,
        derivative=(lambda v: v.g, lambda v: -v.g),
        onnx="Sub",
        triton=Text(floats="{0} - {1}", integers="{0} - {1}"),
        cuda=Text(floats="{0} - {1}", integers="({T})(({U}){0} - ({U}){1})"),
    ),
    Pointwise(
        "mul",
        arity=2,
        linear=((0,), (1,)),
        complex=True,
        derivative=(lambda v: v.g * v.b, lambda v: v.g * v.a),
        torch="mul multiply",
        onnx="Mul",
        triton=Text(floats="{0} * {1}", integers="{0} * {1}", bools="{0} & {1}"),
        cuda=Text(floats="{0} * {1}", integers="({T})(({U}){0} * ({U}){1})", bools="{0} && {1}"),
    ),
    Pointwise(
        "div",
        arity=2,
        linear=((0,),),
        complex=True,
        derivative=(lambda v: v.g / v.b, lambda v: -v.g * (v.y / v.b)),
        triton=Text(floats="tl.div_rn({0}, {1})", doubles="{0} / {1}"),
        cuda="{0} / {1}",
    ),
    Pointwise(
        "floor_div",
        arity=2,
        aten="floor_divide",
        flat=True,
        torch="floor_divide",
        triton=Text(
            floats="_floor_div({0}, {1})",
            doubles="_floor_div_f64({0}, {1})",
            integers="_floor_div_int({0}, {1})",
        ),
        cuda=Text(floats="irc_floor_div({0}, {1})", integers="irc_floor_div({0}, {1})"),
    ),
    Pointwise(
        "trunc_div",
        arity=2,
        aten="_trunc_divide",
        flat=True,
        triton=Text(
            floats="libdevice.trunc(tl.div_rn({0}, {1}))",
            doubles="libdevice.trunc({0} / {1})",
            integers="{0} // {1}",
        ),
        cuda=Text(floats="trunc{f}({0} / {1})", integers="({T})({0} / {1})"),
    ),
    Pointwise(
        "remainder",
        arity=2,
        derivative=(lambda v: v.g, lambda v: -v.g * v.a.of("floor_div", v.b)),
        torch="remainder",
        triton=Text(floats="_remainder({0}, {1})", integers="_remainder_int({0}, {1})"),
        cuda=Text(floats="irc_remainder({0}, {1})", integers="irc_remainder({0}, {1})"),
    ),
    Pointwise(
        "fmod",
        arity=2,
        derivative=(lambda v: v.g, lambda v: -v.g * v.a.of("trunc_div", v.b)),
        torch="fmod",
        libm="fmod",
        triton=Text(floats="libdevice.fmod({0}, {1})", integers="{0} % {1}"),
        cuda=Text(floats="fmod{f}({0}, {1})", integers="({T})({0} % {1})"),
    ),
    Pointwise(
        "pow",
        arity=2,
        complex=True,
        flops=10,
        derivative=(_pow_base, _pow_exponent),
        torch="pow",
        libm="pow",
        triton=Text(floats="libdevice.pow({0}, {1})", integers="_pow_int({0}, {1})"),
        cuda=Text(floats="pow{f}({0}, {1})", integers="irc_pow({0}, {1})"),
    ),
    Pointwise(
        "maximum",
        arity=2,
        derivative=(lambda v: _larger(v.g, v.a, v.b), lambda v: _larger(v.g, v.b, v.a)),
        torch="maximum max.other",
        triton=Text(
            floats="_maximum({0}, {1})", integers="tl.where({0} > {1}, {0}, {1})", bools="{0} | {1}"
        ),
        cuda=Text(floats="irc_max({0}, {1})", integers="irc_max({0}, {1})", bools="{0} || {1}"),
    ),
    Pointwise(
        "minimum",
        arity=2,
        derivative=(lambda v: _smaller(v.g, v.a, v.b), lambda v: _smaller(v.g, v.b, v.a)),
        torch="minimum min.other",
        triton=Text(
            floats="_minimum({0}, {1})", integers="tl.where({0} < {1}, {0}, {1})", bools="{0} & {1}"
        ),
        cuda=Text(floats="irc_min({0}, {1})", integers="irc_min({0}, {1})", bools="{0} && {1}"),
    ),
    Pointwise(
        "neg",
        linear=((0,),),
        complex=True,
        derivative=(lambda v: -v.g,),
        torch="neg",
        onnx="Neg",
        triton=Text(floats="-{0}", integers="-{0}"),
        cuda=Text(floats="-{0}", integers="({T})(0 - ({U}){0})"),
    ),
    Pointwise(
        "abs",
        derivative=(lambda v: v.g * v.a.of("sign"),),
        torch="abs",
        onnx="Abs",
        llvm="fabs",
        triton=Text(floats="tl.abs({0})", integers="tl.where({0} < 0, -{0}, {0})"),
        cuda=Text(floats="fabs{f}({0})", integers="({T})({0} < 0 ? 0 - ({U}){0} : ({U}){0})"),
    ),
    Pointwise(
        "sign",
        flat=True,
        torch="sign",
        triton=Text(
            floats="({0} > 0).to({T}) - ({0} < 0).to({T})",
            integers="(({0} > 0).to(tl.int8) - ({0} < 0).to(tl.int8)).to({T})",
            bools="{0}",
        ),
        cuda=Text(
            floats="({T})(({0} > 0) - ({0} < 0))",
            integers="({T})(({0} > 0) - ({0} < 0))",
            bools="{0}",
        ),
    ),
    Pointwise(
        "reciprocal",
        complex=True,
        derivative=(lambda v: -v.g * (v.y * v.y),),
        torch="reciprocal",
        onnx="Reciprocal",
        triton=Text(floats="tl.div_rn(1.0, {0})", doubles="1.0 / {0}"),
        cuda="1.0{f} / {0}",
        accuracy=Accuracy(0.5, 0.5, -1e38, 1e38),
    ),
    Pointwise(
        "hypot",
        arity=2,
        flops=10,
        derivative=(lambda v: v.g * (v.a / v.y), lambda v: v.g * (v.b / v.y)),
        torch="hypot",
        composed=_hypot,
        triton="libdevice.hypot({0}, {1})",
        cuda="hypot{f}({0}, {1})",
    ),
    Pointwise(
        "copysign",
        arity=2,
        derivative=(lambda v: v.g * (v.y / v.a).where(v.a.of("ne", 0), 0), None),
        torch="copysign",
        triton="libdevice.copysign({0}, {1})",
        cuda="copysign{f}({0}, {1})",
    ),
)
