"""Running sums, products, extremes and log-sums along a dim, one element after the other.

Where the dim is not the innermost, the lanes are rows of their own; elsewhere see
:mod:`irc.backends.cpu.indexing.lanes`, or a row is walked alone.

Sums and products of float32 are carried in float64 and rounded where they are stored: the relative
error of a running sum of n elements is at most ``2**-24 + n * 2**-53`` of the sum of absolutes; of
half types they are carried in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.indexing.rows import PARALLEL_STEPS, UNROLL, AlongWriter, Rows
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import each_unit
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import apply
from irc.backends.cpu.vector.storage import COMPUTE, cast
from irc.dialects.along import AlongForm
from irc.dialects.types import is_float

FUNCTIONS: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
MAX_LANES = 16


class ScanWriter(AlongWriter):
    """Writes a scan."""

    def __init__(
        self, b: Builder, form: AlongForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        super().__init__(b, form, features, buffers)
        self.dtype = form.places["x"].dtype
        self.total = self._carried_in()
        self.kind = COMPUTE[self.total]
        size = 8 if "at" in form.places else max(Type(self.kind).bits // 8, 4)
        self.lanes = min(features.vector_bytes // size, MAX_LANES)
        self.n = form.space[-1]
        self.column = self._column()
        steps, rows = typical(prod(form.space)), typical(prod(form.outer))
        self.parallel = is_named(prod(form.space)) or steps >= PARALLEL_STEPS * (
            1 if rows > 1 else 8
        )

    def _carried_in(self) -> str:
        """The dtype of what is carried from element to element."""
        if self.dtype in ("f16", "bf16"):
            return "f32"
        if self.dtype == "f32" and self.form.mode in ("sum", "prod", "logaddexp"):
            return "f64"
        return self.dtype

    def _column(self) -> int | None:
        """The dim whose neighbours lie together in all that is read and written."""
        for d, n in enumerate(self.form.outer):
            if typical(n) > 1 and all(place.strides[d] == 1 for place in self.form.places.values()):
                return d
        return None

    def write(self) -> None:
        """Write the kernel."""
        if self.column is None:
            self.each_row(lambda rows: self._walk(rows, 1, 1))
        else:
            self._columns(self.column)

    def each_row(self, body: Callable[[Rows], object]) -> None:
        """Write the loop over this thread's rows."""

        def unit(indices: list[Operand]) -> None:
            body({role: self.start(role, indices) for role in self.form.places})

        each_unit(self.b, self.form.outer, prod(self.form.outer), unit)

    def neutral(self, lanes: int = 1) -> Operand:
        kind, mode = Type(self.kind, lanes), self.form.mode
        if mode in ("sum", "prod"):
            return constant(kind, int(mode == "prod"))
        sign = -1 if mode in ("max", "logaddexp") else 1
        if is_float(self.total):
            return constant(kind, sign * math.inf)
        if self.total == "u8":
            return constant(kind, 0 if sign < 0 else 255)
        half = 1 << (kind.bits - 1)
        return constant(kind, -half if sign < 0 else half - 1)

    def join(self, before: Operand, x: Operand) -> Operand:
        """Return what is carried on from two parts, the earlier one first."""
        if self.form.mode == "logaddexp":
            return self._log_sum(before, x)
        fn = FUNCTIONS[self.form.mode]
        return apply(self.b, fn, [before, x], [self.total] * 2, self.total)

    def _log_sum(self, a: Operand, x: Operand) -> Operand:
        """``log(exp(a) + exp(x))`` as ``max + log1p(exp(min - max))``; equal infinities stay."""
        b, kinds = self.b, [self.total] * 2
        low = apply(b, "minimum", [a, x], kinds, self.total)
        high = apply(b, "maximum", [a, x], kinds, self.total)
        power = apply(b, "exp", [b.binary("fsub", low, high)], kinds, self.total)
        log_sum = b.binary("fadd", apply(b, "log1p", [power], kinds, self.total), high)
        infinite = constant(a.type, math.inf)
        same = b.compare("fcmp oeq", low, high)
        endless = b.compare("fcmp oeq", b.intrinsic("fabs", low), infinite)
        return b.select(b.binary("and", same, endless), high, log_sum)

    def loaded(self, at: Operand, lanes: int) -> Operand:
        return cast(self.b, self.load("x", at, lanes), self._held(), self.total)

    def give(self, value: Operand, at: Operand) -> None:
        self.store("y", cast(self.b, value, self.total, self._held()), at)

    def _held(self) -> str:
        """The dtype in which a loaded value is computed with."""
        return "f32" if self.dtype in ("f16", "bf16") else self.dtype

    def _columns(self, column: int) -> None:
        """Write blocks of neighbouring rows: vectors side by side, and what is left."""
        extents = [n for d, n in enumerate(self.form.outer) if d != column]
        width, count = self.lanes * UNROLL, self.form.outer[column]
        blocks = -(-count // width)

        def unit(indices: list[Operand]) -> None:
            *others, block = indices
            first = self.b.scale(block, width)
            others.insert(column, first)
            rows = {role: self.start(role, others) for role in self.form.places}
            if count % width == 0:
                self._walk(rows, self.lanes, UNROLL)
                return
            whole = self.b.compare("icmp slt", block, self.b.i64(count // width))
            self.b.either(
                whole,
                lambda: self._walk(rows, self.lanes, UNROLL),
                lambda: self._rest(rows, count % width),
            )

        each_unit(self.b, [*extents, blocks], prod(extents) * blocks, unit)

    def _rest(self, rows: Rows, count: int) -> None:
        """Write the last columns: whole vectors, then a vector for each power of two."""
        done = 0
        while done < count:
            whole = (count - done) // self.lanes
            lanes = self.lanes if whole else 1 << ((count - done).bit_length() - 1)
            at = {role: self.moved(role, row, self.b.i64(done)) for role, row in rows.items()}
            self._walk(at, lanes, max(whole, 1))
            done += lanes * max(whole, 1)

    def _walk(self, rows: Rows, lanes: int, unroll: int) -> None:
        """Write a loop over the dim, for some vectors of rows."""
        b = self.b
        start = [self.neutral(lanes)] * unroll
        if "at" in self.form.places:
            start += [constant(Type("i64", lanes), 0)] * unroll

        def step(i: Operand, state: list[Operand]) -> list[Operand]:
            place = b.binary("sub nsw", b.i64(self.n - 1), i) if self.form.reverse else i
            return self.step(rows, place, lanes, state, unroll)

        b.loop(b.i64(0), b.i64(self.n), 1, start, step)

    def step(
        self, rows: Rows, i: Operand, lanes: int, state: Sequence[Operand], unroll: int
    ) -> list[Operand]:
        b = self.b
        at = {role: self.element(role, row, i) for role, row in rows.items()}
        after, places = list[Operand](), list[Operand]()
        for u in range(unroll):
            here = {r: self.moved(r, p, b.i64(u * lanes)) for r, p in at.items()}
            x, before = self.loaded(here["x"], lanes), state[u]
            if "at" in here:
                value, place = self._later(before, state[unroll + u], x, i)
                self.b.store(place, here["at"])
                places.append(place)
            else:
                value = self.join(before, x)
            self.give(before if self.form.exclusive else value, here["y"])
            after.append(value)
        return [*after, *places]

    def _later(
        self, best: Operand, place: Operand, x: Operand, i: Operand
    ) -> tuple[Operand, Operand]:
        """The extreme so far and the latest place of it: equals move it on, a NaN for good."""
        b, fn = self.b, "ge" if self.form.mode == "max" else "le"
        taken = apply(b, fn, [x, best], [self.total] * 2, "i1")
        if x.type.is_float:
            lost, known = (b.compare("fcmp uno", v, v) for v in (x, best))
            taken = b.binary("and", taken, b.binary("xor", known, constant(known.type, 1)))
            taken = b.binary("or", taken, lost)
        here = b.splat(i, x.type.lanes)
        return b.select(taken, x, best), b.select(taken, here, place)
