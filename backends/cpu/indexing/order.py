"""What all ways of sorting a row share: keys, results, arrays in scratch memory.

Stable, and NaN is larger than any number. Three ways, by length. *Rank* (short rows: the experts of
a router), *select* (few of many: a token from the vocabulary), *radix* (all others).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.indexing.keys import key_of, key_type
from irc.backends.cpu.indexing.rows import PARALLEL_STEPS, AlongWriter, Rows
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.vector.builder import Builder, Operand, Type
from irc.backends.cpu.vector.storage import cast
from irc.dialects.along import AlongForm


class OrderWriter(AlongWriter):
    """Base of what writes the first ``count`` of a row in order."""

    def __init__(
        self, b: Builder, form: AlongForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        super().__init__(b, form, features, buffers)
        self.n, self.count = form.space[-1], form.places["y"].count
        self.dtype = form.places["x"].dtype
        self.key = key_type(self.dtype)
        self.key_bytes = self.key.bits // 8
        self.lanes = features.vector_bytes // self.key_bytes
        self.is_close = form.places["x"].strides[-1] == 1
        steps = prod(form.space)
        self.parallel = prod(form.outer) > 1 and steps * 4 >= PARALLEL_STEPS
        self.scratch_bytes = self.lay_out()

    @abstractmethod
    def lay_out(self) -> int:
        """Decide where in scratch memory things lie; returns its size."""

    @abstractmethod
    def row(self, rows: Rows) -> None:
        """Write what is done with a row, given where each role begins."""

    def write(self) -> None:
        """Write the kernel."""

        def unit(indices: list[Operand]) -> None:
            self.row({role: self.start(role, indices) for role in self.form.places})

        each_unit(self.b, self.form.outer, prod(self.form.outer), unit)

    def bits(self, x: Operand, i: Operand, lanes: int = 1) -> Operand:
        """Load elements as the integers that they are in memory."""
        return self.b.load(Type(self.key.element, lanes), self.element("x", x, i))

    def key_at(self, x: Operand, i: Operand, lanes: int = 1) -> Operand:
        down = self.form.mode == "descending"
        return key_of(self.b, self.bits(x, i, lanes), self.dtype, descending=down)

    def give(self, rows: Rows, to: Operand, source: Operand) -> None:
        """Store the element that stood at ``source`` as number ``to`` of the result."""
        b = self.b
        b.store(self.bits(rows["x"], source), self.element("y", rows["y"], to))
        if "at" in rows:
            place = cast(b, source, "i64", self.form.places["at"].dtype)
            b.store(place, self.element("at", rows["at"], to))

    def slot(self, start: int | Operand, element: str, index: Operand) -> Operand:
        """Return the address of an element of an array in scratch memory."""
        base = self.scratch(start) if isinstance(start, int) else start
        return self.b.address(base, element, index)

    def each(self, count: int, body: Callable[[Operand], None]) -> None:
        """Write a loop from 0 to a number."""

        def step(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            body(i)
            return ()

        self.b.loop(self.b.i64(0), self.b.i64(count), 1, [], step)

    def take(self, rows: Rows, places: Operand, count: int) -> None:
        """Store the elements that stood at the places of an array."""

        def give(j: Operand) -> None:
            place = self.b.load(Type("i32"), self.slot(places, "i32", j))
            self.give(rows, j, self.b.convert("zext", place, "i64"))

        self.each(count, give)
