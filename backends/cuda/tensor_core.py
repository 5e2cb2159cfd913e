"""Matmul of half types on tensor cores, through the portable fragments of ``nvcuda::wmma``.

A warp owns 16 x 16 fragments of float sums. Which lane holds which element of a fragment is the device's
secret, so the epilogue passes each fragment through a square of shared memory and deals it out by a
mapping of our own.
"""

from __future__ import annotations

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.simt import emit_epilogue
from irc.backends.cuda.staging import Operand, num_blocks, place_block
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

WARP, SIDE = 32, 16
DEPTH = 32
# Halves between rows of a tile: 16 bytes more than the tile, so that rows start in different banks.
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
        self.fragments = tuple(
            e // (w * SIDE) for e, w in zip(self.extents, self.warps, strict=True)
        )
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
        """Blocks, warps, fragments of a warp, and how the epilogue deals out a fragment."""
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        return compose(
            spatial(max(1, -(-m // self.extents[0])), max(1, -(-n // self.extents[1]))),
            spatial(*self.warps),
            repeat(*self.fragments),
            repeat(SIDE * SIDE // WARP, 1),
            spatial(WARP // SIDE, SIDE),
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        batch = place_block(source, self.form, self.extents)
        element, (m_count, n_count) = TYPES[self.dtype], self.fragments
        for operand in (self.a, self.b):
            first, second = (
                (operand.extent, DEPTH) if operand.k_fast else (DEPTH, operand.extent)
            )
            source.line(
                f"alignas(32) __shared__ {element} {operand.letter}_tile[2][{first}][{second + PAD}];"
            )
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line(f"const int m_warp = warp / {self.warps[1]} * {m_count * SIDE};")
        source.line(f"const int n_warp = warp % {self.warps[1]} * {n_count * SIDE};")
        shape = f"{SIDE}, {SIDE}, {SIDE}"
        source.line(
            f"nvcuda::wmma::fragment<nvcuda::wmma::accumulator, {shape}, float> sum[{m_count}][{n_count}];"
        )
        self._each(source, "nvcuda::wmma::fill_fragment(sum[i][j], 0.0f);")
        self.a.declare(source)
        self.b.declare(source)
        steps = -(-self.form.num_columns // DEPTH)
        with source.block(f"for (int step = 0; step <= {steps}; ++step) {{", "}"):
            with source.block(f"if (step < {steps}) {{", "}"):
                self.a.fetch(source, batch)
                self.b.fetch(source, batch)
            with source.block("if (step > 0) {", "}"):
                self._products(source, shape)
            with source.block(f"if (step < {steps}) {{", "}"):
                for operand in (self.a, self.b):
                    operand.store(
                        source, f"{operand.letter}_tile[step % 2]",
                        k_major=not operand.k_fast, whole=operand.is_direct,
                    )  # fmt: skip
            source.line("__syncthreads();")
        self._epilogue(source, batch)

    def _products(self, source: Source, shape: str) -> None:
        element = TYPES[self.dtype]
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {DEPTH}; k += {SIDE}) {{", "}"):
            for operand, count, matrix in zip((self.a, self.b), self.fragments, ("a", "b"), strict=True):
                letter, warp = operand.letter, "m_warp" if matrix == "a" else "n_warp"
                # matrix_b is k by n, so its rows are contiguous where n is.
                rows = operand.k_fast == (matrix == "a")
                layout = "row_major" if rows else "col_major"
                source.line(
                    f"nvcuda::wmma::fragment<nvcuda::wmma::matrix_{matrix}, {shape}, {element}, "
                    f"nvcuda::wmma::{layout}> {letter}[{count}];"
                )
                line = (DEPTH if operand.k_fast else operand.extent) + PAD
                at = f"[{warp} + i * {SIDE}][k]" if operand.k_fast else f"[k][{warp} + i * {SIDE}]"
                source.line("#pragma unroll")
                source.line(
                    f"for (int i = 0; i < {count}; ++i) nvcuda::wmma::load_matrix_sync"
                    f"({letter}[i], &{letter}_tile[(step - 1) % 2]{at}, {line});"
                )
            self._each(source, "nvcuda::wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);")

    def _each(self, source: Source, text: str) -> None:
        m_count, n_count = self.fragments
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {m_count}; ++i) {{", "}"):
            source.line("#pragma unroll")
            source.line(f"for (int j = 0; j < {n_count}; ++j) {text}")

    def _epilogue(self, source: Source, batch: dict[int, str]) -> None:
        m_count, n_count = self.fragments
        warps, line = self.warps[0] * self.warps[1], SIDE + 4
        kind = "const long long" if self.form.is_wide else "const int"
        source.line(f"alignas(32) __shared__ float square[{warps}][{SIDE}][{line}];")
        sizes = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        head = f"for (int i = 0; i < {m_count}; ++i)"
        source.line("#pragma unroll")
        with source.block(f"{head} {{", "}"):
            source.line("#pragma unroll")
            with source.block(f"for (int j = 0; j < {n_count}; ++j) {{", "}"):
                source.line(
                    f"nvcuda::wmma::store_matrix_sync(&square[warp][0][0], sum[i][j], {line}, "
                    "nvcuda::wmma::mem_row_major);"
                )
                source.line("__syncwarp();")
                with source.block(
                    f"for (int e = lane; e < {SIDE * SIDE}; e += {WARP}) {{", "}"
                ):
                    source.line(f"{kind} m = a_start + m_warp + i * {SIDE} + e / {SIDE};")
                    source.line(f"{kind} n = b_start + n_warp + j * {SIDE} + e % {SIDE};")
                    with source.block(f"if (m < {sizes[0]} && n < {sizes[1]}) {{", "}"):
                        emit_epilogue(
                            self.form, source, batch, f"square[warp][e / {SIDE}][e % {SIDE}]"
                        )
                source.line("__syncwarp();")

    def _extents(self) -> tuple[int, int]:
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        options = self.form.options
        if m <= 16:
            return 16, 64
        large = min(options.get("block_m", 128), options.get("block_n", 128)) >= 128
        return (128, 128) if large and min(m, n) > 64 else (64, 64)
