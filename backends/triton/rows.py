"""Template ``rows``: a program computes a tile of tasks and all columns of each.

Columns are the reduced dims as one. Up to ``MAX_COLUMNS`` of them are one block, padded to a power
of two; more of them are looped over, once for each level of reductions, and what a loop needs of
an earlier one is computed again from its loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from irc.backends.triton.block import Block, Coordinate, literal
from irc.backends.triton.functions import TYPES
from irc.backends.triton.sizes import as_index
from irc.kernels.arithmetic import INTEGERS, accumulator, held, neutral, power_of_two
from irc.kernels.form import Form, Step
from irc.kernels.gpu.run_time import has_sizes
from irc.kernels.schedule import GPU_POINTS
from irc.kernels.source import Source

MAX_COLUMNS = 8192
LOOP_COLUMNS = 2048
MAX_ELEMENTS = 16384
LEAST_ELEMENTS = 1024
SQUARE = 32
OPEN_COLUMNS = 256
"""The least block of columns whose number is known only when the kernel runs."""


class Rows:
    """The tile of a rows kernel and the code for it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        columns = power_of_two(form.num_columns)
        most = form.options.get("block_r", MAX_COLUMNS)
        if has_sizes(form.reduced):
            # Rows of any length: a loop over blocks that are not those of the first call alone.
            most = max(most, OPEN_COLUMNS)
        self.has_columns = form.num_parallel < len(form.sizes)
        self.is_looped = columns > most
        self.columns = min(LOOP_COLUMNS, most) if self.is_looped else columns
        self.tile = self._tile()
        self.grid = tuple(-(-n // t) for n, t in zip(form.parallel, self.tile, strict=True))
        self.axes = [d for d, t in enumerate(self.tile) if t > 1]
        self.rank = len(self.axes) + self.has_columns
        most = max(1, min(16, prod(self.tile) * self.columns // 128))
        # As the kernel says, but no warp without four elements a thread.
        self.num_warps = min(most, form.options.get("num_warps") or max(1, most // 4))
        self.num_stages = 1

    @property
    def mapping(self) -> str:
        """The mapping as it is launched: the kernel's, with tiles rounded to powers of two."""
        grid, tile = ", ".join(map(str, self.grid)), ", ".join(map(str, self.tile))
        return f"spatial({grid}) * repeat({tile})" if self.tile else "spatial() * repeat()"

    def _tile(self) -> tuple[int, ...]:
        tile = [
            power_of_two(min(t, n)) for t, n in zip(self.form.tile, self.form.parallel, strict=True)
        ]
        if self.form.symbols and tile and self.has_columns:
            # The mapping of such a kernel is that of one task; this is what one program does.
            tile[-1] = min(max(1, GPU_POINTS // self.columns), power_of_two(self.form.parallel[-1]))
        limit = 2 * LOOP_COLUMNS if self.is_looped else MAX_ELEMENTS
        # A mapping made for another machine may ask for more than fits in registers ...
        while tile and prod(tile) * self.columns > limit and max(tile) > 1:
            widest = tile.index(max(tile))
            tile[widest] //= 2
        if self.has_columns:
            return tuple(tile)
        # ... and one for several short dims for less than occupies a program.
        crossed = [d for d in self._fast_dims() if d < len(tile) - 1]
        if crossed:
            tile = [1] * len(tile)
            tile[crossed[-1]] = min(SQUARE, power_of_two(self.form.parallel[crossed[-1]]))
        while prod(tile) < LEAST_ELEMENTS:
            room = [d for d, n in enumerate(self.form.parallel) if tile[d] < n]
            if not room:
                break
            tile[room[-1]] *= 2
        return tuple(tile)

    def _fast_dims(self) -> set[int]:
        """The dims along which some access walks memory in order: two in a transposition."""
        return {
            d
            for step in self.form.steps if step.access and step.access.strides[-1:] > (0,)
            for d, stride in enumerate(step.access.strides) if stride == 1
        }  # fmt: skip

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        coordinates, masks = self._parallel(source)
        if self.is_looped:
            self._looped(source, coordinates, masks)
            return
        if self.has_columns:
            self._columns(source, coordinates, masks, start="")
        block = Block(self.form, source, coordinates, masks, self.rank)
        for step in self.form.steps:
            if step.kind == "reduce":
                self._reduce(block, step)
            else:
                block.emit([step])

    def _parallel(self, source: Source) -> tuple[dict[int, Coordinate], dict[int, str | None]]:
        coordinates: dict[int, Coordinate] = {}
        masks: dict[int, str | None] = {}
        places = [d for d, count in enumerate(self.grid) if count > 1]
        if places:
            wide = as_index(self.form)
            source.line(f"pid = tl.program_id(0){wide}")
        for dim, (size, tile, count) in enumerate(
            zip(self.form.parallel, self.tile, self.grid, strict=True)
        ):
            inner = prod(self.grid[dim + 1 :])
            text = "0"
            if count > 1:
                text = "pid" if inner == 1 else f"pid // {inner}"
                text = text if dim == places[0] else f"{text} % {count}"
            if tile > 1:
                line = f"tl.arange(0, {tile})"
                start = text if text == "pid" else f"({text})"
                text = line if count == 1 else f"{start} * {tile} + {line}"
                text = self._spread(text, self.axes.index(dim))
            source.line(f"i{dim} = {text}")
            axis = self.axes.index(dim) if tile > 1 else None
            coordinates[dim] = Coordinate(f"i{dim}", axis)
            if axis is not None:
                masks[axis] = None if size == tile * count else f"m{dim}"
                if masks[axis]:
                    source.line(f"m{dim} = i{dim} < {size}")
        return coordinates, masks

    def _columns(
        self,
        source: Source,
        coordinates: dict[int, Coordinate],
        masks: dict[int, str | None],
        start: str,
    ) -> None:
        axis, total = self.rank - 1, self.form.num_columns
        wide = as_index(self.form)
        line = self._spread(f"{start}tl.arange(0, {self.columns}){wide}", axis)
        source.line(f"c = {line}")
        masks[axis] = None if total % self.columns == 0 and total else "mc"
        if masks[axis]:
            source.line(f"mc = c < {total}")
        reduced = self.form.reduced
        for number, size in enumerate(reduced):
            dim, inner = self.form.num_parallel + number, prod(reduced[number + 1 :])
            text = "c" if inner == 1 else f"c // {inner}"
            if number:
                text = f"{text} % {size}"
            if text != "c":
                source.line(f"c{number} = {text}")
                text = f"c{number}"
            coordinates[dim] = Coordinate(text, axis)

    def _spread(self, text: str, axis: int) -> str:
        if self.rank == 1:
            return text
        index = ", ".join(":" if a == axis else "None" for a in range(self.rank))
        single = text.startswith("tl.arange(") and " " not in text.split(")")[-1]
        return f"{text}[{index}]" if single else f"({text})[{index}]"

    def _reduce(self, block: Block, step: Step) -> None:
        value, axis = block.values[step.operands[0]], self.rank - 1
        text = self._operand(step, value.name)
        if (mask := block.masks[axis]) is not None:
            text = f"tl.where({mask}, {text}, {padding(step)})"
        elif axis not in value.axes:
            text = f"tl.broadcast_to({text}, {self._shape(value.axes)})"
        self._finish(block, step, text, value.axes - {axis})

    def _finish(self, block: Block, step: Step, text: str, axes: frozenset[int]) -> None:
        axis = self.rank - 1
        reduction = combined(step, text, axis, keep=self.rank > 1)
        block.define(step, reduction, axes, is_block=self.rank > 1)

    def _operand(self, step: Step, name: str) -> str:
        wanted = accumulator(step)
        return name if held(step.operand_dtypes[0]) == wanted else f"{name}.to({TYPES[wanted]})"

    def _shape(self, axes: frozenset[int]) -> str:
        extents = [self.tile[d] for d in self.axes] + [self.columns]
        return str([n if a in axes or a == self.rank - 1 else 1 for a, n in enumerate(extents)])

    def _looped(
        self, source: Source, coordinates: dict[int, Coordinate], masks: dict[int, str | None]
    ) -> None:
        form = self.form
        rows = Block(form, source, coordinates, masks, self.rank)
        per_row = {s.result for s in form.steps if not s.full}
        for level in range(form.num_levels):
            rows.emit(
                s for s in form.steps
                if s.level == level and not s.full and s.kind not in ("reduce", "contract")
            )  # fmt: skip
            reduces = [s for s in form.steps if s.kind == "reduce" and s.level == level]
            stores = [s for s in form.steps if s.kind == "store" and s.full and s.level == level]
            if reduces or stores:
                self._loop(source, rows, per_row, reduces, stores)

    def _loop(
        self,
        source: Source,
        rows: Block,
        per_row: set[int],
        reduces: Sequence[Step],
        stores: Sequence[Step],
    ) -> None:
        form = self.form
        wanted = [v for s in (*reduces, *stores) for v in s.operands]
        again = form.behind(wanted, lambda s: s.result not in per_row)
        shape = str([*[self.tile[d] for d in self.axes], self.columns])
        for step in reduces:
            kind = accumulator(step)
            value = literal(neutral(step), kind)
            source.line(f"acc{step.result} = tl.full({shape}, {value}, {TYPES[kind]})")
        with source.block(f"for start in range(0, {form.num_columns}, {self.columns}):"):
            coordinates, masks = dict(rows.coordinates), dict(rows.masks)
            self._columns(source, coordinates, masks, "start + ")
            block = Block(form, source, coordinates, masks, self.rank)
            block.values.update(rows.values)
            block.emit(s for s in form.steps if s.result in again)
            for step in reduces:
                name = f"acc{step.result}"
                text = self._operand(step, block.values[step.operands[0]].name)
                if mask := masks[self.rank - 1]:
                    text = f"tl.where({mask}, {text}, {padding(step)})"
                source.line(f"{name} = {joined(step, name, text)}")
            block.emit(stores)
        everywhere = frozenset(range(self.rank - 1))
        for step in reduces:
            self._finish(rows, step, f"acc{step.result}", everywhere)


def padding(step: Step) -> str:
    """Return the neutral element of a reduction, typed where a plain literal would not be."""
    kind = accumulator(step)
    text = literal(neutral(step), kind)
    return text if kind in ("f32", "i32") else f"tl.full((), {text}, {TYPES[kind]})"


def joined(step: Step, left: str, right: str) -> str:
    """Return the combination of two partial results."""
    integer = accumulator(step) in INTEGERS
    match step.fn:
        case "sum":
            return f"{left} + {right}"
        case "prod":
            return f"{left} * {right}"
        case "max" | "any":
            return f"{'_max_int' if integer else '_maximum'}({left}, {right})"
        case _:
            return f"{'_min_int' if integer else '_minimum'}({left}, {right})"


def combined(step: Step, text: str, axis: int, *, keep: bool) -> str:
    """Return the reduction of a block along an axis; NaN passes through max and min."""
    integer = accumulator(step) in INTEGERS
    kept = ", keep_dims=True" if keep else ""
    match step.fn:
        case "sum":
            reduction = f"tl.sum({text}, {axis}{kept})"
        case "prod":
            reduction = f"tl.reduce({text}, {axis}, _product{kept})"
        case "max" | "any":
            reduction = f"tl.reduce({text}, {axis}, {'_max_int' if integer else '_maximum'}{kept})"
        case _:
            reduction = f"tl.reduce({text}, {axis}, {'_min_int' if integer else '_minimum'}{kept})"
    if step.dtype == "i1":
        return f"{reduction} != 0"
    return f"{reduction}.to({TYPES[held(step.dtype)]})" if integer else reduction
