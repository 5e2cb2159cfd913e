"""The pointwise functions in Triton: texts of their records, and the helpers that these call.

``{0}``, ``{1}``, ``{2}`` are operands (names, never expressions), ``{T}`` is the type of the
result. Half types are held as float32 here, so a row for floats is for float32 and float64.

Error of float32 functions, in ulp: exp and sigmoid 2 + |x| (the exponent is rounded once before
``ex2``), exp2 and rsqrt 2, sinh to atanh and pow up to 5, all other functions of ``libdevice`` at
most 2 (CUDA C++ Programming Guide, "Mathematical Functions"); arithmetic, division and sqrt are
correctly rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import isfinite

from irc.kernels.arithmetic import INTEGERS
from irc.kernels.composed import PARAMETERS, Language, written
from irc.ops.functions import POINTWISE
from irc.ops.functions.record import Pointwise, Text, text

TYPES: Mapping[str, str] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "i64": "tl.int64", "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8",
    "u8": "tl.uint8", "i1": "tl.int1",
}  # fmt: skip
SIGNATURES: Mapping[str, str] = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16",
    "i64": "*i64", "i32": "*i32", "i16": "*i16", "i8": "*i8", "u8": "*u8", "i1": "*i1",
}  # fmt: skip

TEXTS: Mapping[str, Text] = {name: text(function.triton) for name, function in POINTWISE.items()}
COMPOSED: Mapping[str, Pointwise] = {
    name: function
    for name, function in POINTWISE.items()
    if function.composed and not function.triton
}
"""Functions that are a helper function, made of their formula."""


def expression(fn: str, operand: str, result: str) -> str | None:
    """Return the template of a function of operands of one dtype, or None where Triton has none.

    Args:
        fn: the function; ``cast`` gives the conversion from ``operand`` to ``result``.
        operand: the dtype of the operands (of ``where``: of its branches).
        result: the dtype of the result.
    """
    if operand not in TYPES or result not in TYPES:
        return None
    if fn == "cast":
        return _cast(operand, result)
    known = TEXTS.get(fn, Text())
    if operand == "i1":
        return known.bools or None
    if operand == "u8" and fn == "pow":
        return "_pow_natural({0}, {1})"
    if operand in INTEGERS:
        return known.integers or None
    if fn in COMPOSED:
        operands = ", ".join(f"{{{i}}}" for i in range(COMPOSED[fn].arity))
        return f"_{fn}_{'f64' if operand == 'f64' else 'f32'}({operands})"
    return (known.doubles if operand == "f64" else "") or known.floats or None


def _cast(operand: str, result: str) -> str:
    if operand == result and result not in ("f16", "bf16"):
        return "{0}"
    if result == "i1":
        return "{0} != 0"
    if result in ("f16", "bf16"):
        # Rounded now, held in float32 after.
        return f"{{0}}.to({TYPES[result]}).to(tl.float32)"
    return f"{{0}}.to({TYPES[result]})"


HELPERS: Mapping[str, str] = {
    "_maximum": """
@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_minimum": """
@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_max_int": """
@triton.jit
def _max_int(a, b):
    return tl.where(a > b, a, b)
""",
    "_min_int": """
@triton.jit
def _min_int(a, b):
    return tl.where(a < b, a, b)
""",
    "_product": """
@triton.jit
def _product(a, b):
    return a * b
""",
    "_sigmoid": """
@triton.jit
def _sigmoid(x):
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))
""",
    "_gelu_tanh": """
@triton.jit
def _gelu_tanh(x):
    # x / 2 * (1 + tanh(u)) is x * sigmoid(2 u).
    return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
""",
    "_gelu_tanh_f64": """
@triton.jit
def _gelu_tanh_f64(x):
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
""",
    "_remainder": """
@triton.jit
def _remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "_floor_div": """
@triton.jit
def _floor_div(a, b):
    rest = libdevice.fmod(a, b)
    quotient = tl.div_rn(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    return tl.where(b == 0, tl.div_rn(a, b), whole)
""",
    "_floor_div_f64": """
@triton.jit
def _floor_div_f64(a, b):
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    return tl.where(b == 0, a / b, whole)
""",
    "_floor_div_int": """
@triton.jit
def _floor_div_int(a, b):
    quotient = a // b
    return quotient - (((a % b) != 0) & ((a < 0) != (b < 0))).to(quotient.dtype)
""",
    "_remainder_int": """
@triton.jit
def _remainder_int(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "_pow_natural": """
@triton.jit
def _pow_natural(a, b):
    result = (a == a).to(a.dtype) + b * 0
    power = a + b * 0
    rest = b + a * 0
    for _ in range(63):
        result = tl.where((rest > 0) & ((rest & 1) != 0), result * power, result)
        power = power * power
        rest = rest >> 1
    return result
""",
    "_pow_int": """
@triton.jit
def _pow_int(a, b):
    # A negative exponent: 1 and -1 have an inverse, all else rounds to 0.
    odd = (b & 1) != 0
    inverse = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0)).to(a.dtype)
    return tl.where(b < 0, inverse, _pow_natural(a, b))
""",
}


def _call(fn: str, names: list[str], operand: str, result: str) -> str:
    template = expression(fn, operand, result)
    assert template is not None, fn
    return template.format(*names, T=TYPES[result])


def _number(value: float, dtype: str) -> str:
    text = repr(value) if isfinite(value) else f'float("{value}")'
    return f"tl.full((), {text}, {TYPES[dtype]})"


@cache
def _helpers() -> Mapping[str, str]:
    """Return all helper functions: those above, and those that are formulas."""
    language = Language(_call, lambda name, _, text: f"{name} = {text}", _number)
    known = dict(HELPERS)
    for fn, function in COMPOSED.items():
        for dtype in ("f32", "f64"):
            statements, result = written(function, dtype, language)
            head = f"def _{fn}_{dtype}({', '.join(PARAMETERS[: function.arity])}):"
            lines = ["", "@triton.jit", head, *(f"    {line}" for line in statements)]
            known[f"_{fn}_{dtype}"] = "\n".join([*lines, f"    return {result}", ""])
    return known


def helpers_in(text: str) -> str:
    """Return the definitions of the helper functions that a text uses, in order."""
    known = _helpers()
    wanted: set[str] = set()
    queue = [text]
    while queue:
        for name in set(re.findall(r"\b_[a-z]\w*", queue.pop())):
            if name in known and name not in wanted:
                wanted.add(name)
                queue.append(known[name])
    # A helper stands before the first that uses it: `_sigmoid` is in the table before its users.
    return "\n".join(body for name, body in known.items() if name in wanted)
