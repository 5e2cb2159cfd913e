"""Scatters along a dim: ``y = x``, then ``y[index[i]] = source[i]`` or ``+= source[i]``, in order.

Nothing is atomic and no result depends on threads: each element of y belongs to one thread, which
goes through the index in order. Threads share rows; where these are few, ranges of the dim (owner
computes), or the columns of each row, where the dim has few places.

Where ``x`` and ``y`` are one memory nothing is copied: an update of a cache touches only what it
changes. All indices are looked at before anything is written then, by every thread, so that a
refused call leaves states as they were; elsewhere only those of the row that is next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.indexing.rows import PARALLEL_STEPS, Rows
from irc.backends.cpu.indexing.table import Span, TableWriter
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import each_unit, thread_range
from irc.backends.cpu.vector.builder import Builder, Operand
from irc.backends.cpu.vector.pointwise import apply
from irc.dialects.along import AlongForm

FUNCTIONS: Mapping[str, str] = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum",
}  # fmt: skip
ENOUGH_ROWS = 8
"""Rows from which threads share rows."""
LINE, MIN_COLUMNS, FEW_PLACES = 16, 128, 64
"""Columns that go to one thread together (no two write to one cache line), how many there are at
least where threads share them, and fewer places than which the dim has then, unless columns have
an index of their own."""
SLOTS = 8
"""Places for what belongs to another thread: in turn, as a sum would wait for the one before."""


class ScatterWriter(TableWriter):
    """Writes a scatter."""

    def __init__(
        self, b: Builder, form: AlongForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        super().__init__(b, form, features, buffers)
        self.rows = [n for d, n in enumerate(form.outer) if d != self.column]
        steps = prod(form.outer) * (self.places + self.count)
        self.parallel = is_named(steps) or steps >= PARALLEL_STEPS
        self.shared = self._shared()
        self.parts_columns = self.shared == "columns"
        self.scratch_bytes = SLOTS * 8

    def _shared(self) -> str:
        """What threads share."""
        if typical(prod(self.rows)) >= ENOUGH_ROWS:
            return "rows"
        own = typical(self.count) < FEW_PLACES or bool(self.moves("index"))
        return "columns" if own and typical(self.columns) >= MIN_COLUMNS else "dim"

    def write(self) -> None:
        """Write the kernel: the check of all indices where nothing is copied, then all rows."""
        if "x" not in self.form.places or not self.is_alike:
            self._rows()
            return
        x, y = (self.buffers[self.form.places[role].buffer] for role in ("x", "y"))
        one_memory = self.b.compare("icmp eq", x, y)
        start = self.start("index", ())
        dims = list(zip(self._index_strides, (*self.form.outer, self.places), strict=True))
        outside = self.outside(start, dims, one_memory)
        self.b.either(outside, self.refuse, self._rows)

    @property
    def _index_strides(self) -> tuple[int, ...]:
        return self.form.places["index"].strides

    def _rows(self) -> None:
        b = self.b
        first, last = (b.i64(0), b.i64(self.count)), (b.i64(0), b.i64(self.columns))
        if self.shared == "rows":
            count = prod(self.rows)
            each_unit(b, self.rows, count, lambda indices: self._row(indices, first, last))
            return
        if self.shared == "columns":
            strips = b.parts(self.columns, LINE)
            low, high = (b.scale(at, LINE) for at in thread_range(b, strips, strips))
            last = low, b.intrinsic("smin", high, b.i64(self.columns))
        else:
            first = thread_range(b, self.count, self.count)

        def row(index: Operand, _: list[Operand]) -> Sequence[Operand]:
            self._row(self._indices(index), first, last)
            return ()

        b.loop(b.i64(0), b.i64(prod(self.rows)), 1, [], row)

    def _indices(self, index: Operand) -> list[Operand]:
        """Return the index in each dim of rows of a row-major position."""
        indices: list[Operand] = []
        for n in reversed(self.rows):
            indices.insert(0, self.b.binary("urem", index, self.b.i64(n)))
            index = self.b.binary("udiv", index, self.b.i64(n))
        return indices

    def _row(
        self,
        indices: list[Operand],
        span: Span,
        columns: Span,
    ) -> None:
        """Write what is this thread's of a row: some of the dim, and some columns."""
        if self.column is not None:
            indices = [*indices[: self.column], self.b.i64(0), *indices[self.column :]]
        at = {role: self.start(role, indices) for role in self.form.places}
        dims = [(self._index_strides[-1], self.places), (self.moves("index"), self.columns)]

        def write() -> None:
            self.begin(at, span, columns)
            self._write_all(at, span, columns)

        self.b.either(self.outside(at["index"], dims), self.refuse, write)

    # what is written

    def _write_all(self, at: Rows, span: Span, columns: Span) -> None:
        """Go through the index in order."""
        b = self.b

        def place(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            here = {role: self.element(role, at[role], i) for role in ("index", "source")}
            if self.moves("index"):

                def one(c: Operand, lanes: int) -> None:
                    step = b.scale(c, self.moves("index"))
                    index = self.index("index", self.moved("index", here["index"], step))
                    self._owned(index, span, lambda: self._write(here, at["y"], index, c, 1))

                self.sweep(*columns, 1, one)
                return ()
            index = self.index("index", here["index"])
            if self.shared == "dim" and self.columns == 1:
                # No branch: whose an element is cannot be foreseen.
                y = self.element("y", at["y"], index)
                slot = b.address(self.scratch(0), "i64", b.binary("and", i, b.i64(SLOTS - 1)))
                y = b.select(self._is_owned(index, span), y, slot)
                self._write(here, y, b.i64(0), b.i64(0), 1)
                return ()
            lanes = self.lanes if self.moves("source") in (0, 1) else 1

            def line() -> None:
                def some(c: Operand, lanes: int) -> None:
                    self._write(here, at["y"], index, c, lanes)

                self.sweep(*columns, lanes, some)

            self._owned(index, span, line)
            return ()

        b.loop(b.i64(0), b.i64(self.places), 1, [], place)

    def _owned(self, index: Operand, span: Span, body: Callable[[], None]) -> None:
        """Write ``body`` where an index is in this thread's part of the dim."""
        if self.shared != "dim":
            body()
            return
        self.b.when(self._is_owned(index, span), body)

    def _is_owned(self, index: Operand, span: Span) -> Operand:
        b, (low, high) = self.b, span
        inside = b.binary("sub", index, low), b.binary("sub", high, low)
        return b.compare("icmp ult", *inside)

    def _write(self, here: Rows, y: Operand, index: Operand, column: Operand, lanes: int) -> None:
        """Write what one index says, for some columns."""
        b, mode, moves = self.b, self.form.mode, self.moves("source")
        at = self.moved("y", self.element("y", y, index), column)
        start = self.moved("source", here["source"], b.scale(column, moves))
        value = b.splat(self.load("source", start, lanes if moves == 1 else 1), lanes)
        if mode != "set":
            dtype = self.computed
            before = self.load("y", at, lanes)
            value = apply(b, FUNCTIONS[mode], [before, value], [dtype] * 2, dtype)
        self.store("y", value, at)

    @property
    def computed(self) -> str:
        """The dtype in which values are combined."""
        dtype = self.form.places["y"].dtype
        return "f32" if dtype in ("f16", "bf16") else dtype
