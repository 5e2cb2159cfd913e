"""How each dtype lies in memory, how it is computed with, and the conversions between dtypes.

Half types are computed in float32 and rounded where they are stored or cast; ``i1`` is a byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.dialects.types import is_float

COMPUTE: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "i64": "i64", "i32": "i32",
    "i16": "i16", "i8": "i8", "u8": "i8", "i1": "i1",
}  # fmt: skip
MEMORY: Mapping[str, str] = {**COMPUTE, "f16": "i16", "bf16": "i16", "i1": "i8"}

HALVES = ("f16", "bf16")


def unpack(b: Builder, raw: Operand, dtype: str) -> Operand:
    """Convert what was loaded to what is computed with."""
    match dtype:
        case "bf16":
            wide = b.convert("zext", raw, "i32")
            return b.convert("bitcast", _shift(b, "shl", wide, 16), "float")
        case "f16" if b.half_unit:
            return b.convert("fpext", b.convert("bitcast", raw, "half"), "float")
        case "f16":
            return _half_to_float(b, raw)
        case "i1":
            return b.compare("icmp ne", raw, constant(raw.type, 0))
        case _:
            return raw


def pack(b: Builder, value: Operand, dtype: str) -> Operand:
    """Convert what was computed to what is stored, rounding to nearest even."""
    match dtype:
        case "bf16":
            return _float_to_bfloat(b, value)
        case "f16" if b.half_unit:
            return b.convert("bitcast", b.convert("fptrunc", value, "half"), "i16")
        case "f16":
            return _float_to_half(b, value)
        case "i1":
            return b.convert("zext", value, "i8")
        case _:
            return value


def cast(b: Builder, value: Operand, source: str, target: str) -> Operand:
    """Convert between dtypes as torch does; halves are rounded at once."""
    if source == target:
        return value
    element = COMPUTE[target]
    if target == "i1":
        return truth(b, value)
    if source == "i1":
        if is_float(target):
            return b.convert("uitofp", value, element)
        return b.convert("zext", value, element)
    if is_float(source) and is_float(target):
        return _float_to_float(b, value, source, target)
    if is_float(target):
        opcode = "uitofp" if source == "u8" else "sitofp"
        wide = b.convert(opcode, value, element)
        return _rounded(b, wide, target)
    if is_float(source):
        return _float_to_int(b, value, target)
    if bits_of(source) > bits_of(target):
        return b.convert("trunc", value, element)
    return b.convert("zext" if source == "u8" else "sext", value, element)


def bits_of(dtype: str) -> int:
    """Return the width of an integer dtype."""
    return Type(COMPUTE[dtype]).bits


def truth(b: Builder, value: Operand) -> Operand:
    """Return ``value != 0`` (NaN is true)."""
    if value.type.element == "i1":
        return value
    opcode = "fcmp une" if value.type.is_float else "icmp ne"
    return b.compare(opcode, value, constant(value.type, 0))


def _float_to_float(b: Builder, value: Operand, source: str, target: str) -> Operand:
    if target == "f64":
        return b.convert("fpext", value, "double")
    if source == "f64":
        value = b.convert("fptrunc", value, "float")
    return _rounded(b, value, target)


def _rounded(b: Builder, value: Operand, dtype: str) -> Operand:
    return unpack(b, pack(b, value, dtype), dtype) if dtype in HALVES else value


def _float_to_int(b: Builder, value: Operand, target: str) -> Operand:
    # As C compilers do on x86: small integers through i32, u8 through i64; freeze, since
    # a value out of range is an arbitrary number and not undefined behaviour.
    through = {"i8": "i32", "i16": "i32", "u8": "i64"}.get(target, COMPUTE[target])
    wide = b.convert("fptosi", value, through)
    wide = b.emit(wide.type, f"freeze {wide}")
    return b.convert("trunc", wide, COMPUTE[target])


def _shift(b: Builder, opcode: str, value: Operand, count: int) -> Operand:
    return b.binary(opcode, value, constant(value.type, count))


_ROUNDED = {16: "512", 8: "256"}
"""Widths of the instruction that rounds to bfloat16, by lanes."""
_DENORMAL = 0x20
"""Of the classes of vfpclassps."""


def _float_to_bfloat(b: Builder, value: Operand) -> Operand:
    lanes = value.type.lanes
    if not b.bfloat_unit or lanes not in _ROUNDED:
        return _by_integers(b, value)
    kind, width = value.type.of("bfloat"), _ROUNDED[lanes]
    rounded = b.call(kind, f"llvm.x86.avx512bf16.cvtneps2bf16.{width}", value)
    rounded = b.convert("bitcast", rounded, "i16")
    # The instruction takes denormals for zeros; all else it rounds as integers do, NaN included.
    which = constant(Type("i32"), _DENORMAL)
    denormal = b.call(value.type.of("i1"), f"llvm.x86.avx512.fpclass.ps.{width}", value, which)
    mask = b.emit(Type(f"i{lanes}"), f"bitcast {denormal} to i{lanes}")
    some = b.compare("icmp ne", mask, Operand(mask.type, "0"))
    return b.unless(some, rounded, lambda: _by_integers(b, value))


def _by_integers(b: Builder, value: Operand) -> Operand:
    bits = b.convert("bitcast", value, "i32")
    odd = b.binary("and", _shift(b, "lshr", bits, 16), constant(bits.type, 1))
    bias = b.binary("add", odd, constant(bits.type, 0x7FFF))
    rounded = _shift(b, "lshr", b.binary("add", bits, bias), 16)
    # A NaN keeps its sign and high payload bits and becomes quiet.
    quiet = b.binary("or", _shift(b, "lshr", bits, 16), constant(bits.type, 0x40))
    nan = b.compare("fcmp uno", value, value)
    return b.convert("trunc", b.select(nan, quiet, rounded), "i16")


def _half_to_float(b: Builder, raw: Operand) -> Operand:
    wide = b.convert("zext", raw, "i32")
    kind = wide.type
    magnitude = _shift(b, "shl", b.binary("and", wide, constant(kind, 0x7FFF)), 13)
    # Scaling by 2^112 rebias exponents, denormals included; infinities and NaN pass 2^16.
    scaled = b.binary(
        "fmul",
        b.convert("bitcast", magnitude, "float"),
        constant(kind.of("float"), 2.0**112),
    )
    special = b.compare("fcmp oge", scaled, constant(scaled.type, 65536.0))
    bits = b.convert("bitcast", scaled, "i32")
    bits = b.select(special, b.binary("or", bits, constant(kind, 0x7F800000)), bits)
    sign = _shift(b, "shl", b.binary("and", wide, constant(kind, 0x8000)), 16)
    return b.convert("bitcast", b.binary("or", bits, sign), "float")


def _float_to_half(b: Builder, value: Operand) -> Operand:
    bits = b.convert("bitcast", value, "i32")
    kind = bits.type
    sign = b.binary("and", bits, constant(kind, 0x80000000))
    low = b.binary("xor", bits, sign)
    # Denormal results: adding 0.5 leaves the rounded half in the low bits of the sum.
    half = constant(kind.of("float"), 0.5)
    small = b.binary("fadd", b.convert("bitcast", low, "float"), half)
    small = b.binary("sub", b.convert("bitcast", small, "i32"), constant(kind, 0x3F000000))
    odd = b.binary("and", _shift(b, "lshr", low, 13), constant(kind, 1))
    bias = b.binary("add", odd, constant(kind, (15 - 127) * (1 << 23) + 0xFFF))
    normal = _shift(b, "lshr", b.binary("add", low, bias), 13)
    is_nan = b.compare("icmp ugt", low, constant(kind, 0x7F800000))
    over = b.select(is_nan, constant(kind, 0x7E00), constant(kind, 0x7C00))
    result = b.select(b.compare("icmp ult", low, constant(kind, 0x38800000)), small, normal)
    result = b.select(b.compare("icmp uge", low, constant(kind, 0x47800000)), over, result)
    result = b.binary("or", result, _shift(b, "lshr", sign, 16))
    return b.convert("trunc", result, "i16")
