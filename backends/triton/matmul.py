"""Template ``matmul``: a program loops over k for a tile of m by n, then runs the epilogue.

One row is a matter of reading the other operand: its products add up in a tile of k by n, of which
the sum over k is taken after the loop, so that no step waits for other threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from irc.backends.triton.block import Block, Coordinate, Value
from irc.backends.triton.functions import TYPES
from irc.backends.triton.sizes import as_index
from irc.kernels.arithmetic import FLOATS, contraction, held, power_of_two
from irc.kernels.form import Form, Step
from irc.kernels.source import Source

# Fewer rows, columns or products than this do not fill one tensor-core instruction.
LEAST_TILE = 16
GROUP = 8
VECTOR_TILE = 4096
"""Products of k by n that one row keeps in registers."""


class Matmul:
    """The tile of a matmul kernel and the code for it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.m_dim, self.n_dim = form.num_parallel - 2, form.num_parallel - 1
        self.m, self.n, self.k = form.sizes[self.m_dim], form.sizes[self.n_dim], form.num_columns
        self.contracts = [s for s in form.steps if s.kind == "contract"]
        self.is_float = all(s.operand_dtypes[0] in FLOATS for s in self.contracts)
        options, tile = form.options, form.tile
        self.is_vector = self.is_float and self.m == 1
        limit = 128 if self.is_float else LEAST_TILE
        self.block_m = _extent(options.get("block_m", tile[-2]), self.m, limit)
        self.block_n = _extent(options.get("block_n", tile[-1]), self.n, limit * 2)
        self.block_k = _extent(options.get("block_k", 32), self.k, limit)
        if self.is_vector:
            self.block_m = 1
            self.block_k = min(self.block_k, max(LEAST_TILE, VECTOR_TILE // self.block_n))
        self.tiles_m, self.tiles_n = -(-self.m // self.block_m), -(-self.n // self.block_n)
        self.batch = form.parallel[:-2]
        self.grid = (prod(self.batch) * self.tiles_m * self.tiles_n,)
        self.num_stages = options.get("num_stages") or options.get("stages") or 3
        self.num_warps = options.get("num_warps") or (
            8 if self.block_m * self.block_n > 8192 else 4
        )

    @property
    def mapping(self) -> str:
        """The mapping as it is launched."""
        ones = "".join("1, " for _ in self.batch)
        grid = "".join(f"{n}, " for n in self.batch)
        return (
            f"spatial({grid}{self.tiles_m}, {self.tiles_n}) * "
            f"repeat({ones}{self.block_m}, {self.block_n})"
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        self._place(source)
        source.line(f"im = {self._start('tile_m', self.tiles_m, self.block_m)}[:, None]")
        source.line(f"jn = {self._start('tile_n', self.tiles_n, self.block_n)}[None, :]")
        mask_m = None if self.m % self.block_m == 0 and self.m else "mm"
        mask_n = None if self.n % self.block_n == 0 and self.n else "mn"
        if mask_m:
            source.line(f"mm = im < {self.m}")
        if mask_n:
            source.line(f"mn = jn < {self.n}")
        for step in self.contracts:
            kind = TYPES[contraction(step)]
            lines = self.block_k if self.is_vector else self.block_m
            source.line(f"v{step.result} = tl.zeros([{lines}, {self.block_n}], {kind})")
        self._loop(source, mask_m, mask_n)
        coordinates = {
            **self._batch_coordinates(),
            self.m_dim: Coordinate("im", 0),
            self.n_dim: Coordinate("jn", 1),
        }
        block = Block(self.form, source, coordinates, {0: mask_m, 1: mask_n}, 2)
        for step in self.contracts:
            name = f"v{step.result}"
            if self.is_vector:
                source.line(f"{name} = tl.sum({name}, 0, keep_dims=True)")
            if held(step.dtype) != contraction(step):
                source.line(f"{name} = {name}.to({TYPES[held(step.dtype)]})")
            block.values[step.result] = Value(name, frozenset({0, 1}), is_block=True)
        for step in self.form.steps:
            if step.kind == "contract":
                continue
            if not step.full:
                block.emit([step])

    def _place(self, source: Source) -> None:
        wide = as_index(self.form)
        source.line(f"pid = tl.program_id(0){wide}")
        tiles = self.tiles_m * self.tiles_n
        inner = tiles
        for number in reversed(range(len(self.batch))):
            text = f"pid // {inner}" if inner > 1 else "pid"
            if number:
                text += f" % {self.batch[number]}"
            source.line(f"batch{number} = {text}")
            inner *= self.batch[number]
        if self.batch and tiles > 1:
            source.line(f"pid = pid % {tiles}")
        if self.tiles_m > 1 and self.tiles_n > 1:
            source.line(f"# Tiles are numbered down groups of {GROUP} rows: neighbours share L2.")
            source.line(f"group = pid // {GROUP * self.tiles_n}")
            source.line(f"rows = min({self.tiles_m} - group * {GROUP}, {GROUP})")
            source.line(f"tile_m = group * {GROUP} + pid % {GROUP * self.tiles_n} % rows")
            source.line(f"tile_n = pid % {GROUP * self.tiles_n} // rows")
        elif self.tiles_m > 1:
            source.line("tile_m = pid")
        elif self.tiles_n > 1:
            source.line("tile_n = pid")

    def _start(self, name: str, tiles: int, extent: int) -> str:
        line = f"tl.arange(0, {extent})"
        return f"({name} * {extent} + {line})" if tiles > 1 else line

    def _batch_coordinates(self) -> dict[int, Coordinate]:
        return {d: Coordinate(f"batch{d}") for d in range(len(self.batch))}

    def _loop(self, source: Source, mask_m: str | None, mask_n: str | None) -> None:
        mask_k = None if self.k % self.block_k == 0 and self.k else "k < "
        with source.block(f"for start in range(0, {self.k}, {self.block_k}):"):
            wide = as_index(self.form)
            source.line(f"k = start + tl.arange(0, {self.block_k}){wide}")
            left = self._side(source, "a", self.m_dim, mask_m, mask_k)
            right = self._side(source, "b", self.n_dim, mask_n, mask_k)
            for step in self.contracts:
                a, b = step.operands
                left.emit(self._steps_for(a, left))
                right.emit(self._steps_for(b, right))
                a_text = self._operand(source, left, step, 0)
                b_text = self._operand(source, right, step, 1)
                source.line(f"v{step.result} = {self._product(step, a_text, b_text)}")

    def _side(
        self, source: Source, prefix: str, dim: int, mask: str | None, mask_k: str | None
    ) -> Block:
        """Return the block of one operand: a is m by k, b is k by n."""
        k_axis = 1 if prefix == "a" else 0
        spread = "[None, :]" if prefix == "a" else "[:, None]"
        source.line(f"{prefix}k = k{spread}")
        if mask_k:
            source.line(f"m{prefix} = {prefix}k < {self.k}")
        coordinates = self._batch_coordinates()
        coordinates[dim] = Coordinate("im" if prefix == "a" else "jn", 1 - k_axis)
        reduced = self.form.reduced
        for number, size in enumerate(reduced):
            inner = prod(reduced[number + 1 :])
            text = f"{prefix}k" if inner == 1 else f"{prefix}k // {inner}"
            if number:
                text = f"({text}) % {size}"
            if text != f"{prefix}k":
                source.line(f"{prefix}k{number} = {text}")
                text = f"{prefix}k{number}"
            coordinates[self.form.num_parallel + number] = Coordinate(text, k_axis)
        masks = {k_axis: f"m{prefix}" if mask_k else None, 1 - k_axis: mask}
        return Block(self.form, source, coordinates, masks, 2, prefix)

    def _steps_for(self, value: int, block: Block) -> Iterable[Step]:
        wanted = self.form.behind([value], lambda s: s.result not in block.values)
        return [s for s in self.form.steps if s.result in wanted]

    def _operand(self, source: Source, block: Block, step: Step, side: int) -> str:
        """Return an operand of tl.dot: masked, of the storage dtype, of full shape."""
        number, dtype, prefix = step.operands[side], step.operand_dtypes[side], block.prefix
        maker, value = self.form.makers[number], block.values[number]
        name, mask = value.name, block.mask({0, 1})
        shape = [self.block_m, self.block_k] if side == 0 else [self.block_k, self.block_n]
        if value.axes != frozenset({0, 1}):
            name = f"tl.broadcast_to({name}, {shape})"
        if mask and (maker.kind != "load" or value.axes != frozenset({0, 1})):
            # What was loaded as 0 beyond the tail need not be 0 here.
            source.line(f"{prefix}{number}_masked = tl.where({mask}, {name}, 0)")
            name = f"{prefix}{number}_masked"
        return f"{name}.to({TYPES[dtype]})" if held(dtype) != dtype else name

    def _product(self, step: Step, a: str, b: str) -> str:
        if not self.is_float:
            kind = TYPES[contraction(step)]
            products = f"{a}.to({kind})[:, :, None] * {b}.to({kind})[None, :, :]"
            return f"v{step.result} + tl.sum({products}, 1)"
        if self.is_vector:
            kind = TYPES[contraction(step)]
            return f"v{step.result} + tl.trans({a}).to({kind}) * {b}.to({kind})"
        precision = "tf32" if self.form.options.get("tf32") else "ieee"
        kind = TYPES[contraction(step)]
        return f'tl.dot({a}, {b}, v{step.result}, input_precision="{precision}", out_dtype={kind})'


def _extent(wanted: int, size: int, limit: int) -> int:
    """Return a power of two for a tile: what is wanted, but not much more than there is."""
    return max(LEAST_TILE, min(power_of_two(wanted), power_of_two(size), limit))
