"""Packing K and V for tile registers: tiles of 1 KiB, zeros where keys or features end inside."""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.attention.amx_tiles import SIDE, STEP, padded
from irc.backends.cpu.matmul.panels import transposed
from irc.backends.cpu.matmul.tile import prefetch
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.dialects.attention import AttentionForm

AHEAD = 32
"""Keys that are asked for ahead: rows of a head lie apart, and in pages of their own."""

Part = Callable[[Operand, Operand, int, Operand | None], None]
"""Packs 32 keys from one on, of some features from one on; how many keys there are if not all."""


class Packer:
    """Writes ``void symbol(ptr from, ptr to, i64 keys)``, 32 keys at a time."""

    def __init__(self, b: Builder, form: AttentionForm, role: str) -> None:
        self.b, self.f, self.role = b, b.child(), role
        self.place = form.places[role]
        depth, width = padded(form)
        self.features, self.padded = (form.depth, depth) if role == "k" else (form.width, width)
        self.source, self.target = Operand(PTR, "%from"), Operand(PTR, "%to")

    def define(self, symbol: str) -> None:
        """Define the function."""
        f, keys = self.f, Operand(I64, "%keys")
        part, columns = (self._copied, STEP) if self.role == "k" else (self._turned, SIDE)
        whole = f.binary("and", keys, f.i64(-STEP))
        f.loop(f.i64(0), whole, STEP, [], lambda step, _: self._step(part, columns, step, None))
        left = f.binary("sub nsw", keys, whole)

        def tail() -> None:
            self._step(part, columns, whole, left)

        f.when(f.compare("icmp ne", left, f.i64(0)), tail)
        f.do("ret void")
        params = f"ptr %from, ptr %to, i64 %keys{self.b.size_argument}"
        header = f"define internal void @{symbol}({params}) noinline"
        self.b.functions[symbol] = f.function(header)

    def _step(
        self, part: Part, columns: int, step: Operand, valid: Operand | None
    ) -> list[Operand]:
        f, whole = self.f, self.features // columns * columns

        def one(feature: Operand, _: list[Operand]) -> list[Operand]:
            part(step, feature, columns, valid)
            return []

        f.loop(f.i64(0), f.i64(whole), columns, [], one)
        if whole < self.features:
            part(step, f.i64(whole), self.features - whole, valid)
        return []

    def _row(
        self, key: Operand, feature: Operand, columns: int, lanes: int, exists: Operand | None
    ) -> Operand:
        """Return features of a key, zeros beyond the last and where there is no key."""
        f, kind = self.f, Type("i16", lanes)
        at = f.add(f.scale(key, self.place.strides[-1]), feature)
        at = f.address(self.source, "i16", at)
        if exists is None:
            stride = self.place.strides[-1]
            prefetch(f, f.address(at, "i16", f.scale(f.i64(AHEAD), stride)))
        if exists is None and columns == lanes:
            return f.load(kind, at)
        seen = Operand(Type("i1", lanes), _ones(columns, lanes))
        if exists is not None:
            seen = f.binary("and", f.splat(exists, lanes), seen)
        align, none = constant(Type("i32"), 2), constant(kind, 0)
        return f.call(kind, f"llvm.masked.load.{kind.mangled}.p0", at, align, seen, none)

    def _rows(
        self, step: Operand, feature: Operand, columns: int, lanes: int, valid: Operand | None
    ) -> list[Operand]:
        f = self.f
        rows: list[Operand] = []
        for key in range(STEP):
            exists = None if valid is None else f.compare("icmp slt", f.i64(key), valid)
            at = f.add(step, f.i64(key))
            rows.append(self._row(at, feature, columns, lanes, exists))
        return rows

    def _copied(self, step: Operand, feature: Operand, columns: int, valid: Operand | None) -> None:
        """Copy 32 features of 32 keys: two tiles of K."""
        f = self.f
        at = f.add(f.scale(step, self.padded), f.scale(feature, SIDE))
        end = f.address(self.target, "i16", at)
        for key, row in enumerate(self._rows(step, feature, columns, STEP, valid)):
            tile, line = divmod(key, SIDE)
            f.store(row, f.address(end, "i16", f.i64(tile * SIDE * self.padded + line * STEP)))

    def _turned(self, step: Operand, feature: Operand, columns: int, valid: Operand | None) -> None:
        """Turn 16 features of 32 keys: a tile of V."""
        f, wide = self.f, Type("i32", SIDE)
        rows = self._rows(step, feature, columns, SIDE, valid)
        order = [i // 2 + i % 2 * SIDE for i in range(2 * SIDE)]
        both = [f.shuffle(rows[i], rows[i + 1], order) for i in range(0, STEP, 2)]
        pairs = [f.emit(wide, f"bitcast {pair} to {wide}") for pair in both]
        at = f.add(f.scale(step, self.padded), f.scale(feature, STEP))
        end = f.address(self.target, "i16", at)
        for i, row in enumerate(transposed(f, pairs)):
            f.store(row, f.address(end, "i32", f.i64(i * SIDE)))


def _ones(count: int, lanes: int) -> str:
    return f"<{', '.join(f'i1 {str(i < count).lower()}' for i in range(lanes))}>"
