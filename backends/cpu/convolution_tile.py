"""The register tile of a convolution: rows of places, each behind a pointer of its own per tap.

    for tap: for c: for each place i: for each vector j: acc[i][j] += *(table[tap][i] + c) * w[j]

What an element is, and how it is multiplied, is a parameter: float32 by multiply-adds; pairs of
bfloat16 or groups of bytes would be dot products with the same loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from irc.backends.cpu.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.storage import MEMORY, unpack
from irc.backends.cpu.tile import prefetch

UNROLL = 2
AHEAD = 512
"""Elements of the weight that are asked for ahead of their use."""


@dataclass(frozen=True)
class Element:
    """How one step along the channels is multiplied.

    Attributes:
        total: the vector of accumulators.
        image: dtype of the image in memory.
        weight: dtype of the packed weight.
        group: channels of a step.
    """

    total: Type
    image: str
    weight: str
    group: int = 1

    def places(self, b: Builder, at: Operand) -> Operand:
        """Load a step of one place, in all lanes."""
        value = unpack(b, b.load(Type(MEMORY[self.image]), at), self.image)
        return b.splat(value, self.total.lanes)

    def weights(self, b: Builder, at: Operand) -> Operand:
        """Load a step of as many output channels as there are lanes."""
        memory = MEMORY[self.weight]
        return unpack(b, b.load(Type(memory, self.total.lanes), at), self.weight)

    def multiply(self, b: Builder, x: Operand, w: Operand, total: Operand) -> Operand:
        """Add a product to the accumulators."""
        return b.fma(x, w, total)


@dataclass(frozen=True)
class Walk:
    """What the loops of a tile run over.

    Attributes:
        taps: how many; each has a row of the table.
        pitch: pointers from row to row.
        steps: along the channels, of a tap.
        stride: elements of the image from step to step.
        panel: elements of the weight from step to step.
    """

    taps: int
    pitch: int
    steps: int
    stride: int
    panel: int


def window_tile(
    b: Builder, symbol: str, element: Element, shape: tuple[int, int], walk: Walk
) -> None:
    """Define ``void symbol(ptr table, ptr panel, ptr tile)`` for (rows, vectors) of results."""
    rows, vectors = shape
    f = b.child()
    table, panel, tile = (Operand(PTR, f"%{name}") for name in ("table", "panel", "tile"))
    image, weight, kind = MEMORY[element.image], MEMORY[element.weight], element.total

    def step(pointers: list[Operand], start: Operand, k: Operand, sums: list[Operand]) -> list[Operand]:
        at = f.address(start, weight, f.scale(k, walk.panel))
        prefetch(f, f.address(at, weight, f.i64(AHEAD)))
        lanes = kind.lanes * element.group
        vector = [element.weights(f, f.address(at, weight, f.i64(j * lanes))) for j in range(vectors)]
        after: list[Operand] = []
        for i, pointer in enumerate(pointers):
            x = element.places(f, f.address(pointer, image, f.scale(k, walk.stride)))
            row = sums[i * vectors : (i + 1) * vectors]
            after += [element.multiply(f, x, w, s) for w, s in zip(vector, row, strict=True)]
        return after

    def tap(number: Operand, sums: list[Operand]) -> list[Operand]:
        row = f.address(table, "ptr", f.scale(number, walk.pitch))
        pointers = [f.load(PTR, f.address(row, "ptr", f.i64(i)), 8) for i in range(rows)]
        start = f.address(panel, weight, f.scale(number, walk.steps * walk.panel))

        def several(count: int) -> Callable[[Operand, list[Operand]], list[Operand]]:
            def body(k: Operand, sums: list[Operand]) -> list[Operand]:
                for u in range(count):
                    sums = step(pointers, start, f.add(k, f.i64(u)), sums)
                return sums

            return body

        whole = walk.steps - walk.steps % UNROLL
        if walk.steps <= 2 * UNROLL:
            return several(walk.steps)(f.i64(0), sums)
        sums = f.loop(f.i64(0), f.i64(whole), UNROLL, sums, several(UNROLL))
        return several(walk.steps - whole)(f.i64(whole), sums)

    sums = [constant(kind, 0.0) for _ in range(rows * vectors)]
    if walk.taps == 1:
        sums = tap(f.i64(0), sums)
    else:
        sums = f.loop(f.i64(0), f.i64(walk.taps), 1, sums, tap)
    for i, total in enumerate(sums):
        f.store(total, f.address(tile, kind.element, f.i64(i * kind.lanes)))
    f.do("ret void")
    header = f"define internal void @{symbol}(ptr %table, ptr %panel, ptr %tile) noinline"
    b.functions[symbol] = f.function(header)
