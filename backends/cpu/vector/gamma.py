"""The logarithm of the gamma function for float32, computed in float64 vectors.

Arguments below 8 are moved up by ``lgamma(x) = lgamma(x + 1) - log(x)``, one logarithm of a product
for all steps; from there Stirling's series holds. Near the roots 1 and 2, where the two parts
cancel, it is its power series. A vector with an argument that is not positive goes to libm. Largest
error in ulp: 0.7, and 2.5 where a vector goes to libm.
"""

from __future__ import annotations

import math

from irc.backends.cpu.vector.builder import Builder, Operand, constant
from irc.backends.cpu.vector.exponentials import absolute, horner
from irc.backends.cpu.vector.logarithms import LN2, log2_double
from irc.backends.cpu.vector.trigonometry import with_rare

LEAST, MOST, SHIFTS = 2.0**-100, 2.0**100, 8
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
EULER = 0.5772156649015329
# zeta(k) - 1 from k = 2 on.
ZETA = (
    0.6449340668482264, 0.2020569031595943, 0.0823232337111382, 0.0369277551433699,
    0.0173430619844491, 0.0083492773819228, 0.0040773561979443, 0.0020083928260822,
    0.0009945751278181, 0.0004941886041195, 0.0002460865533080, 0.0001227133475785,
    0.0000612481350587, 0.0000305882363070,
)  # fmt: skip
AT_ONE = (-EULER, *((-1) ** k * (z + 1) / k for k, z in enumerate(ZETA, 2)))
AT_TWO = (1 - EULER, *((-1) ** k * z / k for k, z in enumerate(ZETA, 2)))


def lgamma(b: Builder, x: Operand) -> Operand:
    """Return ``log(abs(gamma(x)))``."""
    return with_rare(b, x, "lgamma", _is_rare, _of_positive)


def _is_rare(b: Builder, x: Operand) -> Operand:
    low = b.compare("fcmp ule", x, constant(x.type, LEAST))
    return b.binary("or", low, b.compare("fcmp uge", x, constant(x.type, MOST)))


def _of_positive(b: Builder, x: Operand) -> Operand:
    wide = b.convert("fpext", x, "double")
    kind = wide.type
    one, y, product = constant(kind, 1.0), wide, constant(kind, 1.0)
    for _ in range(SHIFTS):
        below = b.compare("fcmp olt", y, constant(kind, float(SHIFTS)))
        product = b.select(below, b.binary("fmul", product, y), product)
        y = b.select(below, b.binary("fadd", y, one), y)
    inverse = b.binary("fdiv", one, y)
    series = horner(b, b.binary("fmul", inverse, inverse), STIRLING)
    total = b.fma(series, inverse, constant(kind, 0.5 * math.log(2 * math.pi)))
    total = b.binary("fsub", total, y)
    power = b.binary("fmul", b.binary("fsub", y, constant(kind, 0.5)), log2_double(b, y))
    power = b.binary("fsub", power, log2_double(b, product))
    result = b.fma(power, constant(kind, LN2), total)
    for root, coefficients in ((1.0, AT_ONE), (2.0, AT_TWO)):
        z = b.binary("fsub", wide, constant(kind, root))
        near = b.compare("fcmp olt", absolute(b, z), constant(kind, 0.25))
        result = b.select(near, b.binary("fmul", z, horner(b, z, coefficients)), result)
    return b.convert("fptrunc", result, "float")
