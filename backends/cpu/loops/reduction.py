"""Accumulators of task.reduce and task.contract."""

from __future__ import annotations

import math
from dataclasses import dataclass

from irc.backends.cpu.loops.nest import Step
from irc.backends.cpu.vector import integers
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.instructions import extremum
from irc.backends.cpu.vector.storage import COMPUTE, HALVES, cast, truth
from irc.dialects.types import is_float


@dataclass(frozen=True)
class Reduction:
    """How one step reduces: its accumulator's dtype, neutral element and combination."""

    step: Step
    source: str

    @property
    def dtype(self) -> str:
        """The accumulator: f32 for halves, i64 for products of integers."""
        if self.step.fn in ("any", "all"):
            return "i1"
        if self.step.kind == "contract" and not is_float(self.step.dtype):
            return "i64"
        return "f32" if self.step.dtype in HALVES else self.step.dtype

    def neutral(self, lanes: int) -> Operand:
        """Return the value that changes nothing."""
        kind = Type(COMPUTE[self.dtype], lanes)
        match self.step.fn:
            case "sum" | "any":
                return constant(kind, 0)
            case "prod" | "all":
                return constant(kind, 1)
            case fn if kind.is_float:
                return constant(kind, -math.inf if fn == "max" else math.inf)
            case fn:
                return constant(kind, _extreme(self.dtype, kind.bits, lowest=fn == "max"))

    def combine(self, b: Builder, x: Operand, y: Operand) -> Operand:
        """Return x and y reduced."""
        kind = x.type
        match self.step.fn:
            case "any":
                return b.binary("or", x, y)
            case "all":
                return b.binary("and", x, y)
            case "sum" | "prod" as fn:
                if kind.element == "i1":
                    return b.binary("or" if fn == "sum" else "and", x, y)
                name = "add" if fn == "sum" else "mul"
                return b.binary(f"f{name}" if kind.is_float else name, x, y)
            case fn if kind.is_float:
                return extremum(b, "ogt" if fn == "max" else "olt", y, x)
            case fn:
                if kind.element == "i1":
                    return b.binary("or" if fn == "max" else "and", x, y)
                return integers.extremum(b, fn, self.dtype == "u8", x, y)

    def accumulate(
        self, b: Builder, total: Operand, values: list[Operand], mask: Operand | None
    ) -> Operand:
        """Add one point's operands (of which a contraction has two) to the accumulator."""
        if self.step.fn in ("any", "all"):
            operands = [truth(b, value) for value in values]
        else:
            operands = [cast(b, value, self.source, self.dtype) for value in values]
        if len(operands) == 2 and total.type.is_float:
            result = b.fma(operands[0], operands[1], total)
            return result if mask is None else b.select(mask, result, total)
        value = operands[0] if len(operands) == 1 else b.binary("mul", *operands)
        if mask is not None:
            value = b.select(mask, value, self.neutral(value.type.lanes))
        return self.combine(b, total, value)

    def horizontal(self, b: Builder, total: Operand) -> Operand:
        """Reduce the lanes to one."""
        width = total.type.lanes
        while width > 1:
            width //= 2
            low = b.shuffle(total, total, range(width))
            high = b.shuffle(total, total, range(width, 2 * width))
            if width == 1:
                low, high = (b.lane(total, i) for i in (0, 1))
            total = self.combine(b, low, high)
        return total

    def finish(self, b: Builder, total: Operand) -> Operand:
        """Convert the accumulator to how the result is kept."""
        if COMPUTE[self.dtype] == COMPUTE[self.step.dtype]:
            return total
        return cast(b, total, self.dtype, self.step.dtype)


def _extreme(dtype: str, bits: int, *, lowest: bool) -> int:
    if dtype in ("u8", "i1"):
        return 0 if lowest else (1 << bits) - 1
    return -(1 << (bits - 1)) if lowest else (1 << (bits - 1)) - 1
