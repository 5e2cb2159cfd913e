"""Template ``rows``: a program computes a tile of tasks and all columns of each.

Columns are the reduced dims as one. Up to ``MAX_COLUMNS`` of them are one block, padded to a power of
two; more of them are looped over, once for each level of reductions, and what a loop needs of an
earlier one is computed again from its loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from irc.backends.triton.block import Block, Coordinate, literal
from irc.backends.triton.functions import INTEGERS, TYPES, held
from irc.kernels.form import Form, Step
from irc.kernels.source import Source

MAX_COLUMNS = 8192
LOOP_COLUMNS = 2048
MAX_ELEMENTS = 16384

LEAST = {"i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -128, "u8": 0}
MOST = {"i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 127, "u8": 255}


class Rows:
    """The tile of a rows kernel and the code for it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        columns = power_of_two(form.num_columns)
        self.has_columns = form.num_parallel < len(form.sizes)
        self.is_looped = columns > MAX_COLUMNS
        self.columns = LOOP_COLUMNS if self.is_looped else columns
        self.tile = self._tile()
        self.grid = tuple(-(-n // t) for n, t in zip(form.parallel, self.tile, strict=True))
        self.axes = [d for d, t in enumerate(self.tile) if t > 1]
        self.rank = len(self.axes) + self.has_columns

    @property
    def mapping(self) -> str:
        """The mapping as it is launched: the kernel's, with tiles rounded to powers of two."""
        grid, tile = ", ".join(map(str, self.grid)), ", ".join(map(str, self.tile))
        return f"spatial({grid}) * repeat({tile})" if self.tile else "spatial() * repeat()"

    @property
    def num_warps(self) -> int:
        """As the kernel says, else 32 elements a thread at most."""
        elements = prod(self.tile) * self.columns
        return self.form.options.get("num_warps") or max(1, min(16, elements // 512))

    def _tile(self) -> tuple[int, ...]:
        tile = [
            power_of_two(min(t, n)) for t, n in zip(self.form.tile, self.form.parallel, strict=True)
        ]
        # A mapping made for another machine may ask for more than fits in registers.
        while prod(tile) * self.columns > MAX_ELEMENTS and max(tile) > 1:
            widest = tile.index(max(tile))
            tile[widest] //= 2
        return tuple(tile)

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
        rest = "tl.program_id(0)" + (".to(tl.int64)" if self.form.is_wide else "")
        places = [d for d, count in enumerate(self.grid) if count > 1]
        if len(places) > 1:
            source.line(f"pid = {rest}")
            rest = "pid"
        for dim, (size, tile, count) in enumerate(
            zip(self.form.parallel, self.tile, self.grid, strict=True)
        ):
            inner = prod(self.grid[dim + 1 :])
            place = rest if inner == 1 else f"{rest} // {inner}"
            if dim != (places or [dim])[0]:
                place = f"{place} % {count}"
            text = "0" if count == 1 else place
            if tile > 1:
                line = f"tl.arange(0, {tile})"
                text = line if count == 1 else f"({text}) * {tile} + {line}"
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
        line = self._spread(f"{start}tl.arange(0, {self.columns})", axis)
        source.line(f"c = {line}" + (".to(tl.int64)" if self.form.is_wide else ""))
        masks[axis] = None if total % self.columns == 0 and total else "mc"
        if masks[axis]:
            source.line(f"mc = c < {total}")
        reduced = self.form.reduced
        for number, size in enumerate(reduced):
            dim, inner = self.form.num_parallel + number, prod(reduced[number + 1 :])
            text = "c" if inner == 1 else f"c // {inner}"
            if number:
                text = f"({text}) % {size}"
            if text != "c":
                source.line(f"c{number} = {text}")
                text = f"c{number}"
            coordinates[dim] = Coordinate(text, axis)

    def _spread(self, text: str, axis: int) -> str:
        if self.rank == 1:
            return text
        index = ", ".join(":" if a == axis else "None" for a in range(self.rank))
        return f"({text})[{index}]"

    def _reduce(self, block: Block, step: Step) -> None:
        value, axis = block.values[step.operands[0]], self.rank - 1
        text = self._operand(step, value.name)
        if (mask := block.masks[axis]) is not None:
            text = f"tl.where({mask}, {text}, {neutral(step)})"
        elif axis not in value.axes:
            text = f"tl.broadcast_to({text}, {self._shape(value.axes)})"
        self._finish(block, step, text, value.axes - {axis})

    def _finish(self, block: Block, step: Step, text: str, axes: frozenset[int]) -> None:
        axis = self.rank - 1
        found = combined(step, text, axis, keep=self.rank > 1)
        block.define(step, found, axes, is_block=self.rank > 1)

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
            source.line(f"acc{step.result} = tl.zeros({shape}, {TYPES[accumulator(step)]}) + {neutral(step)}")
        start = "tl.cast(start, tl.int64) + " if form.is_wide else "start + "
        with source.block(f"for start in range(0, {form.num_columns}, {self.columns}):"):
            coordinates, masks = dict(rows.coordinates), dict(rows.masks)
            self._columns(source, coordinates, masks, start)
            block = Block(form, source, coordinates, masks, self.rank)
            block.values.update(rows.values)
            block.emit(s for s in form.steps if s.result in again)
            for step in reduces:
                name = f"acc{step.result}"
                text = self._operand(step, block.values[step.operands[0]].name)
                if mask := masks[self.rank - 1]:
                    text = f"tl.where({mask}, {text}, {neutral(step)})"
                source.line(f"{name} = {joined(step, name, text)}")
            block.emit(stores)
        everywhere = frozenset(range(self.rank - 1))
        for step in reduces:
            self._finish(rows, step, f"acc{step.result}", everywhere)


def accumulator(step: Step) -> str:
    """Return the dtype in which a reduction runs."""
    return "i32" if step.fn in ("any", "all") or step.dtype == "i1" else held(step.dtype)


def neutral(step: Step) -> str:
    """Return the neutral element of a reduction."""
    kind = accumulator(step)
    least, most = LEAST.get(kind, float("-inf")), MOST.get(kind, float("inf"))
    value = {"sum": 0, "prod": 1, "max": least, "min": most, "any": 0, "all": 1}[step.fn]
    if step.operand_dtypes[0] == "i1":
        value = {"max": 0, "min": 1}.get(step.fn, value)
    return f"tl.full((), {literal(value, kind)}, {TYPES[kind]})"


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
            found = f"tl.sum({text}, {axis}{kept})"
        case "prod":
            found = f"tl.reduce({text}, {axis}, _product{kept})"
        case "max" | "any":
            found = f"tl.reduce({text}, {axis}, {'_max_int' if integer else '_maximum'}{kept})"
        case _:
            found = f"tl.reduce({text}, {axis}, {'_min_int' if integer else '_minimum'}{kept})"
    if step.dtype == "i1":
        return f"{found} != 0"
    return f"{found}.to({TYPES[held(step.dtype)]})" if integer else found


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number.

    >>> [power_of_two(n) for n in (0, 1, 3, 64)]
    [1, 1, 4, 64]
    """
    return 1 << max(0, number - 1).bit_length()
