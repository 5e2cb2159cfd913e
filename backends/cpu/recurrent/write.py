"""Recurrent kernels as the emitter calls them.

A thread has some rows of a batch, in one direction or both. It takes some steps at a time: copies
their inputs behind each other in the order of the steps, multiplies them, then walks the steps.
States lie padded in its scratch memory, those before a step and those after it by turns, and are
copied to the results. Where sequences end early, each row is walked by itself up to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.units import LEAST_PRODUCTS, thread_range
from irc.backends.cpu.recurrent.cell import Cell
from irc.backends.cpu.recurrent.memory import copy, fill, less
from irc.backends.cpu.recurrent.projection import project
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.dialects.recurrent import BYTE_WEIGHTS, WEIGHTS, RecurrentForm
from irc.dialects.size import Dim
from irc.ops.recurrent import ROWS, UNIT

WORD_BYTES = 4
CHUNK_ROWS = 128
"""Rows of inputs that are multiplied together: each reads all weights of the inputs once."""
ELEMENTS = {"f32": "float", "i32": "i32", "i8": "i8"}
OPEN_CHUNK = 16
"""Steps of these where the batch has a name."""


class Writer:
    """Writes a kernel."""

    def __init__(
        self, b: Builder, form: RecurrentForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.form, self.features = b, form, features
        self.roles = {role: buffers[at] for role, at in form.buffers.items()}
        self.batch, self.steps = b.i64(form.batch), b.i64(form.steps)
        per_step = form.gates * form.hidden * (form.inputs + form.hidden) * form.directions
        self.work = form.steps * form.batch * per_step
        shared = form.directions > 1 or not isinstance(form.batch, int) or form.batch > ROWS
        small = isinstance(self.work, int) and self.work < LEAST_PRODUCTS
        self.parallel = shared and not small
        if isinstance(form.batch, int):
            wanted = max(1, CHUNK_ROWS // form.batch)
            self.chunk = min(form.steps, wanted) if isinstance(form.steps, int) else wanted
        else:
            self.chunk = OPEN_CHUNK
        self._places: dict[str, Dim] = {}
        self.scratch_bytes: Dim = 0
        for name, size in self.parts().items():
            self._places[name] = self.scratch_bytes
            self.scratch_bytes = self.scratch_bytes + size

    def parts(self) -> dict[str, Dim]:
        """Return the bytes of each part of scratch memory."""
        form = self.form
        state = form.batch * form.padded
        parts: dict[str, Dim] = {
            "even": state,
            "odd": state,
            "cell": 2 * form.padded if form.kind == "GRU before" else state,
            "p": state * form.gates * self.chunk,
            "x": form.batch * form.inputs * self.chunk,
        }
        return {name: count * WORD_BYTES for name, count in parts.items()}

    def begin(self) -> None:
        """Write what comes before all rows."""

    def cell(self, at: dict[str, Operand]) -> Cell:
        """Return what writes a step."""
        form = self.form
        return Cell(self.b, form.kind, form.hidden, form.activations, self.features, at)

    def clear(self, at: dict[str, Operand], count: Operand) -> None:
        """Write what memory holds before the steps of rows, besides states."""

    def take(self, source: Operand, at: dict[str, Operand], place: Operand) -> None:
        """Write a copy of an input."""
        b, inputs = self.b, self.form.inputs
        copy(b, source, b.address(at["x"], "float", b.scale(place, inputs)), inputs)

    def project(self, at: dict[str, Operand], rows: Operand) -> None:
        """Write the products of some inputs."""
        b, form = self.b, self.form
        project(b, form.kind, form.hidden, self.features, at, rows, b.i64(form.inputs))

    def write(self) -> None:
        """Write the kernel: this thread's groups of rows, of each direction by itself."""
        b, form = self.b, self.form
        groups = b.parts(form.batch, ROWS)
        units = b.scale(groups, form.directions)
        low, high = thread_range(b, units, units)
        self.begin()

        def direction(d: Operand, _: list[Operand]) -> list[Operand]:
            skipped = b.times(groups, d)
            first, last = (
                b.intrinsic("smin", b.intrinsic("smax", b.binary("sub nsw", end, skipped),
                                                b.i64(0)), groups)
                for end in (low, high)
            )  # fmt: skip
            begin = b.scale(first, ROWS)
            end = b.intrinsic("smin", b.scale(last, ROWS), self.batch)
            b.when(b.compare("icmp slt", begin, end), lambda: self._rows(d, begin, end))
            return []

        b.loop(b.i64(0), b.i64(form.directions), 1, [], direction)

    def _rows(self, d: Operand, begin: Operand, end: Operand) -> None:
        """Write some rows of a direction: together, or each up to the end of its sequence."""
        b, count = self.b, less(self.b, end, begin)
        if "lengths" not in self.roles:
            self._walk(d, begin, count, self.steps)
            return

        def shorter(row: Operand, state: list[Operand]) -> list[Operand]:
            short = b.compare("icmp ne", self.length(row), self.steps)
            return [b.binary("or", state[0], short)]

        (uneven,) = b.loop(begin, end, 1, [constant(Type("i1"), 0)], shorter)
        blocks = b.select(uneven, count, b.i64(1))
        rows = b.select(uneven, b.i64(1), count)

        def block(i: Operand, _: list[Operand]) -> list[Operand]:
            row = b.add(begin, i)
            self._walk(d, row, rows, self.length(row))
            return []

        b.loop(b.i64(0), blocks, 1, [], block)

    def length(self, row: Operand) -> Operand:
        """Append how many steps a row has."""
        b = self.b
        read = b.load(Type("i32"), b.address(self.roles["lengths"], "i32", row))
        held = b.intrinsic("smax", b.convert("sext", read, "i64"), b.i64(0))
        return b.intrinsic("smin", held, self.steps)

    def _walk(self, d: Operand, row: Operand, count: Operand, steps: Operand) -> None:
        """Write all steps of rows from ``row`` on, in a direction."""
        b, form = self.b, self.form
        memory = {name: self._scratch(name) for name in self._places}
        weights = {
            role: b.address(self.roles[role], ELEMENTS[form.dtype(role)],
                            b.scale(d, _size(form, role)))
            for role in (*WEIGHTS, *BYTE_WEIGHTS)
            if role in self.roles
        }  # fmt: skip
        bias = weights.pop("inner", weights["added"])
        at = {**memory, **weights, "bias": bias, "c": memory["cell"]}
        cell = self.cell(at)
        self.clear(at, count)
        self._start("h", memory["even"], d, row, count)
        if form.kind == "LSTM":
            self._start("c", memory["cell"], d, row, count)
        back = self._is_back(d)
        end = b.add(steps, b.i64(-1))

        def time(n: Operand) -> Operand:
            return b.select(back, less(b, end, n), n)

        def chunk(start: Operand, states: list[Operand]) -> list[Operand]:
            stop = b.intrinsic("smin", b.add(start, b.i64(self.chunk)), steps)
            self._gather(start, stop, time, row, count, at)
            self.project(at, b.times(less(b, stop, start), count))

            def step(n: Operand, carried: list[Operand]) -> list[Operand]:
                before, new = carried
                skipped = b.times(less(b, n, start), count)
                p = b.address(at["p"], "float", b.scale(skipped, form.gates * form.padded))
                cell.advance(p, before, new, count)
                self._show(new, self.roles["y"], b.add(b.scale(time(n), form.directions), d),
                           row, count)  # fmt: skip
                return [new, before]

            return b.loop(start, stop, 1, states, step)

        states = [memory["even"], memory["odd"]]
        last, _ = b.loop(b.i64(0), steps, self.chunk, states, chunk)
        if "lengths" in self.roles:
            self._clear(d, row, count, steps)
        self._show(last, self.roles["last"], d, row, count)
        if form.kind == "LSTM":
            self._show(memory["cell"], self.roles["last_cell"], d, row, count)

    def _is_back(self, d: Operand) -> Operand:
        if self.form.directions == 1:
            return constant(Type("i1"), int(self.form.backwards))
        return self.b.compare("icmp eq", d, self.b.i64(1))

    def _scratch(self, name: str) -> Operand:
        """Return the address of a part of this thread's memory."""
        return self.b.address(Operand(PTR, "%scratch"), "i8", self.b.i64(self._places[name]))

    def _state(self, base: Operand, number: Operand, row: Operand) -> Operand:
        """Return the address of a row of the states of a direction, which all lie dense."""
        b = self.b
        place = b.add(b.times(number, self.batch), row)
        return b.address(base, "float", b.scale(place, self.form.hidden))

    def _start(self, role: str, target: Operand, d: Operand, row: Operand, count: Operand) -> None:
        """Copy the first states of rows, padded with zeros; all are zeros where none are given."""
        b, form = self.b, self.form

        def one(i: Operand, _: list[Operand]) -> list[Operand]:
            place = b.address(target, "float", b.scale(i, form.padded))
            zero = constant(Type("float", UNIT), 0.0)
            known = role in self.roles
            for at in range(form.hidden // UNIT * UNIT if known else 0, form.padded, UNIT):
                b.store(zero, b.address(place, "float", b.i64(at)))
            if known:
                source = self._state(self.roles[role], d, b.add(row, i))
                copy(b, source, place, form.hidden)
            return []

        b.loop(b.i64(0), count, 1, [], one)

    def _gather(
        self,
        start: Operand,
        stop: Operand,
        time: Callable[[Operand], Operand],
        row: Operand,
        count: Operand,
        at: dict[str, Operand],
    ) -> None:
        """Take the inputs of some steps behind each other."""
        b, form = self.b, self.form
        of_steps, of_rows = form.strides
        first = b.address(self.roles["x"], "float", b.i64(form.offset))

        def step(n: Operand, _: list[Operand]) -> list[Operand]:
            skipped = b.times(less(b, n, start), count)
            here = b.address(first, "float", b.scale(time(n), of_steps))

            def one(i: Operand, _: list[Operand]) -> list[Operand]:
                source = b.address(here, "float", b.scale(b.add(row, i), of_rows))
                self.take(source, at, b.add(skipped, i))
                return []

            b.loop(b.i64(0), count, 1, [], one)
            return []

        b.loop(start, stop, 1, [], step)

    def _show(
        self, states: Operand, target: Operand, number: Operand, row: Operand, count: Operand
    ) -> None:
        """Copy padded states of rows to a result."""
        b, form = self.b, self.form

        def one(i: Operand, _: list[Operand]) -> list[Operand]:
            source = b.address(states, "float", b.scale(i, form.padded))
            copy(b, source, self._state(target, number, b.add(row, i)), form.hidden)
            return []

        b.loop(b.i64(0), count, 1, [], one)

    def _clear(self, d: Operand, row: Operand, count: Operand, steps: Operand) -> None:
        """Write zeros behind the end of sequences."""
        b, form = self.b, self.form

        def step(t: Operand, _: list[Operand]) -> list[Operand]:
            def one(i: Operand, _: list[Operand]) -> list[Operand]:
                number = b.add(b.scale(t, form.directions), d)
                fill(b, self._state(self.roles["y"], number, b.add(row, i)), form.hidden)
                return []

            b.loop(b.i64(0), count, 1, [], one)
            return []

        b.loop(steps, self.steps, 1, [], step)


def _size(form: RecurrentForm, role: str) -> int:
    """Return the elements of one direction of packed weights."""
    total = 1
    for extent in form.shape(role)[1:]:
        assert isinstance(extent, int)
        total *= extent
    return total
