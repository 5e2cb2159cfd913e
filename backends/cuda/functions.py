"""The pointwise functions in CUDA C++: texts of their records, and the helpers that these call.

``{0}``, ``{1}``, ``{2}`` are operands (names or literals), ``{T}`` the C type of the result,
``{U}`` its unsigned twin, in which integers wrap, and ``{f}`` the suffix of float32 functions and
literals. Half types are held as float. Error of float32 functions: at most 2 ulp, except sinh,
cosh, asinh, acosh, tan, pow and atan2 up to 4 (CUDA C++ Programming Guide, "Mathematical
Functions"); arithmetic, division, sqrt are correctly rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import isfinite

from irc.backends.cuda.instructions import INSTRUCTIONS
from irc.kernels.arithmetic import INTEGERS
from irc.kernels.composed import PARAMETERS, Language, written
from irc.ops.functions import POINTWISE
from irc.ops.functions.record import Pointwise, Text, text

TYPES: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "i64": "long long",
    "i32": "int", "i16": "short", "i8": "signed char", "u8": "unsigned char", "i1": "bool",
}  # fmt: skip
BYTES: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1,
    "i1": 1,
}  # fmt: skip

TEXTS: Mapping[str, Text] = {name: text(function.cuda) for name, function in POINTWISE.items()}
COMPOSED: Mapping[str, Pointwise] = {
    name: function
    for name, function in POINTWISE.items()
    if function.composed and not function.cuda
}
"""Functions that are a helper function, made of their formula."""


def expression(fn: str, operand: str, result: str) -> str | None:
    """Return the template of a function of operands of one dtype, or None where there is none."""
    if operand not in TYPES or result not in TYPES:
        return None
    if fn == "cast":
        return _cast(operand, result)
    known = TEXTS.get(fn, Text())
    if operand == "i1":
        return known.bools or None
    if operand in INTEGERS:
        return known.integers or None
    if fn in COMPOSED:
        return f"irc_{fn}({', '.join(f'{{{i}}}' for i in range(COMPOSED[fn].arity))})"
    return known.floats or None


def _cast(operand: str, result: str) -> str:
    if operand == result and result not in ("f16", "bf16"):
        return "{0}"
    if result == "i1":
        return "{0} != 0"
    if result in ("f16", "bf16"):
        # Rounded now, held in float after.
        return f"irc_float(irc_round<{TYPES[result]}>({{0}}))"
    return "({T}){0}"


def unsigned(dtype: str) -> str:
    """Return the C type in which an integer type wraps; narrow ones are cut off afterwards."""
    return "unsigned long long" if dtype == "i64" else "unsigned"


HELPERS: Mapping[str, str] = {
    "irc_max": """
// The larger one; NaN if either is.
template <typename T> __device__ inline T irc_max(T a, T b) { return a > b || a != a ? a : b; }
""",
    "irc_min": """
// The smaller one; NaN if either is.
template <typename T> __device__ inline T irc_min(T a, T b) { return a < b || a != a ? a : b; }
""",
    "irc_warp_max": """
// Of all lanes of a warp, which all get it; NaN if any is.
__device__ inline float irc_warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x = irc_max(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  return x;
}
""",
    "irc_warp_sum": """
__device__ inline float irc_warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}
""",
    "irc_sigmoid": """
__device__ inline float irc_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline double irc_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
""",
    "irc_remainder": """
// Of the sign of the divisor.
__device__ inline float irc_remainder(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
__device__ inline double irc_remainder(double a, double b) {
  const double rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
template <typename T> __device__ inline T irc_remainder(T a, T b) {
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
""",
    "irc_floor_div": """
template <typename T> __device__ inline T irc_floor_div(T a, T b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
__device__ inline double irc_floor_div(double a, double b) {
  const double rest = fmod(a, b);
  const double quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  const double whole = floor(quotient);
  return b == 0 ? a / b : quotient - whole > 0.5 ? whole + 1 : whole;
}
__device__ inline float irc_floor_div(float a, float b) {
  const float rest = fmodf(a, b);
  const float quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  const float whole = floorf(quotient);
  return b == 0 ? a / b : quotient - whole > 0.5f ? whole + 1 : whole;
}
""",
    "irc_pow": """
// A negative exponent: 1 and -1 have an inverse, all else rounds to 0.
template <typename T> __device__ inline T irc_pow(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == T(-1) ? (b % 2 ? -1 : 1) : 0;
  unsigned long long result = 1, power = a;
  for (; b > 0; b >>= 1) {
    if (b & 1) result *= power;
    power *= power;
  }
  return (T)result;
}
""",
    "irc_float": """
__device__ inline float irc_float(__half x) { return __half2float(x); }
__device__ inline float irc_float(__nv_bfloat16 x) { return __bfloat162float(x); }
""",
    "irc_round": """
template <typename T> __device__ inline T irc_round(double x);
template <> __device__ inline __half irc_round<__half>(double x) { return __double2half(x); }
template <> __device__ inline __nv_bfloat16 irc_round<__nv_bfloat16>(double x) {
  return __double2bfloat16(x);
}
template <typename T> __device__ inline T irc_round(float x);
template <> __device__ inline __half irc_round<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 irc_round<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <typename T> __device__ inline T irc_round(long long x) { return irc_round<T>((double)x); }
template <typename T> __device__ inline T irc_round(int x) { return irc_round<T>((double)x); }
template <typename T> __device__ inline T irc_round(bool x) { return irc_round<T>((float)x); }
""",
    "Vector": """
template <typename T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };
""",
    "irc_pack": """
// Two halves in a register, the first one low.
template <typename T> __device__ inline unsigned irc_pack(float low, float high) {
  const Vector<T, 2> pair = {irc_round<T>(low), irc_round<T>(high)};
  return *reinterpret_cast<const unsigned*>(&pair);
}
""",
}


def _call(fn: str, names: list[str], operand: str, result: str) -> str:
    template = expression(fn, operand, result)
    assert template is not None, fn
    suffix = "" if operand == "f64" else "f"
    return template.format(*names, T=TYPES[result], U=unsigned(result), f=suffix)


def _defined(name: str, dtype: str, text: str) -> str:
    return f"const {TYPES[dtype]} {name} = {text};"


def _number(value: float, dtype: str) -> str:
    if value != value:
        return "NAN"
    if not isfinite(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}{'' if dtype == 'f64' else 'f'}"


@cache
def _composed() -> Mapping[str, str]:
    """Return the helper functions that are formulas, each for float32 and float64."""
    known: dict[str, str] = {}
    language = Language(_call, _defined, _number)
    for fn, function in COMPOSED.items():
        for dtype in ("f32", "f64"):
            statements, result = written(function, dtype, language)
            kind = TYPES[dtype]
            parameters = ", ".join(f"{kind} {each}" for each in PARAMETERS[: function.arity])
            head = f"__device__ inline {kind} irc_{fn}({parameters}) {{"
            lines = [head, *(f"  {line}" for line in statements), f"  return {result};", "}", ""]
            known[f"irc_{fn}"] = known.get(f"irc_{fn}", "\n") + "\n".join(lines)
    return known


def helpers_in(text: str) -> str:
    """Return the definitions of the helper functions that a text uses, in order."""
    known = {**HELPERS, **_composed(), **INSTRUCTIONS}
    wanted: set[str] = set()
    queue = [text]
    while queue:
        names = set(re.findall(r"\b(?:irc_[a-z0-9_]+|Vector)\b", queue.pop()))
        fresh = (names & known.keys()) - wanted
        wanted |= fresh
        queue += [known[name] for name in fresh]
    return "".join(body for name, body in known.items() if name in wanted)
