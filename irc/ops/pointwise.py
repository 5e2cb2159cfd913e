"""The pointwise functions: one row each.

A row gives everything that irc knows of a function: how many operands, its reference (a name,
resolved to torch only by interpreters and runtimes), in which operands it is linear (those may be
partial sums; joint operands must be partial together), and the dtype of its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pointwise:
    """One function of scalars applied to tensors elementwise, with numpy broadcasting.

    Attributes:
        arity: the number of operands.
        reference: an ATen function with the same meaning.
        linear: groups of operands; P(sum) passes from all of a group at once, the rest being B.
        monotone: true where P(max) and P(min) pass (non-decreasing in its only operand).
        result: ``same`` as the operands, ``bool``, or ``type`` (given by the op's result type).
        complex: true where it has a meaning for complex operands, with a result as stated here; the
            absolute value, say, is real. What has none is an op of the library's there.
        flops: cost per element, in arithmetic operations, for the roofline.
    """

    arity: int
    reference: str
    linear: tuple[tuple[int, ...], ...] = ()
    monotone: bool = False
    result: Literal["same", "bool", "type"] = "same"
    complex: bool = False
    flops: int = 1


def _p(arity: int, reference: str, flops: int = 1) -> Pointwise:
    return Pointwise(arity, f"aten::{reference}", flops=flops)


def _analytic(reference: str, flops: int = 1) -> Pointwise:
    return Pointwise(1, f"aten::{reference}", complex=True, flops=flops)


def _compare(reference: str) -> Pointwise:
    return Pointwise(2, f"aten::{reference}", result="bool")


# fmt: off
POINTWISE: Mapping[str, Pointwise] = {
    # arithmetic
    "add":         Pointwise(2, "aten::add", linear=((0, 1),), complex=True),
    "sub":         Pointwise(2, "aten::sub", linear=((0, 1),), complex=True),
    "mul":         Pointwise(2, "aten::mul", linear=((0,), (1,)), complex=True),
    "div":         Pointwise(2, "aten::div", linear=((0,),), complex=True),
    "floor_div":   _p(2, "floor_divide"),
    "trunc_div":   _p(2, "_trunc_divide"),
    "remainder":   _p(2, "remainder"),
    "fmod":        _p(2, "fmod"),
    "pow":         Pointwise(2, "aten::pow", complex=True, flops=10),
    "maximum":     _p(2, "maximum"),
    "minimum":     _p(2, "minimum"),
    "atan2":       _p(2, "atan2", 20),
    "neg":         Pointwise(1, "aten::neg", linear=((0,),), complex=True),
    "abs":         _p(1, "abs"),
    "sign":        _p(1, "sign"),
    "reciprocal":  _analytic("reciprocal"),
    # exponentials
    "exp":         Pointwise(1, "aten::exp", monotone=True, flops=10, complex=True),
    "exp2":        Pointwise(1, "aten::exp2", monotone=True, flops=10, complex=True),
    "expm1":       Pointwise(1, "aten::expm1", monotone=True, flops=12, complex=True),
    "log":         _analytic("log", 10),
    "log2":        _analytic("log2", 10),
    "log10":       _analytic("log10", 10),
    "log1p":       _analytic("log1p", 12),
    "sqrt":        _analytic("sqrt", 4),
    "rsqrt":       _analytic("rsqrt", 5),
    # trigonometry
    "sin":         _analytic("sin", 12),
    "cos":         _analytic("cos", 12),
    "tan":         _analytic("tan", 20),
    "asin":        _analytic("asin", 20),
    "acos":        _analytic("acos", 20),
    "atan":        _analytic("atan", 20),
    "sinh":        _analytic("sinh", 20),
    "cosh":        _analytic("cosh", 20),
    "tanh":        Pointwise(1, "aten::tanh", monotone=True, flops=12, complex=True),
    "asinh":       _analytic("asinh", 20),
    "acosh":       _analytic("acosh", 20),
    "atanh":       _analytic("atanh", 20),
    "erf":         Pointwise(1, "aten::erf", monotone=True, flops=15),
    # activations that stay whole, so that plans and kernels read as people speak
    "relu":        Pointwise(1, "aten::relu", monotone=True),
    "sigmoid":     Pointwise(1, "aten::sigmoid", monotone=True, flops=12, complex=True),
    "silu":        _analytic("silu", 13),
    "gelu":        _p(1, "gelu", 18),
    "gelu_tanh":   _p(1, "_gelu_tanh", 18),
    # rounding
    "floor":       Pointwise(1, "aten::floor", monotone=True),
    "ceil":        Pointwise(1, "aten::ceil", monotone=True),
    "round":       Pointwise(1, "aten::round", monotone=True),
    "trunc":       Pointwise(1, "aten::trunc", monotone=True),
    # comparison
    "eq":          Pointwise(2, "aten::eq", result="bool", complex=True),
    "ne":          Pointwise(2, "aten::ne", result="bool", complex=True),
    "lt":          _compare("lt"),
    "le":          _compare("le"),
    "gt":          _compare("gt"),
    "ge":          _compare("ge"),
    "is_nan":      Pointwise(1, "aten::isnan", result="bool"),
    "is_inf":      Pointwise(1, "aten::isinf", result="bool"),
    # logic and bits
    "logical_and": _compare("logical_and"),
    "logical_or":  _compare("logical_or"),
    "logical_xor": _compare("logical_xor"),
    "logical_not": Pointwise(1, "aten::logical_not", result="bool"),
    "bit_and":     _p(2, "bitwise_and"),
    "bit_or":      _p(2, "bitwise_or"),
    "bit_xor":     _p(2, "bitwise_xor"),
    "bit_not":     _p(1, "bitwise_not"),
    "shift_left":  _p(2, "bitwise_left_shift"),
    "shift_right": _p(2, "bitwise_right_shift"),
    # selection and conversion
    "where":       Pointwise(3, "aten::where", linear=((1, 2),), complex=True),
    "copy":        Pointwise(1, "aten::clone", ((0,),), monotone=True, complex=True, flops=0),
    "detach":      Pointwise(1, "aten::clone", ((0,),), monotone=True, complex=True, flops=0),
    "cast":        Pointwise(1, "aten::to", result="type", flops=0, complex=True),
}
# fmt: on
