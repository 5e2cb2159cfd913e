"""The register tile of a convolution: rows of places, each behind a pointer of its own per tap.

    for tap: for c: for each place i: for each vector j: acc[i][j] += *(table[tap][i] + c) * w[j]

What an element is, and how it is multiplied, is a parameter (:class:`Element`): float32 by
multiply-adds, pairs of bfloat16 by dot products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from irc.backends.cpu.matmul.tile import LINE, add_part, prefetch
from irc.backends.cpu.vector.builder import I64, PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, unpack

UNROLL = 2
SPAN = 512
"""Steps that are summed in registers before they are added to the tile, where there are more than
twice as many (see :data:`irc.backends.cpu.matmul.tile.SPAN`)."""
AHEAD = 512
"""Elements of a panel that are asked for ahead of their use, where one tile reads it."""

Parts: TypeAlias = list[Operand]
"""What is loaded for one step: a vector, or one for each channel of the step."""


class Element:
    """How one step along the channels is loaded and multiplied: one channel of any float.

    Attributes:
        total: the vector of accumulators.
        image: dtype of the image in memory.
        weight: dtype of the packed weight.
        group: channels of a step.
    """

    group = 1

    def __init__(self, total: Type, image: str, weight: str) -> None:
        self.total, self.image, self.weight = total, image, weight

    def places(self, b: Builder, at: Operand, valid: int) -> Parts:
        """Load ``valid`` channels of one place, each in all lanes."""
        memory = Type(MEMORY[self.image])
        values: Parts = []
        for channel in range(valid):
            value = b.load(memory, b.address(at, memory.element, b.i64(channel)))
            values.append(b.splat(unpack(b, value, self.image), self.total.lanes))
        return values

    def weights(self, b: Builder, at: Operand, valid: int) -> Parts:
        """Load as many output channels as there are lanes, ``valid`` input channels of each."""
        memory = Type(MEMORY[self.weight], self.total.lanes)
        return [unpack(b, b.load(memory, at), self.weight)]

    def multiply(self, b: Builder, x: Parts, w: Parts, total: Operand) -> Operand:
        """Add products to the accumulators."""
        for value, weight in zip(x, w, strict=True):
            total = b.fma(value, weight, total)
        return total


class PartedPairs(Element):
    """Pairs of bfloat16 that are parted into two float vectors: right on any machine."""

    group = 2

    def weights(self, b: Builder, at: Operand, valid: int) -> Parts:
        pair = b.load(Type("i32", self.total.lanes), at, 2)
        low = b.binary("shl", pair, constant(pair.type, 16))
        high = b.binary("and", pair, constant(pair.type, -(1 << 16)))
        return [b.convert("bitcast", part, "float") for part in (low, high)[:valid]]


class DottedPairs(Element):
    """Pairs of bfloat16 by VDPBF16PS, which treats denormals as zeros."""

    group = 2

    def places(self, b: Builder, at: Operand, valid: int) -> Parts:
        pair = b.load(Type("i32"), at, 2) if valid == 2 else b.load(Type("i16"), at)
        return [self._halves(b, b.splat(b.convert("zext", pair, "i32"), self.total.lanes))]

    def weights(self, b: Builder, at: Operand, valid: int) -> Parts:
        pair = b.load(Type("i32", self.total.lanes), at, 2)
        if valid == 1:  # the second one is padding, which may be anything
            pair = b.binary("and", pair, constant(pair.type, 0xFFFF))
        return [self._halves(b, pair)]

    def multiply(self, b: Builder, x: Parts, w: Parts, total: Operand) -> Operand:
        return b.call(self.total, "llvm.x86.avx512bf16.dpbf16ps.512", total, x[0], w[0])

    def _halves(self, b: Builder, pair: Operand) -> Operand:
        kind = Type("bfloat", 2 * self.total.lanes)
        return b.emit(kind, f"bitcast {pair} to {kind}")


def element_of(total: Type, dtypes: tuple[str, str], *, pairs: bool, dots: bool) -> Element:
    """Return how an image and a weight of (dtypes) are multiplied, packed in pairs or not."""
    if not pairs:
        return Element(total, *dtypes)
    kind = DottedPairs if dots and total.lanes == 16 else PartedPairs
    return kind(total, *dtypes)


@dataclass(frozen=True)
class Walk:
    """What the loops of a tile run over.

    Attributes:
        pitch: pointers from tap to tap of the table.
        taps: of a call, at most.
        channels: of a tap.
        stride: elements of the image from channel to channel.
        panel: elements of the weight from step to step.
        lines: how many lines of what is multiplied next are asked for in two steps.
    """

    pitch: int
    taps: int
    channels: int
    stride: int
    panel: int
    lines: int


def window_tile(
    b: Builder,
    symbol: str,
    element: Element,
    shape: tuple[int, int],
    walk: Walk,
    *,
    adds: bool,
) -> None:
    """Define ``void symbol(ptr table, ptr panel, ptr tile, i64 taps, ptr next)``.

    ``shape`` is rows and vectors of results; they begin at 0, or at what the tile holds if the
    function ``adds``.
    """
    rows, vectors = shape
    f = b.child()
    table, panel, tile, later = (Operand(PTR, f"%{n}") for n in ("table", "panel", "tile", "next"))
    code = _Tile(f, element, vectors, walk, later)
    steps = -(-walk.channels // element.group)

    def follow(number: Operand) -> tuple[list[Operand], Operand, Operand]:
        row = f.address(table, "ptr", f.scale(number, walk.pitch))
        pointers = [f.load(PTR, f.address(row, "ptr", f.i64(i)), 8) for i in range(rows)]
        start = f.address(panel, MEMORY[element.weight], f.scale(number, steps * walk.panel))
        return pointers, start, f.scale(number, steps)

    def tap(number: Operand, sums: list[Operand]) -> list[Operand]:
        return code.channels(*follow(number), sums)

    kind, taps = element.total, Operand(I64, "%taps")
    places = [f.address(tile, kind.element, f.i64(i * kind.lanes)) for i in range(rows * vectors)]
    zeros = [constant(kind, 0.0) for _ in places]
    together = taps_together(walk.taps, steps)

    def part(first: Operand, _: list[Operand]) -> list[Operand]:
        begins = None if adds else f.compare("icmp eq", first, f.i64(0))
        if together:
            last = f.intrinsic("smin", f.add(first, f.i64(together)), taps)
            add_part(f, f.loop(first, last, 1, zeros, tap), places, begins)
        else:
            code.channels_in_parts(*follow(first), places, begins)
        return []

    if together < walk.taps:
        f.loop(f.i64(0), taps, max(together, 1), [], part)
    else:
        sums = [f.load(kind, place) for place in places] if adds else zeros
        for total, place in zip(f.loop(f.i64(0), taps, 1, sums, tap), places, strict=True):
            f.store(total, place)
    f.do("ret void")
    b.functions[symbol] = f.function(
        f"define internal void @{symbol}"
        "(ptr %table, ptr %panel, ptr %tile, i64 %taps, ptr %next) noinline"
    )


def taps_together(taps: int, steps: int) -> int:
    """Return how many taps are summed before the tile takes them; 0: not even one.

    >>> taps_together(9, 64), taps_together(9, 128), taps_together(9, 512), taps_together(1, 2048)
    (9, 3, 1, 0)
    """
    if taps * steps <= 2 * SPAN:
        return taps
    if steps > 2 * SPAN:
        return 0
    return -(-taps // -(-taps * steps // SPAN))


class _Tile:
    """Writes what a tile does for one tap."""

    def __init__(
        self, f: Builder, element: Element, vectors: int, walk: Walk, later: Operand
    ) -> None:
        self.f, self.element, self.vectors, self.walk, self.later = f, element, vectors, walk, later

    def channels(
        self, pointers: list[Operand], start: Operand, done: Operand, sums: list[Operand]
    ) -> list[Operand]:
        """Write all channels of a tap; ``done`` counts the steps before it."""
        whole = self._whole()
        if whole:
            sums = self._steps(pointers, start, done, (self.f.i64(0), self.f.i64(whole)), sums)
        return self._last_steps(pointers, start, done, sums)

    def channels_in_parts(
        self,
        pointers: list[Operand],
        start: Operand,
        done: Operand,
        places: list[Operand],
        begins: Operand | None,
    ) -> None:
        """Write all channels of a tap, so many that their sum is made in parts."""
        f, whole = self.f, self.f.i64(self._whole())
        zeros = [constant(self.element.total, 0.0) for _ in places]

        def part(first: Operand, _: list[Operand]) -> list[Operand]:
            last = f.intrinsic("smin", f.add(first, f.i64(SPAN)), whole)
            is_first = None
            if begins is not None:
                is_first = f.binary("and", begins, f.compare("icmp eq", first, f.i64(0)))
            add_part(f, self._steps(pointers, start, done, (first, last), zeros), places, is_first)
            return []

        f.loop(f.i64(0), whole, SPAN, [], part)
        if self.walk.channels > self._whole() * self.element.group:
            add_part(f, self._last_steps(pointers, start, done, zeros), places, None)

    def _whole(self) -> int:
        """Steps of a tap that are written as a loop."""
        steps = self.walk.channels // self.element.group
        return steps - steps % UNROLL if steps > 2 * UNROLL else 0

    def _steps(
        self,
        pointers: list[Operand],
        start: Operand,
        done: Operand,
        ends: tuple[Operand, Operand],
        sums: list[Operand],
    ) -> list[Operand]:
        f, group = self.f, self.element.group

        def body(k: Operand, sums: list[Operand]) -> list[Operand]:
            self.ask_for_next(f.add(done, k))
            for u in range(UNROLL):
                sums = self.step(pointers, start, f.add(k, f.i64(u)), sums, group)
            return sums

        return f.loop(*ends, UNROLL, sums, body)

    def _last_steps(
        self, pointers: list[Operand], start: Operand, done: Operand, sums: list[Operand]
    ) -> list[Operand]:
        f, group = self.f, self.element.group
        steps, rest = divmod(self.walk.channels, group)
        for k in range(self._whole(), steps):
            if k % UNROLL == 0:
                self.ask_for_next(f.add(done, f.i64(k)))
            sums = self.step(pointers, start, f.i64(k), sums, group)
        return self.step(pointers, start, f.i64(steps), sums, rest) if rest else sums

    def ask_for_next(self, step: Operand) -> None:
        """Prefetch lines of what is multiplied next into the second cache."""
        f, lines = self.f, self.walk.lines
        skip = f.scale(step, lines * LINE // UNROLL)
        for line in range(lines):
            prefetch(f, f.address(self.later, "i8", f.add(skip, f.i64(line * LINE))), locality=2)

    def step(
        self,
        pointers: list[Operand],
        start: Operand,
        k: Operand,
        sums: list[Operand],
        valid: int,
    ) -> list[Operand]:
        """Write one step: load weights, then each place, and multiply."""
        f, element, walk, vectors = self.f, self.element, self.walk, self.vectors
        memory, lanes = MEMORY[element.weight], element.total.lanes * element.group
        at = f.address(start, memory, f.scale(k, walk.panel))
        columns = [f.address(at, memory, f.i64(j * lanes)) for j in range(vectors)]
        if not walk.lines:
            for column in columns:
                prefetch(f, f.address(column, memory, f.i64(AHEAD)))
        weights = [element.weights(f, column, valid) for column in columns]
        after: list[Operand] = []
        for i, pointer in enumerate(pointers):
            index = f.scale(k, walk.stride * element.group)
            x = element.places(f, f.address(pointer, MEMORY[element.image], index), valid)
            row = sums[i * vectors : (i + 1) * vectors]
            after += [element.multiply(f, x, w, s) for w, s in zip(weights, row, strict=True)]
        return after
