"""Text of one LLVM function, written instruction by instruction.

A scalar is a vector of one lane: every method works for both, so each kernel is described once and
written for vectors, for tails and for values that are the same in all lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from irc.dialects.size import Size

BITS = {
    "double": 64, "float": 32, "half": 16, "bfloat": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8,
    "i1": 1, "ptr": 64,
}  # fmt: skip
_MANGLED = {"double": "f64", "float": "f32", "half": "f16", "ptr": "p0"}


@dataclass(frozen=True)
class Type:
    """An LLVM type: an element and a number of lanes (1: a scalar)."""

    element: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.element if self.lanes == 1 else f"<{self.lanes} x {self.element}>"

    def of(self, element: str) -> Type:
        """Return as many lanes of another element."""
        return Type(element, self.lanes)

    @property
    def bits(self) -> int:
        """The width of one lane."""
        return BITS[self.element]

    @property
    def is_float(self) -> bool:
        """True for floating-point elements."""
        return self.element in ("double", "float", "half")

    @property
    def mangled(self) -> str:
        """The name of the type in intrinsics, ``v16f32``."""
        name = _MANGLED.get(self.element, self.element)
        return name if self.lanes == 1 else f"v{self.lanes}{name}"


I64, I32, PTR = Type("i64"), Type("i32"), Type("ptr")


@dataclass(frozen=True)
class Operand:
    """A typed operand: a register or a constant (then ``literal`` holds its value)."""

    type: Type
    ref: str
    literal: float | int | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


Count: TypeAlias = int | Size | Operand
"""A number that is known, that has a name, or that code computes."""
SIZES = ", ptr %sizes"
"""The parameter of a function whose kernel takes sizes: their values, in order of their names."""


def constant(kind: Type, value: float) -> Operand:
    """Return a literal in all lanes."""
    if kind.element == "i1":
        text = "true" if value else "false"
    elif not kind.is_float:
        bits = kind.bits
        value = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        text = str(value)
    else:
        text = _hex(kind.element, float(value))
    return Operand(kind, text if kind.lanes == 1 else f"splat ({kind.element} {text})", value)


def _hex(element: str, value: float) -> str:
    if element == "float":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


class Builder:
    """Writes one function; ``functions`` gathers the helpers and declarations that it needs."""

    def __init__(
        self,
        *,
        fma: bool = True,
        half: bool = True,
        bfloat: bool = False,
        wide: bool = False,
        symbols: Sequence[str] = (),
    ) -> None:
        self.fma_unit, self.half_unit, self.bfloat_unit, self.wide_unit = fma, half, bfloat, wide
        self.symbols = tuple(symbols)
        self.entry: list[str] = []
        self._sizes: dict[Size, Operand] = {}
        self._names: dict[str, Operand] = {}
        self.lines: list[str] = []
        self.functions: dict[str, str] = {}
        self.block = "entry"
        self._count = 0

    def child(self) -> Builder:
        """Return a builder of a helper function for the same machine."""
        other = Builder(
            fma=self.fma_unit,
            half=self.half_unit,
            bfloat=self.bfloat_unit,
            wide=self.wide_unit,
            symbols=self.symbols,
        )
        other.functions = self.functions
        return other

    # instructions

    def fresh(self) -> str:
        """Return an unused register name."""
        self._count += 1
        return f"%v{self._count}"

    def emit(self, kind: Type, text: str) -> Operand:
        """Append ``%v = text``."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Operand(kind, name)

    def do(self, text: str) -> None:
        """Append an instruction without result."""
        self.lines.append(f"  {text}")

    def binary(self, opcode: str, a: Operand, b: Operand) -> Operand:
        """Append ``fadd``, ``and``, ``shl``..."""
        return self.emit(a.type, f"{opcode} {a}, {b.ref}")

    def compare(self, opcode: str, a: Operand, b: Operand) -> Operand:
        """Append ``fcmp olt``, ``icmp eq``...; the result has i1 lanes."""
        return self.emit(a.type.of("i1"), f"{opcode} {a}, {b.ref}")

    def select(self, condition: Operand, a: Operand, b: Operand) -> Operand:
        """Append a choice by lane."""
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def convert(self, opcode: str, a: Operand, element: str) -> Operand:
        """Append ``fpext``, ``trunc``, ``bitcast``... to another element."""
        kind = a.type.of(element)
        return a if kind == a.type else self.emit(kind, f"{opcode} {a} to {kind}")

    def call(self, kind: Type, name: str, *args: Operand, flags: str = "") -> Operand:
        """Append a call of an external function or intrinsic (declared once)."""
        self.declare(str(kind), name, args)
        return self.emit(kind, f"call {flags}{kind} @{name}({', '.join(map(str, args))})")

    def invoke(self, name: str, *args: Operand) -> None:
        """Append a call without result."""
        self.declare("void", name, args)
        self.do(f"call void @{name}({', '.join(map(str, args))})")

    def declare(self, result: str, name: str, args: Sequence[Operand]) -> None:
        """Declare a function unless it is defined or declared already."""
        types = ", ".join(str(arg.type) for arg in args)
        self.functions.setdefault(name, f"declare {result} @{name}({types})")

    def intrinsic(self, name: str, *args: Operand) -> Operand:
        """Append ``llvm.NAME`` whose operands and result have one type."""
        kind = args[0].type
        return self.call(kind, f"llvm.{name}.{kind.mangled}", *args)

    def with_sign(self, size: Operand, x: Operand) -> Operand:
        """Return a number with the sign of another one, by their bits.

        Not ``llvm.copysign``: code generation reads the sign from what ``x`` was rounded from, and
        where that is a double that became a half, it calls a function that is not there.
        """
        whole = f"i{x.type.bits}"
        minus = constant(x.type.of(whole), -(1 << (x.type.bits - 1)))
        rest = constant(minus.type, (1 << (x.type.bits - 1)) - 1)
        sign = self.binary("and", self.convert("bitcast", x, whole), minus)
        plain = self.binary("and", self.convert("bitcast", size, whole), rest)
        return self.convert("bitcast", self.binary("or", plain, sign), x.type.element)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Operand:
        """Append ``a * b + c``, in one rounding where the machine can."""
        if self.fma_unit:
            return self.intrinsic("fma", a, b, c)
        return self.binary("fadd", self.binary("fmul", a, b), c)

    # vectors

    def splat(self, a: Operand, lanes: int) -> Operand:
        """Return a scalar in all lanes."""
        if a.type.lanes == lanes:
            return a
        kind = Type(a.type.element, lanes)
        if a.literal is not None:
            return constant(kind, a.literal)
        one = self.emit(kind, f"insertelement {kind} poison, {a}, i64 0")
        return self.emit(
            kind, f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def shuffle(self, a: Operand, b: Operand, indices: Sequence[int]) -> Operand:
        """Return lanes picked from a and b."""
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in indices)
        kind = Type(a.type.element, len(indices))
        return self.emit(kind, f"shufflevector {a}, {b}, <{len(indices)} x i32> <{mask}>")

    def lane(self, a: Operand, index: int) -> Operand:
        """Return one lane as a scalar."""
        if a.type.lanes == 1:
            return a
        return self.emit(Type(a.type.element), f"extractelement {a}, i64 {index}")

    def insert(self, a: Operand, value: Operand, index: int) -> Operand:
        """Return a with one lane replaced."""
        return self.emit(a.type, f"insertelement {a}, {value}, i64 {index}")

    def iota(self, kind: Type) -> Operand:
        """Return 0, 1, 2... in the lanes."""
        if kind.lanes == 1:
            return constant(kind, 0)
        text = ", ".join(f"{kind.element} {i}" for i in range(kind.lanes))
        return Operand(kind, f"<{text}>")

    # integers and memory

    def i64(self, value: Count) -> Operand:
        """Return a number as i64; one with names is computed once, where the function begins."""
        if isinstance(value, Operand):
            return value
        if not isinstance(value, Size):
            return constant(I64, value)
        if value not in self._sizes:
            self._sizes[value] = self._polynomial(value)
        return self._sizes[value]

    def _polynomial(self, size: Size) -> Operand:
        lines, self.lines = self.lines, self.entry
        total = self.i64(0)
        for monomial, coefficient in size.terms:
            term = self.i64(coefficient)
            for name, power in monomial:
                for _ in range(power):
                    term = self.times(term, self._symbol(name))
            total = self.add(total, term)
        self.lines = lines
        return total

    def _symbol(self, name: str) -> Operand:
        if name not in self._names:
            index, at = self.symbols.index(name), f"%place.{name}"
            self.entry.append(f"  {at} = getelementptr i64, ptr %sizes, i64 {index}")
            self.entry.append(f"  %size.{name} = load i64, ptr {at}, align 8")
            self._names[name] = Operand(I64, f"%size.{name}")
        return self._names[name]

    @property
    def size_argument(self) -> str:
        """What is added to the parameters of a helper function, and to its arguments."""
        return SIZES if self.symbols else ""

    def add(self, a: Operand, b: Operand) -> Operand:
        """Append an i64 sum, folding literals."""
        if a.literal == 0:
            return b
        if b.literal == 0:
            return a
        if a.literal is not None and b.literal is not None:
            return self.i64(int(a.literal + b.literal))
        return self.binary("add nsw", a, b)

    def times(self, a: Operand, b: Operand) -> Operand:
        """Append an i64 product, folding literals."""
        if b.literal is not None:
            return self.scale(a, int(b.literal))
        if a.literal is not None:
            return self.scale(b, int(a.literal))
        return self.binary("mul nsw", a, b)

    def parts(self, size: Count, part: int) -> Operand:
        """Append how many parts a size has, the last one perhaps short, folding literals."""
        whole = self.i64(size)
        if whole.literal is not None:
            return self.i64(-(-int(whole.literal) // part))
        return self.binary("udiv", self.add(whole, self.i64(part - 1)), self.i64(part))

    def product(self, sizes: Sequence[Count]) -> Operand:
        """Append the product of sizes, folding literals."""
        total = self.i64(1)
        for size in sizes:
            total = self.times(total, self.i64(size))
        return total

    def scale(self, a: Operand, factor: int | Size) -> Operand:
        """Append an i64 product with a constant, folding literals."""
        if isinstance(factor, Size):
            return self.times(a, self.i64(factor))
        if factor == 0 or a.literal == 0:
            return self.i64(0)
        if factor == 1:
            return a
        if a.literal is not None:
            return self.i64(int(a.literal * factor))
        return self.binary("mul nsw", a, self.i64(factor))

    def address(self, base: Operand, element: str, index: Operand) -> Operand:
        """Append the address of an element."""
        if index.literal == 0:
            return base
        return self.emit(PTR, f"getelementptr inbounds {element}, {base}, {index}")

    def load(self, kind: Type, pointer: Operand, align: int | None = None) -> Operand:
        """Append a load, aligned to the element unless told otherwise."""
        return self.emit(kind, f"load {kind}, {pointer}, align {align or max(kind.bits // 8, 1)}")

    def store(self, value: Operand, pointer: Operand, align: int | None = None) -> None:
        """Append a store, aligned to the element unless told otherwise."""
        self.do(f"store {value}, {pointer}, align {align or max(value.type.bits // 8, 1)}")

    # control flow

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def loop(
        self,
        start: Operand,
        stop: Operand,
        step: int,
        carried: Sequence[Operand],
        body: Callable[[Operand, list[Operand]], Sequence[Operand]],
    ) -> list[Operand]:
        """Append ``for i in range(start, stop, step)``; body gives the next carried values."""
        tag = self.fresh()[2:]
        head, inside, done, before = f"head{tag}", f"body{tag}", f"done{tag}", self.block
        self.do(f"br label %{head}")
        self.label(head)
        index = Operand(start.type, self.fresh())
        phis = [Operand(value.type, self.fresh()) for value in carried]
        at = len(self.lines)
        more = self.compare("icmp slt", index, stop)
        self.do(f"br {more}, label %{inside}, label %{done}")
        self.label(inside)
        after = body(index, list(phis))
        following = self.binary("add nsw", index, constant(index.type, step))
        latch = self.block
        self.do(f"br label %{head}")
        self.lines[at:at] = [
            f"  {phi.ref} = phi {phi.type} [ {first.ref}, %{before} ], [ {last.ref}, %{latch} ]"
            for phi, first, last in zip(
                [index, *phis], [start, *carried], [following, *after], strict=True
            )
        ]
        self.label(done)
        return phis

    def when(self, condition: Operand, body: Callable[[], None]) -> None:
        """Append ``if condition: body``."""
        self.either(condition, body, lambda: None)

    def either(
        self, condition: Operand, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Append ``if condition: then else: other``."""
        tag = self.fresh()[2:]
        self.do(f"br {condition}, label %then{tag}, label %else{tag}")
        for name, body in ((f"then{tag}", then), (f"else{tag}", other)):
            self.label(name)
            body()
            self.do(f"br label %join{tag}")
        self.label(f"join{tag}")

    def unless(self, rare: Operand, usual: Operand, other: Callable[[], Operand]) -> Operand:
        """Append ``other() if rare else usual``; the branch is laid out of the way."""
        tag, before = self.fresh()[2:], self.block
        weights = '!prof !{!"branch_weights", i32 1, i32 1048575}'
        self.do(f"br {rare}, label %rare{tag}, label %join{tag}, {weights}")
        self.label(f"rare{tag}")
        value, after = other(), self.block
        self.do(f"br label %join{tag}")
        self.label(f"join{tag}")
        ways = f"[ {usual.ref}, %{before} ], [ {value.ref}, %{after} ]"
        return self.emit(usual.type, f"phi {usual.type} {ways}")

    def function(self, header: str) -> str:
        """Return the whole function."""
        return "\n".join([f"{header} {{", "entry:", *self.entry, *self.lines, "}"])
