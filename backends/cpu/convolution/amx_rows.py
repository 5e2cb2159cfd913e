"""The rows of windows for tile registers (AMX): what a block of places multiplies, gathered once.

    [tile][32 of the sum][place][32]

Behind the end of a row are zeros, as far as the last tile of the sum reads; a panel whose rows end
before that, or that has pairs of which one half is no channel, is copied with zeros there.
"""

from __future__ import annotations

from irc.backends.cpu.amx.tiles import ROW_BYTES, ROWS
from irc.backends.cpu.convolution.amx_plan import DEPTH, Rows
from irc.backends.cpu.vector.builder import I32, PTR, Builder, Operand, Type, constant


def gather_function(b: Builder, symbol: str, rows: Rows, pitch: int) -> None:
    """Define ``void symbol(ptr table, ptr rows)``: copy the windows of a tile's places.

    ``pitch`` is the number of pointers from tap to tap of the table.
    """
    f = b.child()
    table, target = Operand(PTR, "%table"), Operand(PTR, "%rows")
    count, every = f.i64(sum(rows.halves)), rows.taps_at_a_time
    lines = every * rows.even // DEPTH

    def taps(group: Operand, number: int) -> None:
        """Copy so many taps of all places."""
        pointers = f.address(table, "ptr", f.scale(group, every * pitch))
        start = f.address(target, "i8", f.scale(group, lines * rows.step))

        def place(i: Operand, _: list[Operand]) -> list[Operand]:
            own = f.address(pointers, "ptr", i)
            at = f.address(start, "i8", f.scale(i, ROW_BYTES))
            sources = [
                f.load(PTR, f.address(own, "ptr", f.i64(t * pitch)), 8) for t in range(number)
            ]
            for line in range(-(-number * rows.even // DEPTH)):
                value = _line(f, rows, sources, line)
                f.store(value, f.address(at, "i8", f.i64(line * rows.step)))
            return []

        f.loop(f.i64(0), count, 1, [], place)

    def group(index: Operand, _: list[Operand]) -> list[Operand]:
        taps(index, every)
        return []

    whole, rest = divmod(rows.taps, every)
    f.loop(f.i64(0), f.i64(whole), 1, [], group)
    if rest:
        taps(f.i64(whole), rest)
    f.do("ret void")
    b.functions[symbol] = f.function(
        f"define internal void @{symbol}(ptr %table, ptr %rows) noinline"
    )


def _line(f: Builder, rows: Rows, sources: list[Operand], line: int) -> Operand:
    """Load 32 of a row whose taps lie behind one another: from each tap what it has of them."""
    kind = Type("i16", DEPTH)
    value = Operand(kind, "zeroinitializer")
    for t, source in enumerate(sources):
        skip = line * DEPTH - t * rows.even
        valid = [0 <= skip + lane < rows.channels for lane in range(DEPTH)]
        if not any(valid):
            continue
        # Lanes that are masked off touch no memory: the vector may begin before the tap.
        at = f.emit(PTR, f"getelementptr i8, {source}, i64 {2 * skip}") if skip else source
        if all(valid):
            return f.load(kind, at)
        mask = ", ".join(f"i1 {str(lane).lower()}" for lane in valid)
        name = f"llvm.masked.load.{kind.mangled}.p0"
        align, lanes = constant(I32, 2), Operand(kind.of("i1"), f"<{mask}>")
        value = f.call(kind, name, at, align, lanes, value)
    return value


def pad_function(b: Builder, symbol: str, rows: Rows) -> None:
    """Define ``void symbol(ptr panel, ptr target)``: copy a panel with zeros where nothing is."""
    f = b.child()
    source, target = Operand(PTR, "%panel"), Operand(PTR, "%target")
    kind, pairs = Type("i32", ROWS), rows.even // 2
    vectors = rows.columns // ROWS
    last = -1 if rows.channels % 2 == 0 else pairs - 1

    def copy(pair: Operand, mask: int) -> None:
        for j in range(vectors):
            index = f.add(f.scale(pair, rows.columns), f.i64(j * ROWS))
            value = f.load(kind, f.address(source, "i32", index), 2)
            if mask >= 0:
                value = f.binary("and", value, constant(kind, mask))
            f.store(value, f.address(target, "i32", index))

    def tap(number: Operand, _: list[Operand]) -> list[Operand]:
        first = f.scale(number, pairs)
        end = f.add(first, f.i64(pairs if last < 0 else last))

        def one(pair: Operand, _: list[Operand]) -> list[Operand]:
            copy(pair, -1)
            return []

        f.loop(first, end, 1, [], one)
        if last >= 0:
            copy(end, 0xFFFF)
        return []

    f.loop(f.i64(0), f.i64(rows.taps), 1, [], tap)

    def clear(vector: Operand, _: list[Operand]) -> list[Operand]:
        f.store(constant(kind, 0), f.address(target, "i32", f.scale(vector, ROWS)))
        return []

    end = rows.steps * DEPTH // 2 * vectors
    f.loop(f.i64(rows.taps * pairs * vectors), f.i64(end), 1, [], clear)
    f.do("ret void")
    b.functions[symbol] = f.function(
        f"define internal void @{symbol}(ptr %panel, ptr %target) noinline"
    )
