"""Rows of features between memory and scratch: copies, pairs, sums that are stored."""

from __future__ import annotations

from irc.backends.cpu.attention_backward.plan import Groups
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, pack, unpack
from irc.dialects.attention import Place


def define_copy(
    b: Builder, symbol: str, place: Place, groups: Groups, stride: int, lanes: int
) -> None:
    """Define ``void symbol(ptr from, ptr to, i64 rows)``: rows as float32, filled up with zeros."""
    f, memory = b.child(), MEMORY[place.dtype]
    source, target = Operand(PTR, "%from"), Operand(PTR, "%to")
    whole = groups.count // lanes * lanes if place.feature == 1 else 0

    def row(index: Operand, _: list[Operand]) -> list[Operand]:
        start = f.address(source, memory, f.scale(index, stride))
        end = f.address(target, "float", f.scale(index, groups.padded))

        def some(width: int, feature: Operand) -> list[Operand]:
            at = f.address(start, memory, f.scale(feature, place.feature))
            value = unpack(f, f.load(Type(memory, width), at), place.dtype)
            f.store(value, f.address(end, "float", feature))
            return []

        def none(feature: Operand, _: list[Operand]) -> list[Operand]:
            f.store(constant(Type("float"), 0.0), f.address(end, "float", feature))
            return []

        f.loop(f.i64(0), f.i64(whole), lanes, [], lambda i, _: some(lanes, i))
        f.loop(f.i64(whole), f.i64(groups.count), 1, [], lambda i, _: some(1, i))
        f.loop(f.i64(groups.count), f.i64(groups.padded), 1, [], none)
        return []

    f.loop(f.i64(0), Operand(I64, "%rows"), 1, [], row)
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %from, ptr %to, i64 %rows) noinline"
    b.functions[symbol] = f.function(header)


def define_store(
    b: Builder, symbol: str, place: Place, groups: Groups, stride: int, lanes: int
) -> None:
    """Define ``void symbol(ptr from, ptr to, i64 rows)``: rows of sums to where they are kept."""
    f, memory = b.child(), MEMORY[place.dtype]
    source, target = Operand(PTR, "%from"), Operand(PTR, "%to")
    whole = groups.count // lanes * lanes if place.feature == 1 else 0

    def row(index: Operand, _: list[Operand]) -> list[Operand]:
        start = f.address(source, "float", f.scale(index, groups.padded))
        end = f.address(target, memory, f.scale(index, stride))

        def some(width: int, feature: Operand) -> list[Operand]:
            value = f.load(Type("float", width), f.address(start, "float", feature))
            at = f.address(end, memory, f.scale(feature, place.feature))
            f.store(pack(f, value, place.dtype), at)
            return []

        f.loop(f.i64(0), f.i64(whole), lanes, [], lambda i, _: some(lanes, i))
        f.loop(f.i64(whole), f.i64(groups.count), 1, [], lambda i, _: some(1, i))
        return []

    f.loop(f.i64(0), Operand(I64, "%rows"), 1, [], row)
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %from, ptr %to, i64 %rows) noinline"
    b.functions[symbol] = f.function(header)


def define_fill(b: Builder, symbol: str, lanes: int) -> None:
    """Define ``void symbol(ptr to, i64 count)``: zeros, whole vectors of them."""
    f, kind = b.child(), Type("float", lanes)

    def zero(index: Operand, _: list[Operand]) -> list[Operand]:
        f.store(constant(kind, 0.0), f.address(Operand(PTR, "%to"), "float", index))
        return []

    f.loop(f.i64(0), Operand(I64, "%count"), lanes, [], zero)
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %to, i64 %count) noinline"
    b.functions[symbol] = f.function(header)


def define_pairs(b: Builder, symbol: str, groups: Groups, stride: int) -> None:
    """Define ``void symbol(ptr from, ptr to, i64 rows)``: halves as ``[rows / 2][features][2]``.

    The second of an odd last pair is zero, and so are features that only fill up a vector.
    """
    f = b.child()
    source, target, rows = Operand(PTR, "%from"), Operand(PTR, "%to"), Operand(I64, "%rows")
    whole = groups.count // 16 * 16

    def pair(first: Operand, *, alone: bool) -> None:
        low = f.address(source, "i16", f.scale(first, stride))
        high = f.address(low, "i16", f.i64(stride))
        half = f.binary("lshr", first, f.i64(1))
        line = f.address(target, "i16", f.scale(half, 2 * groups.padded))

        def some(index: Operand, lanes: int) -> list[Operand]:
            kind = Type("i16", lanes)
            x = f.load(kind, f.address(low, "i16", index), align=2)
            y = constant(kind, 0) if alone else f.load(kind, f.address(high, "i16", index), align=2)
            at = f.address(line, "i16", f.scale(index, 2))
            order = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
            f.store(f.shuffle(x, y, order) if lanes > 1 else _both(f, x, y), at, align=2)
            return []

        def none(index: Operand, _: list[Operand]) -> list[Operand]:
            f.store(constant(Type("i32"), 0), f.address(line, "i32", index), align=2)
            return []

        f.loop(f.i64(0), f.i64(whole), 16, [], lambda i, _: some(i, 16))
        f.loop(f.i64(whole), f.i64(groups.count), 1, [], lambda i, _: some(i, 1))
        f.loop(f.i64(groups.count), f.i64(groups.padded), 1, [], none)

    def both(first: Operand, _: list[Operand]) -> list[Operand]:
        pair(first, alone=False)
        return []

    even = f.binary("and", rows, f.i64(-2))
    f.loop(f.i64(0), even, 2, [], both)
    f.when(f.compare("icmp ne", even, rows), lambda: pair(even, alone=True))
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %from, ptr %to, i64 %rows) noinline"
    b.functions[symbol] = f.function(header)


def _both(f: Builder, low: Operand, high: Operand) -> Operand:
    """Return two halves as one i32, the low one first in memory."""
    above = f.binary("shl", f.convert("zext", high, "i32"), constant(Type("i32"), 16))
    return f.binary("or", above, f.convert("zext", low, "i32"))
