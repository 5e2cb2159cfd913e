"""Activations that stay whole, so that plans and kernels read as people speak."""

from __future__ import annotations

import math

from irc.ops.functions.formula import Expression, Operands
from irc.ops.functions.record import Accuracy, Pointwise, Text


def _gelu(v: Operands) -> Expression:
    chance = 0.5 * (1 + (v.a * math.sqrt(0.5)).of("erf"))
    density = (v.a * v.a * -0.5).of("exp") * (1 / math.sqrt(2 * math.pi))
    return v.g * (chance + v.a * density)


def _gelu_tanh(v: Operands) -> Expression:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    square = v.a * v.a
    t = (scale * v.a * (1 + cubic * square)).of("tanh")
    slope = scale * (1 + 3 * cubic * square)
    return v.g * 0.5 * ((1 + t) + v.a * (1 - t * t) * slope)


def _silu(v: Operands) -> Expression:
    s = v.a.of("sigmoid")
    return v.g * s * (1 + v.a * (1 - s))


FUNCTIONS = (
    Pointwise(
        "relu",
        monotone=True,
        derivative=(lambda v: v.g.number(0).where(v.y.of("le", 0), v.g),),  # all of it at NaN
        torch="relu",
        onnx="Relu",
        triton=Text(
            floats="tl.where({0} <= 0, 0.0, {0})", integers="tl.where({0} > 0, {0}, 0).to({T})"
        ),
        cuda=Text(floats="{0} <= 0 ? 0 : {0}", integers="{0} > 0 ? {0} : ({T})0"),
    ),
    Pointwise(
        "sigmoid",
        monotone=True,
        complex=True,
        flops=12,
        derivative=(lambda v: v.g * (v.y * (1 - v.y)),),
        torch="sigmoid",
        onnx="Sigmoid",
        triton=Text(floats="_sigmoid({0})", doubles="1.0 / (1.0 + tl.exp(-{0}))"),
        cuda="irc_sigmoid({0})",
        accuracy=Accuracy(2.2, 3.0, -87.0, 90.0),
    ),
    Pointwise(
        "silu",
        complex=True,
        flops=13,
        derivative=(_silu,),
        torch="silu",
        triton=Text(floats="{0} * _sigmoid({0})", doubles="{0} / (1.0 + tl.exp(-{0}))"),
        cuda="{0} * irc_sigmoid({0})",
        accuracy=Accuracy(3.0, 4.0, -80.0, 90.0),
    ),
    Pointwise(
        "gelu",
        flops=18,
        derivative=(_gelu,),
        triton="{0} * 0.5 * (1.0 + tl.erf({0} * 0.7071067811865476))",
        cuda="{0} * 0.5{f} * (1.0{f} + erf{f}({0} * 0.7071067811865476{f}))",
        accuracy=Accuracy(9.0, 120.0, -10.0, 20.0, 4.5),
    ),
    Pointwise(
        "gelu_tanh",
        aten="_gelu_tanh",
        flops=18,
        derivative=(_gelu_tanh,),
        triton=Text(floats="_gelu_tanh({0})", doubles="_gelu_tanh_f64({0})"),
        # x / 2 * (1 + tanh(u)) is x * sigmoid(2 u).
        cuda="{0} * irc_sigmoid(1.5957691216057308{f} * ({0} + 0.044715{f} * {0}*{0}*{0}))",
        accuracy=Accuracy(6.0, 20.0, -2.0, 20.0),
    ),
)
