"""Special functions: those of probability and of integrals."""

from __future__ import annotations

import math

from irc.ops.functions.record import Accuracy, Pointwise

FUNCTIONS = (
    Pointwise(
        "erf",
        monotone=True,
        flops=15,
        derivative=(lambda v: v.g * ((v.a * v.a * -1).of("exp") * (2 / math.sqrt(math.pi))),),
        torch="erf",
        onnx="Erf",
        libm="erf",
        triton="tl.erf({0})",
        cuda="erf{f}({0})",
        accuracy=Accuracy(1.2, 1.0, -6.0, 6.0),
    ),
)
