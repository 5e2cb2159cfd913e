"""Template ``rows``: a group of threads computes a task, its columns dealt out in turn.

Short rows take part of a warp or a warp, long ones a block. Each level of reductions is one loop
over the columns of a thread; full values that a later level needs stay in registers where there
are few columns a thread, and are computed again where there are many. Partial results meet by warp
shuffles and, across warps, in shared memory. Where tasks and not columns are adjacent in memory,
threads of a warp take adjacent tasks, and partial results meet in shared memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from math import prod

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import Scalar, accumulator_type, decode, index_type, joined, padding
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.arithmetic import held, power_of_two
from irc.kernels.form import Form, Step
from irc.kernels.gpu.run_time import has_sizes
from irc.kernels.source import Source

WARP = 32
MAX_LANES = 512
LEAST_THREADS = 128
OPEN_COLUMNS = 512
"""Columns for which threads are chosen where a kernel takes their number when it runs."""
# Columns a thread up to which full values stay in registers, and registers they may take.
KEPT_COLUMNS = 16
KEPT_REGISTERS = 64


class Rows:
    """The launch of a rows kernel, and its code."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.tasks, self.columns = prod(form.parallel), form.num_columns
        self.by_task = self._tasks_adjacent()
        self.lanes, self.rows = self._shape()
        self.threads = self.lanes * self.rows
        self.blocks = -(-self.tasks // self.rows)
        self.turns = -(-self.columns // self.lanes)
        self.kept = self._kept()
        self.available: set[int] = set()

    @property
    def mapping(self) -> TaskMapping:
        """Blocks, threads and turns, over tasks by columns (``by_task``: columns by tasks)."""
        blocks, turns = max(1, self.blocks), max(1, self.turns)
        if self.by_task:
            return compose(spatial(1, blocks), repeat(turns, 1), spatial(self.lanes, self.rows))
        return compose(spatial(blocks, 1), repeat(1, turns), spatial(self.rows, self.lanes))

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        rows = self._place(source)
        for level in range(self.form.num_levels):
            rows.emit(
                s for s in self.form.steps
                if s.level == level and not s.full and s.kind not in ("store", "reduce")
            )  # fmt: skip
            stores = [s for s in self.form.steps if s.kind == "store" and s.level == level]
            per_row = [s for s in stores if not s.full]
            if per_row:
                with source.block("if (live && lane == 0) {", "}"):
                    rows.emit(per_row)
            reduces = [s for s in self.form.steps if s.kind == "reduce" and s.level == level]
            full = [s for s in stores if s.full]
            if reduces or full:
                self._loop(source, rows, level, reduces, full)
            for step in reduces:
                self._meet(source, rows, step)

    def _place(self, source: Source) -> Scalar:
        kind = f"const {index_type(self.form)}"
        tid = "threadIdx.x"
        lane, row = f"{tid} % {self.lanes}", f"{tid} / {self.lanes}"
        if self.by_task:
            lane, row = f"{tid} / {self.rows}", f"{tid} % {self.rows}"
        source.line(f"const int lane = {lane};")
        source.line(f"const int row = {row};")
        source.line(
            f"{kind} place = ({kind.removeprefix('const ')})blockIdx.x * {self.rows} + row;"
        )
        # Threads beyond the last task compute it again, and meet the others at barriers.
        source.line(f"const bool live = place < {self.tasks};")
        source.line(f"{kind} task = live ? place : {self.tasks} - 1;")
        names = {f"i{d}": n for d, n in enumerate(self.form.parallel)}
        decode(source, "task", names, kind)
        for value in sorted(self.kept):
            dtype = TYPES[held(self.form.makers[value].dtype)]
            source.line(f"{dtype} v{value}[{self.turns}];")
        return Scalar(self.form, source, {d: f"i{d}" for d in range(self.form.num_parallel)})

    def _loop(
        self,
        source: Source,
        rows: Scalar,
        level: int,
        reduces: Sequence[Step],
        stores: Sequence[Step],
    ) -> None:
        for step in reduces:
            source.line(f"{accumulator_type(step)} v{step.result} = {padding(step)};")
        needed = self._behind(self._wanted(level), self.available)
        with self._columns(source):
            self._column_indices(source)
            point = self._point(source, rows)
            point.emit(s for s in self.form.steps if s.result in needed)
            for step in reduces:
                name, value = f"v{step.result}", point.values[step.operands[0]]
                kind = accumulator_type(step)
                source.line(f"{name} = {joined(step, name, f'({kind}){value}')};")
            if stores:
                with source.block("if (live) {", "}"):
                    point.emit(stores)
        self.available |= needed & self.kept

    def _columns(self, source: Source) -> AbstractContextManager[None]:
        """Open the loop over the columns of a thread."""
        if self.kept:
            source.line("#pragma unroll")
            head = f"for (int j = 0; j < {self.turns}; ++j)"
            guard = (
                ""
                if self.columns % self.lanes == 0
                else f" if (const int c = lane + j * {self.lanes}; c < {self.columns})"
            )
            if guard:
                return source.block(f"{head}{guard} {{", "}")
            return source.block(f"{head} {{\n  const int c = lane + j * {self.lanes};", "}")
        kind = index_type(self.form)
        return source.block(f"for ({kind} c = lane; c < {self.columns}; c += {self.lanes}) {{", "}")

    def _column_indices(self, source: Source) -> None:
        names = {f"c{n}": size for n, size in enumerate(self.form.reduced)}
        kind = f"const {index_type(self.form)}"
        decode(source, "c", names, kind)

    def _point(self, source: Source, rows: Scalar) -> Scalar:
        first = self.form.num_parallel
        columns = {first + n: f"c{n}" for n in range(len(self.form.reduced))}
        point = Scalar(self.form, source, {**rows.coordinates, **columns}, rows.values)
        point.kept = {value: f"v{value}[j]" for value in self.kept}
        point.values.update(point.kept)
        return point

    def _meet(self, source: Source, rows: Scalar, step: Step) -> None:
        """Combine the partial results of the threads of a task; all of them get the result."""
        name, kind = f"v{step.result}", accumulator_type(step)
        if self.by_task:
            self._meet_in_memory(source, step, "lane", self.lanes)
        elif self.lanes > 1:
            half = min(self.lanes, WARP) // 2
            with source.block(f"for (int distance = {half}; distance > 0; distance /= 2) {{", "}"):
                source.line(f"const {kind} other = __shfl_xor_sync(0xffffffffu, {name}, distance);")
                source.line(f"{name} = {joined(step, name, 'other')};")
            if self.lanes > WARP:
                self._meet_in_memory(source, step, f"lane / {WARP}", self.lanes // WARP)
        result = TYPES[held(step.dtype)]
        if result != kind:
            test = " != 0" if step.dtype == "i1" else ""
            source.line(f"const {result} w{step.result} = ({result})({name}{test});")
            name = f"w{step.result}"
        rows.values[step.result] = name

    def _meet_in_memory(self, source: Source, step: Step, part: str, parts: int) -> None:
        name, kind = f"v{step.result}", accumulator_type(step)
        if parts == 1:
            return
        source.line(f"__shared__ {kind} s{step.result}[{self.rows}][{parts + (parts > 1)}];")
        guard = "" if self.by_task else f"if (lane % {WARP} == 0) "
        source.line(f"{guard}s{step.result}[row][{part}] = {name};")
        source.line("__syncthreads();")
        source.line(f"{name} = s{step.result}[row][0];")
        with source.block(f"for (int part = 1; part < {parts}; ++part) {{", "}"):
            source.line(f"{name} = {joined(step, name, f's{step.result}[row][part]')};")

    def _tasks_adjacent(self) -> bool:
        """Return whether accesses walk memory along the last task dim and not along the columns."""
        last, column = self.form.num_parallel - 1, len(self.form.sizes) - 1
        loads = [s.place.strides for s in self.form.steps if s.kind == "load" and s.full]
        if last < 0 or any(s[column] == 1 for s in loads):
            return False
        return any(s[last] == 1 for s in loads)

    def _shape(self) -> tuple[int, int]:
        """Return threads a task and tasks a block."""
        columns = power_of_two(self.columns)
        if has_sizes((self.columns,)):
            # Rows of any length: threads for those of the first call, and for none too few.
            columns = max(OPEN_COLUMNS, self.form.options.get("block_r", OPEN_COLUMNS))
        if self.by_task:
            lanes = min(8, columns)
            return lanes, min(WARP, power_of_two(self.tasks))
        lanes = min(columns, WARP)
        while lanes < MAX_LANES and columns // lanes > KEPT_COLUMNS // 2:
            lanes *= 2
        wanted = power_of_two(prod(self.form.tile))
        rows = max(min(wanted, 256 // lanes), LEAST_THREADS // lanes, 1)
        return lanes, rows

    def _kept(self) -> frozenset[int]:
        """Return the full values that one loop computes and a later one reads, where they fit."""
        if has_sizes((self.turns,)) or self.turns > KEPT_COLUMNS or self.columns == 0:
            return frozenset()
        computed: set[int] = set()
        read_again: set[int] = set()
        for level in range(self.form.num_levels):
            wanted = self._wanted(level)
            needed = self._behind(wanted, computed)
            read = {*wanted, *(v for n in needed for v in self.form.makers[n].operands)}
            read_again |= {
                v for v in read & computed if self.form.makers[v].kind not in ("constant", "index")
            }
            computed |= needed
        fits = len(read_again) * self.turns <= KEPT_REGISTERS
        return frozenset(read_again) if fits else frozenset()

    def _behind(self, values: Sequence[int], known: AbstractSet[int]) -> set[int]:
        """Return the full values to compute for some values, given what is known."""
        return self.form.behind(values, lambda s: s.full and s.result not in known)

    def _wanted(self, level: int) -> list[int]:
        """Return the full values that the loop of a level reduces or stores."""
        return [
            v
            for s in self.form.steps
            if s.level == level and (s.kind == "reduce" or (s.kind == "store" and s.full))
            for v in s.operands
        ]
