"""How exact the functions of the CPU backend are: the largest error in ulp that each may have.

An ulp is the distance between the neighbours of the exact result in its dtype. The bounds hold on
the stated range of arguments, over all of which they are measured (``python -m tests.numerics``
prints what is found; a test fails above a bound). Outside it results vanish or overflow, or (sin,
cos, tan of float32) come from the C library, as all of float64 but the plain ones do; there its
errors are the bounds.

What is rounded to bfloat16 is within 0.55 ulp of bfloat16 where results are above 2e-36
(:mod:`irc.backends.cpu.vector.rounded`; measured for every argument there is).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Accuracy:
    """The bounds of one function.

    Attributes:
        f32: largest error of float32 in ulp.
        f64: largest error of float64 in ulp.
        low: least argument of the range.
        high: greatest argument of the range.
        without_fma: the bound of float32 on machines without fused multiply-add, as a multiple.
    """

    f32: float
    f64: float
    low: float
    high: float
    without_fma: float = 1.5


# fmt: off
ACCURACY: Mapping[str, Accuracy] = {
    "sqrt":       Accuracy(0.5, 0.5, 0.0, 3e38),
    "reciprocal": Accuracy(0.5, 0.5, -1e38, 1e38),
    "rsqrt":      Accuracy(1.5, 1.5, 1e-38, 3e38),
    "exp":        Accuracy(1.0, 1.0, -104.0, 88.7),
    "exp2":       Accuracy(1.1, 1.0, -150.0, 127.9),
    "expm1":      Accuracy(1.5, 1.0, -20.0, 88.7),
    "log":        Accuracy(1.1, 1.0, 1e-45, 3e38),
    "log2":       Accuracy(2.1, 1.0, 1e-45, 3e38),
    "log10":      Accuracy(3.0, 2.0, 1e-45, 3e38),
    "log1p":      Accuracy(1.6, 1.0, -1.0, 3e38),
    "sin":        Accuracy(1.5, 1.0, -1e6, 1e6),
    "cos":        Accuracy(1.5, 1.0, -1e6, 1e6),
    "tan":        Accuracy(3.0, 1.0, -1e6, 1e6),
    "asin":       Accuracy(1.0, 1.0, -1.0, 1.0),
    "acos":       Accuracy(1.0, 1.0, -1.0, 1.0),
    "atan":       Accuracy(1.0, 1.0, -1e38, 1e38),
    "sinh":       Accuracy(2.0, 2.0, -88.0, 88.0),
    "cosh":       Accuracy(2.0, 2.0, -88.0, 88.0),
    "tanh":       Accuracy(2.6, 2.5, -20.0, 20.0),
    "asinh":      Accuracy(2.0, 2.0, -1e38, 1e38),
    "acosh":      Accuracy(2.0, 2.0, 1.0, 3e38),
    "atanh":      Accuracy(2.0, 2.0, -1.0, 1.0),
    "erf":        Accuracy(1.2, 1.0, -6.0, 6.0),
    "sigmoid":    Accuracy(2.2, 3.0, -87.0, 90.0),
    "silu":       Accuracy(3.0, 4.0, -80.0, 90.0),
    "gelu":       Accuracy(9.0, 120.0, -10.0, 20.0, 4.5),
    "gelu_tanh":  Accuracy(6.0, 20.0, -2.0, 20.0),
}
# fmt: on
