"""Matmul of half types on tensor cores: ``ldmatrix`` and ``mma.sync`` of 16 x 8 x 16.

The mapping goes down to lanes: of 16 x 8 sums, lane ``l`` holds rows ``l / 4`` and ``l / 4 + 8``,
columns ``l % 4 * 2`` and the next (PTX ISA, "Matrix Fragments for mma.m16n8k16"), which is
``repeat(2, 1) * spatial(8, 4) * repeat(1, 2)``; so the epilogue runs in registers. Two tiles of
each operand are in shared memory, one read while the next is written.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.simt import emit_epilogue
from irc.backends.cuda.staging import Operand, num_blocks, place_block
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

WARP = 32
ROWS, COLUMNS, PRODUCTS = 16, 8, 16
DEPTH = 32
# Halves added to each row of a tile: 16 bytes, so that eight rows are in different banks.
PAD = 8
# Block of m by n: warps of m by n.
WARPS = {(128, 128): (2, 4), (64, 64): (2, 2), (16, 64): (1, 4)}


class TensorCore:
    """The launch of a matmul kernel on tensor cores, and its code."""

    def __init__(self, form: Form) -> None:
        self.form = form
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.dtype = self.contract.operand_dtypes[0]
        self.m_dim, self.n_dim = form.num_parallel - 2, form.num_parallel - 1
        self.extents = self._extents()
        self.warps = WARPS[self.extents]
        self.threads = self.warps[0] * self.warps[1] * WARP
        self.m_count = self.extents[0] // (self.warps[0] * ROWS)
        self.n_count = self.extents[1] // (self.warps[1] * COLUMNS)
        self.blocks = num_blocks(form, self.extents)
        a, b = self.contract.operands
        self.a = Operand(form, "a", a, self.m_dim, self.extents[0], DEPTH, self.threads, self.dtype)
        self.b = Operand(form, "b", b, self.n_dim, self.extents[1], DEPTH, self.threads, self.dtype)

    @staticmethod
    def fits(form: Form) -> bool:
        """Return whether tensor cores multiply the operands of a kernel."""
        kinds = [s.operand_dtypes for s in form.steps if s.kind == "contract"]
        return kinds in ([("f16", "f16")], [("bf16", "bf16")])

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over m and n (of one batch), warps, their instructions, registers and lanes."""
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        return compose(
            spatial(max(1, -(-m // self.extents[0])), max(1, -(-n // self.extents[1]))),
            spatial(*self.warps),
            repeat(self.m_count, self.n_count),
            repeat(2, 1),
            spatial(8, 4),
            repeat(1, 2),
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        batch = place_block(source, self.form, self.extents)
        for operand in (self.a, self.b):
            first, second = (operand.extent, DEPTH) if operand.k_fast else (DEPTH, operand.extent)
            tile = f"{operand.letter}_tile[2][{first}][{second + PAD}]"
            source.line(f"alignas(16) __shared__ {TYPES[self.dtype]} {tile};")
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line(f"const int m_warp = warp / {self.warps[1]} * {self.m_count * ROWS};")
        source.line(f"const int n_warp = warp % {self.warps[1]} * {self.n_count * COLUMNS};")
        source.line(f"float sum[{self.m_count}][{self.n_count}][4] = {{}};")
        self.a.declare(source)
        self.b.declare(source)
        steps = -(-self.form.num_columns // DEPTH)
        with source.block(f"for (int step = 0; step <= {steps}; ++step) {{", "}"):
            with source.block(f"if (step < {steps}) {{", "}"):
                self.a.fetch(source, batch)
                self.b.fetch(source, batch)
            with source.block("if (step > 0) {", "}"):
                self._products(source)
            with source.block(f"if (step < {steps}) {{", "}"):
                for operand in (self.a, self.b):
                    tile, by_k = f"{operand.letter}_tile[step % 2]", not operand.k_fast
                    operand.store(source, tile, k_major=by_k, whole=operand.is_direct)
            source.line("__syncthreads();")
        self._epilogue(source, batch)

    def _products(self, source: Source) -> None:
        # Of 16 x 16 halves, lane l gives row l % 8 of tile l / 8; tiles are in register order.
        low, high = "lane % 8 + lane / 8 % 2 * 8", "lane % 8 + lane / 16 * 8"
        near, far = "lane / 8 % 2 * 8", "lane / 16 * 8"
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {DEPTH}; k += {PRODUCTS}) {{", "}"):
            # a: tiles go down m first, then along k.
            row = f"[m_warp + i * {ROWS} + {low}][k + {far}]"
            if not self.a.k_fast:
                row = f"[k + {high}][m_warp + i * {ROWS} + {near}]"
            self._load(source, self.a, self.m_count, row)
            # b: tiles go along k first, then along n.
            row = f"[n_warp + i * {2 * COLUMNS} + {high}][k + {near}]"
            if not self.b.k_fast:
                row = f"[k + {low}][n_warp + i * {2 * COLUMNS} + {far}]"
            self._load(source, self.b, self.n_count // 2, row)
            with self._each(source):
                left, right = "sum[i][j], a[i]", "b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]"
                source.line(f"irc_mma<{TYPES[self.dtype]}>({left}, {right});")

    def _load(self, source: Source, operand: Operand, count: int, row: str) -> None:
        letter = operand.letter
        # Tiles of a are m by k, of b n by k: memory that runs along k needs no transposition.
        transposed = "false" if operand.k_fast else "true"
        source.line(f"unsigned {letter}[{count}][4];")
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {count}; ++i) {{", "}"):
            place = f"&{letter}_tile[(step - 1) % 2]{row}"
            source.line(f"irc_ldmatrix<{transposed}>({letter}[i], {place});")

    def _each(self, source: Source) -> AbstractContextManager[None]:
        source.line("#pragma unroll")
        source.line(f"for (int i = 0; i < {self.m_count}; ++i)")
        source.line("#pragma unroll")
        return source.block(f"for (int j = 0; j < {self.n_count}; ++j) {{", "}")

    def _epilogue(self, source: Source, batch: dict[int, str]) -> None:
        kind = "const long long" if self.form.is_wide else "const int"
        sizes = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        with self._each(source):
            source.line("#pragma unroll")
            with source.block("for (int e = 0; e < 4; ++e) {", "}"):
                source.line(f"{kind} m = a_start + m_warp + i * {ROWS} + e / 2 * 8 + lane / 4;")
                source.line(f"{kind} n = b_start + n_warp + j * {COLUMNS} + lane % 4 * 2 + e % 2;")
                with source.block(f"if (m < {sizes[0]} && n < {sizes[1]}) {{", "}"):
                    emit_epilogue(self.form, source, batch, "sum[i][j][e]")

    def _extents(self) -> tuple[int, int]:
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        options = self.form.options
        if m <= 16:
            return 16, 64
        large = min(options.get("block_m", 128), options.get("block_n", 128)) >= 128
        return (128, 128) if large and min(m, n) > 64 else (64, 64)
