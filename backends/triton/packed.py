"""Templates ``packed`` and ``grouped``: rows times weights that lie in panels.

Integer weights are read as they lie, eight of four bits a word, and become floats in registers;
what does not depend on the place in a word (words, scales, zero points) is read once for all of its
weights and then spread. A panel is contiguous along k and its columns, so a program reads runs of
memory. One row adds up products of k by n, as :mod:`irc.backends.triton.matmul` does.

Rows of a grouped product that meet the same matrix are multiplied together: a tile walks over the
matrices from the first to the last that one of its rows names, and skips those that none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from irc.backends.triton.block import Block, Coordinate, Value
from irc.backends.triton.functions import TYPES
from irc.errors import InternalError
from irc.kernels.arithmetic import contraction, held, power_of_two
from irc.kernels.form import Form, Step
from irc.kernels.source import Source

LEAST_TILE = 16
MOST_ROWS = 64
VECTOR = (16, 256)
"""Columns and products of a tile of one row: a panel, and a kilobyte or two of it a step."""
TILE = (64, 32)
"""The same for several rows."""


class Packed:
    """The tile of a kernel that reads panels, and the code for it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        (self.contract,) = [s for s in form.steps if s.kind == "contract"]
        weight = form.behind([self.contract.operands[1]], lambda s: True)
        indices = [o for s in form.steps if s.result in weight and s.kind == "load"
                   for o in s.operands]  # fmt: skip
        self.by_row = form.behind(indices, lambda s: True)
        self.weight = [s for s in form.steps if s.result in weight - self.by_row]
        loads = [s for s in self.weight if s.kind == "load"]
        spans = {d for s in loads for d, stride in enumerate(s.place.strides) if stride}
        parallel = range(form.num_parallel)
        self.columns = [d for d in parallel if d in spans]
        self.rows = [d for d in parallel if d not in spans]
        self.m, self.n = (prod(form.sizes[d] for d in dims) for dims in (self.rows, self.columns))
        self.k, self.nibbles = form.num_columns, self._nibbles()
        self.is_vector = self.m == 1
        block_n, block_k = VECTOR if self.is_vector else TILE
        options = form.options
        self.block_m = 1 if self.is_vector else self._extent(options.get("block_m"), self.m)
        self.block_n = max(LEAST_TILE, min(options.get("block_n", block_n), power_of_two(self.n)))
        self.block_k = min(options.get("block_k", block_k), power_of_two(self.k))
        self.block_k = max(LEAST_TILE, self.nibbles, self.block_k)
        self.tiles_m, self.tiles_n = -(-self.m // self.block_m), -(-self.n // self.block_n)
        self.grid = (self.tiles_m * self.tiles_n,)
        self.num_warps, self.num_stages = options.get("num_warps") or 4, 2

    @staticmethod
    def _extent(wanted: int | None, size: int) -> int:
        most = MOST_ROWS if wanted is None else power_of_two(wanted)
        return max(LEAST_TILE, min(most, power_of_two(size)))

    def _nibbles(self) -> int:
        """The weights of a word: the size of the last reduced dim where a weight's place counts."""
        last = len(self.form.sizes) - 1
        places = [s for s in self.weight if s.kind == "index" and s.dim == last]
        return self.form.sizes[last] if places else 1

    @property
    def mapping(self) -> str:
        """The mapping as it is launched, over rows and columns."""
        return f"spatial({self.tiles_m}, {self.tiles_n}) * repeat({self.block_m}, {self.block_n})"

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        wide = ".to(tl.int64)" if self.form.is_wide else ""
        source.line(f"pid = tl.program_id(0){wide}")
        source.line(f"im = (pid // {self.tiles_n} * {self.block_m} + "
                    f"tl.arange(0, {self.block_m}))[:, None]")  # fmt: skip
        source.line(f"jn = (pid % {self.tiles_n} * {self.block_n} + "
                    f"tl.arange(0, {self.block_n}))[None, :]")  # fmt: skip
        masks = {0: self._masked(source, "mm", "im", self.m, self.block_m),
                 1: self._masked(source, "mn", "jn", self.n, self.block_n)}  # fmt: skip
        coordinates = {
            **self._dims(source, "im", self.rows, 0),
            **self._dims(source, "jn", self.columns, 1),
        }
        result, kind = f"v{self.contract.result}", TYPES[contraction(self.contract)]
        lines = self.block_k if self.is_vector else self.block_m
        source.line(f"{result} = tl.zeros([{lines}, {self.block_n}], {kind})")
        block = Block(self.form, source, coordinates, masks, 2)
        block.emit(s for s in self.form.steps if s.result in self.by_row)
        if self.by_row:
            self._grouped(source, block, masks)
        else:
            self._loop(source, block, masks)
        if self.is_vector:
            source.line(f"{result} = tl.sum({result}, 0, keep_dims=True)")
        if held(self.contract.dtype) != contraction(self.contract):
            source.line(f"{result} = {result}.to({TYPES[held(self.contract.dtype)]})")
        axes = frozenset({1} if self.is_vector else {0, 1})
        block.values[self.contract.result] = Value(result, axes, is_block=True)
        stored = [o for s in self.form.steps if s.kind == "store" for o in s.operands]
        wanted = self.form.behind(stored, lambda s: s.kind != "contract") - self.by_row
        block.emit(s for s in self.form.steps if s.kind == "store" or s.result in wanted)

    def _masked(self, source: Source, mask: str, name: str, size: int, block: int) -> str | None:
        if size % block == 0:
            return None
        source.line(f"{mask} = {name} < {size}")
        return mask

    def _dims(
        self, source: Source, name: str, dims: Sequence[int], axis: int, count: int | None = None
    ) -> dict[int, Coordinate]:
        """Append how some dims follow from one number that counts them all, row-major."""
        sizes = [self.form.sizes[d] for d in dims]
        coordinates: dict[int, Coordinate] = {}
        for at, dim in enumerate(dims[:count]):
            inner = prod(sizes[at + 1 : count])
            text = name if inner == 1 else f"{name} // {inner}"
            text = f"({text}) % {sizes[at]}" if at else text
            if text != name:
                source.line(f"{name}{dim} = {text}")
                text = f"{name}{dim}"
            coordinates[dim] = Coordinate(text, axis)
        return coordinates

    # Matrices, and the steps of k.

    def _grouped(self, source: Source, block: Block, masks: dict[int, str | None]) -> None:
        """Walk over the matrices that a tile's rows name."""
        (load,) = [s for s in self.weight if s.operands and s.kind == "load"]
        chosen = block.values[load.operands[0]]
        first = last = chosen.name
        if masks[0] and 0 in chosen.axes:
            source.line("# Rows beyond the last name no matrix.")
            first, last = f"tl.where(mm, {first}, 2147483647)", f"tl.where(mm, {last}, -1)"
        if chosen.is_block:
            first, last = f"tl.min({first})", f"tl.max({last})"
        with source.block(f"for e in range({first}, {last} + 1):"):
            source.line("matrix = tl.full((), e, tl.int64)")
            source.line(f"here = {chosen.name} == matrix")
            if chosen.is_block:
                with source.block("if tl.max(here.to(tl.int32)) > 0:"):
                    self._loop(source, block, masks, load)
            else:
                self._loop(source, block, masks, load)

    def _loop(
        self,
        source: Source,
        rows: Block,
        masks: dict[int, str | None],
        grouped: Step | None = None,
    ) -> None:
        form, tail = self.form, self.k % self.block_k != 0
        with source.block(f"for start in range(0, {self.k}, {self.block_k}):"):
            wide = ".to(tl.int64)" if form.is_wide else ""
            source.line(f"k = start + tl.arange(0, {self.block_k}){wide}")
            source.line("ak = k[None, :]")
            source.line("bk = k[:, None]")
            if tail:
                source.line(f"ma = ak < {self.k}")
                source.line(f"mb = bk < {self.k}")
            reduced = list(range(form.num_parallel, len(form.sizes)))
            own = {d: c for d, c in rows.coordinates.items() if d in self.rows}
            left = Block(form, source, {**own, **self._dims(source, "ak", reduced, 1)},
                         {0: masks[0], 1: "ma" if tail else None}, 2, "a")  # fmt: skip
            wanted = form.behind([self.contract.operands[0]], lambda s: True)
            left.emit(s for s in form.steps if s.result in wanted)
            a = self._left(source, left, grouped is not None)
            right = self._right(source, rows, masks[1], reduced, tail=tail, grouped=grouped)
            self._multiply(source, a, right)

    def _left(self, source: Source, left: Block, grouped: bool) -> str:
        """Return the rows' elements: zeros beyond the last product, and for another matrix."""
        number = self.contract.operands[0]
        name, mask = left.values[number].name, left.mask(left.values[number].axes)
        if mask and self.form.makers[number].kind != "load":
            source.line(f"a = tl.where({mask}, {name}, 0)")
            name = "a"
        if grouped:
            source.line(f"a = tl.where(here, {name}, 0)")
            name = "a"
        return name

    def _right(
        self,
        source: Source,
        rows: Block,
        mask_n: str | None,
        reduced: Sequence[int],
        *,
        tail: bool,
        grouped: Step | None,
    ) -> str:
        """Append the weights of a step as floats, k by n; return their name."""
        form, own = self.form, {d: c for d, c in rows.coordinates.items() if d in self.columns}
        masks = {0: "mb" if tail else None, 1: mask_n}
        fine = Block(form, source, {**own, **self._dims(source, "bk", reduced, 0)}, masks, 2, "b")
        coarse = fine
        if self.nibbles > 1:
            words = f"start // {self.nibbles} + tl.arange(0, {self.block_k // self.nibbles})"
            source.line(f"wk = ({words})[:, None]")
            if tail:
                source.line(f"mw = wk < {self.k // self.nibbles}")
            dims = self._dims(source, "wk", reduced, 0, len(reduced) - 1)
            coarse = Block(form, source, {**own, **dims},
                           {0: "mw" if tail else None, 1: mask_n}, 2, "w")  # fmt: skip
        if grouped is not None:
            # The matrix of this round stands for the row's own.
            fine.values[grouped.operands[0]] = Value("matrix", frozenset(), is_block=False)
        by_place: set[int] = set()
        for step in self.weight:
            if self.nibbles == 1 or not self._by_place(step, by_place):
                coarse.emit([step])
                continue
            by_place.add(step.result)
            for operand in step.operands:
                if operand not in fine.values:
                    fine.values[operand] = self._spread(source, coarse.values[operand])
            fine.emit([step])
        number = self.contract.operands[1]
        if number not in fine.values:
            raise InternalError(f"the weights of @{form.name} do not depend on their place")
        return fine.values[number].name

    def _by_place(self, step: Step, known: set[int]) -> bool:
        """True for a step whose value depends on the place in a word."""
        last = len(self.form.sizes) - 1
        if step.kind == "index":
            return step.dim == last
        if step.kind == "load" and step.place.strides[last]:
            return True
        return any(operand in known for operand in step.operands)

    def _spread(self, source: Source, value: Value) -> Value:
        """Append a value of words as one of weights."""
        if 0 not in value.axes:
            return value
        name, words = f"{value.name}_all", self.block_k // self.nibbles
        width = self.block_n if 1 in value.axes else 1
        wide = f"tl.broadcast_to({value.name}[:, None, :], [{words}, {self.nibbles}, {width}])"
        source.line(f"{name} = tl.reshape({wide}, [{self.block_k}, {width}])")
        return Value(name, value.axes, is_block=True)

    def _multiply(self, source: Source, a: str, b: str) -> None:
        result, kind = f"v{self.contract.result}", TYPES[contraction(self.contract)]
        if self.is_vector:
            source.line(f"{result} += tl.trans({a}).to({kind}) * {b}.to({kind})")
            return
        for side, name in enumerate((a, b)):
            dtype = self.contract.operand_dtypes[side]
            if held(dtype) != dtype:
                name = f"{name}.to({TYPES[dtype]})"
            shape = [self.block_m, self.block_k] if side == 0 else [self.block_k, self.block_n]
            source.line(f"{'ab'[side]} = tl.broadcast_to({name}, {shape})")
        precision = "tf32" if self.form.options.get("tf32") else "ieee"
        how = f'input_precision="{precision}", out_dtype={kind}'
        source.line(f"{result} = tl.dot(a, b, {result}, {how})")
