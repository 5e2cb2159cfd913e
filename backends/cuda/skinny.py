"""Matmul of few rows on the plain cores: the other operand is read once, at the speed of memory.

All rows of the left operand are in registers of each thread. Where the right operand runs along k,
the lanes of a warp take neighbours of k and meet by shuffles; where it runs along n, they take
neighbours of n, the warps of a block share k and meet in shared memory. The loads of several steps
are under way at once (the loop is unrolled); nothing is staged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import Scalar, decode, index_type
from irc.backends.cuda.simt import emit_epilogue
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.arithmetic import contraction
from irc.kernels.form import Form
from irc.kernels.source import Source

WARP = 32
MAX_ROWS = 8
COLUMNS = 2
"""Columns of a warp, where lanes are along k."""
WARPS = {"k": 8, "n": 16}
UNROLL = 4


class Skinny:
    """The launch of a matmul kernel of few rows, and its code."""

    def __init__(self, form: Form) -> None:
        self.form = form
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.dtype = contraction(self.contract)
        self.m_dim, self.n_dim = form.num_parallel - 2, form.num_parallel - 1
        self.rows, self.columns = form.sizes[self.m_dim], form.sizes[self.n_dim]
        maker = form.makers[self.contract.operands[1]]
        runs = maker.kind == "load" and maker.place.strides[self.n_dim] == 1
        self.along = "n" if runs and maker.place.strides[-1] != 1 else "k"
        self.warps = WARPS[self.along]
        self.threads = self.warps * WARP
        self.width = WARP if self.along == "n" else self.warps * COLUMNS
        self.blocks = prod(form.parallel[:-2]) * -(-self.columns // self.width) * bool(self.rows)

    @staticmethod
    def fits(form: Form) -> bool:
        """Return whether a kernel has few rows."""
        return form.sizes[form.num_parallel - 2] <= MAX_ROWS

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over n (of one batch), then columns of a warp or a lane, each with all rows.

        The lanes of a warp (``along`` k), or the warps of a block, share the sums of a column.
        """
        rows = repeat(max(1, self.rows), 1)
        grid = spatial(1, max(1, -(-self.columns // self.width)))
        if self.along == "n":
            return compose(grid, spatial(1, WARP), rows)
        return compose(grid, spatial(1, self.warps), rows, repeat(1, COLUMNS))

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        form, kind = self.form, f"const {index_type(self.form)}"
        groups = -(-self.columns // self.width)
        names = {f"i{d}": size for d, size in enumerate(form.parallel[:-2])}
        decode(source, "blockIdx.x", {**names, "group": groups}, kind)
        batch = {d: f"i{d}" for d in range(len(names))}
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        if self.along == "n":
            self._by_column(source, batch, kind)
        else:
            self._by_product(source, batch, kind)

    def _by_product(self, source: Source, batch: dict[int, str], kind: str) -> None:
        name = TYPES[self.dtype]
        source.line(f"{kind} first = (group * {self.warps} + warp) * {COLUMNS};")
        source.line(f"{name} sum[{self.rows}][{COLUMNS}] = {{}};")
        with self._products(source, "lane", WARP):
            self._operand(source, batch, "a", self.rows, "m", "i")
            # A column beyond the last is computed as the last, and not stored.
            column = f"first + i < {self.columns} ? first + i : {self.columns - 1}"
            self._operand(source, batch, "b", COLUMNS, "n", column)
            source.line("#pragma unroll")
            source.line(f"for (int i = 0; i < {self.rows}; ++i)")
            source.line("#pragma unroll")
            update = self._update("a[i]", "b[j]", "sum[i][j]")
            source.line(f"for (int j = 0; j < {COLUMNS}; ++j) {update}")
        source.line("#pragma unroll")
        source.line(f"for (int i = 0; i < {self.rows}; ++i)")
        source.line("#pragma unroll")
        with source.block(f"for (int j = 0; j < {COLUMNS}; ++j) {{", "}"):
            source.line(f"for (int distance = {WARP // 2}; distance > 0; distance /= 2) {{")
            source.line(
                "  sum[i][j] = sum[i][j] + __shfl_xor_sync(0xffffffffu, sum[i][j], distance);\n}"
            )
            source.line(f"{kind} m = i, n = first + j;")
            with source.block(f"if (lane == 0 && n < {self.columns}) {{", "}"):
                emit_epilogue(self.form, source, batch, "sum[i][j]")

    def _by_column(self, source: Source, batch: dict[int, str], kind: str) -> None:
        name = TYPES[self.dtype]
        source.line(f"__shared__ {name} parts[{self.warps}][{self.rows}][{WARP + 1}];")
        source.line(f"{name} sum[{self.rows}] = {{}};")
        with self._products(source, "warp", self.warps):
            self._operand(source, batch, "a", self.rows, "m", "i")
            column = f"group * {WARP} + lane"
            column = f"{column} < {self.columns} ? {column} : {self.columns - 1}"
            self._operand(source, batch, "b", 1, "n", column)
            source.line("#pragma unroll")
            update = self._update("a[i]", "b[0]", "sum[i]")
            source.line(f"for (int i = 0; i < {self.rows}; ++i) {update}")
        source.line(f"for (int i = 0; i < {self.rows}; ++i) parts[warp][i][lane] = sum[i];")
        source.line("__syncthreads();")
        with source.block(f"if (threadIdx.x < {self.rows * WARP}) {{", "}"):
            source.line(f"{name} total = 0;")
            source.line(
                f"for (int part = 0; part < {self.warps}; ++part) "
                f"total = total + parts[part][warp][lane];"
            )
            source.line(f"{kind} m = warp, n = group * {WARP} + lane;")
            with source.block(f"if (n < {self.columns}) {{", "}"):
                emit_epilogue(self.form, source, batch, "total")

    def _products(self, source: Source, start: str, step: int) -> AbstractContextManager[None]:
        kind = index_type(self.form)
        source.line(f"#pragma unroll {UNROLL}")
        return source.block(
            f"for ({kind} k = {start}; k < {self.form.num_columns}; k += {step}) {{", "}"
        )

    def _operand(
        self, source: Source, batch: dict[int, str], letter: str, count: int, row: str, at: str
    ) -> None:
        """Append the values of an operand at ``k``: one for each row or column of the thread."""
        form, number = self.form, self.contract.operands[letter == "b"]
        kind = f"const {index_type(form)}"
        source.line(f"{TYPES[self.dtype]} {letter}[{count}];")
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {count}; ++i) {{", "}"):
            source.line(f"{kind} {row} = {at};")
            dim, first = (self.m_dim if row == "m" else self.n_dim), form.num_parallel
            coordinates = {**batch, dim: row}
            if len(form.reduced) == 1:
                coordinates[first] = "k"
            else:
                names = {f"c{n}": size for n, size in enumerate(form.reduced)}
                decode(source, "k", names, kind)
                coordinates |= {first + n: name for n, name in enumerate(names)}
            point = Scalar(form, source, coordinates)
            wanted = form.behind([number], lambda s: True)
            point.emit(s for s in form.steps if s.result in wanted)
            source.line(f"{letter}[i] = ({TYPES[self.dtype]}){point.values[number]};")

    def _update(self, a: str, b: str, total: str) -> str:
        text = {"f32": f"fmaf({a}, {b}, {total})", "f64": f"fma({a}, {b}, {total})"}
        return f"{total} = {text.get(self.dtype, f'{total} + {a} * {b}')};"
