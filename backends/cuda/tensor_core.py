"""Matmul on tensor cores by warps: ``ldmatrix`` and ``mma.sync``, fed by ``cp.async`` (sm_80).

The mapping goes down to lanes: of 16 x 8 sums, lane ``l`` holds rows ``l / 4`` and ``l / 4 + 8``,
columns ``l % 4 * 2`` and the next (PTX ISA, "Matrix Fragments for mma.m16n8k16"), which is
``repeat(2, 1) * spatial(8, 4) * repeat(1, 2)``; so the epilogue runs in registers. Tiles of the
operands are several stages ahead in shared memory (:mod:`irc.backends.cuda.pipeline`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.pipeline import Tile
from irc.backends.cuda.scalar import index_type
from irc.backends.cuda.split import declare_range, num_parts
from irc.backends.cuda.staging import num_blocks, place_block
from irc.backends.cuda.sums import Sums
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

WARP = 32
ROWS, COLUMNS = 16, 8
# Bytes of k that one instruction multiplies: 16 halves or 8 tf32.
STEP_BYTES = 32
ACCUMULATOR = (repeat(2, 1), spatial(8, 4), repeat(1, 2))
# Block of m by n: warps of m by n.
WARPS = {
    (128, 128): (2, 4),
    (128, 64): (4, 2),
    (64, 128): (2, 4),
    (64, 64): (2, 2),
    (16, 64): (1, 4),
}
SHARED_LIMIT = 96 * 1024
"""Shared memory of a block, so that two of them fit on a multiprocessor of 227 KiB, or nearly."""


class TensorCore(Sums):
    """The launch of a matmul kernel on tensor cores, and its code."""

    def __init__(self, form: Form, arch: int = 80) -> None:
        super().__init__(form)
        self.extents = self._extents()
        self.warps = WARPS[self.extents]
        self.threads = self.warps[0] * self.warps[1] * WARP
        self.m_count = self.extents[0] // (self.warps[0] * ROWS)
        self.n_count = self.extents[1] // (self.warps[1] * COLUMNS)
        self.depth = (128 if form.options.get("block_k", 32) >= 64 else 64) // BYTES[self.dtype]
        self.a, self.b = self._tiles_of()
        if not (self.a.is_async and self.b.is_async):
            # What passes through registers takes many of them.
            self.depth = 64 // BYTES[self.dtype]
            self.a, self.b = self._tiles_of()
        self.steps = -(-form.num_columns // self.depth)
        tiles = num_blocks(form, self.extents)
        self.parts = num_parts(form, tiles, self.steps, arch)
        self.blocks = tiles * self.parts
        self.is_async = self.a.is_async or self.b.is_async
        self.stage_bytes = self.a.num_bytes + self.b.num_bytes
        self.stages = self._stages()
        self.shared_bytes = self.stages * self.stage_bytes

    def _tiles_of(self) -> tuple[Tile, Tile]:
        form, depth, threads, dtype = self.form, self.depth, self.threads, self.dtype
        a, b = self.contract.operands
        return (
            Tile(form, "a", a, self.m_dim, self.extents[0], depth, threads, dtype),
            Tile(form, "b", b, self.n_dim, self.extents[1], depth, threads, dtype),
        )

    @staticmethod
    def fits(form: Form) -> bool:
        """Return whether tensor cores multiply the operands of a kernel."""
        kinds = [s.operand_dtypes for s in form.steps if s.kind == "contract"]
        if kinds == [("f32", "f32")]:
            return bool(form.options.get("tf32"))
        return kinds in ([("f16", "f16")], [("bf16", "bf16")])

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over m and n (of one batch), warps, their instructions, registers and lanes.

        With several parts of k there is a third dim, the part, outermost.
        """
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        atoms = compose(
            spatial(max(1, -(-m // self.extents[0])), max(1, -(-n // self.extents[1]))),
            spatial(*self.warps),
            repeat(self.m_count, self.n_count),
            *ACCUMULATOR,
        )
        return with_parts(atoms, self.parts)

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        for tile in (self.a, self.b):
            tile.verify_reads()
        batch = place_block(source, self.form, self.extents, self.parts)
        source.line("IRC_DYNAMIC_SHARED(memory);")
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line(f"const int m_warp = warp / {self.warps[1]} * {self.m_count * ROWS};")
        source.line(f"const int n_warp = warp % {self.warps[1]} * {self.n_count * COLUMNS};")
        source.line(f"float sum[{self.m_count}][{self.n_count}][4] = {{}};")
        declare_range(source, self.steps, self.parts)
        for operand in (self.a, self.b):
            if not operand.is_async:
                operand.declare(source)
        source.line("// The first stages are on their way before the first product.")
        head = f"for (int ahead = begin; ahead < begin + {self.stages - 1}; ++ahead) {{"
        with source.block(head, "}"):
            with source.block("if (ahead < end) {", "}"):
                self._tiles(source, "ahead")
                self._start(source, batch)
                self._finish(source)
            self._line(source, "irc_commit();")
        with source.block("for (int step = begin; step < end; ++step) {", "}"):
            self._line(source, f"irc_copies_left<{self.stages - 2}>();")
            source.line("// Now this step's tiles are whole, and nobody reads the last step's.")
            source.line("__syncthreads();")
            source.line(f"const int ahead = step + {self.stages - 1};")
            with source.block("if (ahead < end) {", "}"):
                self._tiles(source, "ahead")
                self._start(source, batch)
            self._line(source, "irc_commit();")
            with source.block("{", "}"):
                self._tiles(source, "step")
                self._products(source)
            if not (self.a.is_async and self.b.is_async):
                with source.block("if (ahead < end) {", "}"):
                    self._tiles(source, "ahead")
                    self._finish(source)
        self._epilogue(source, batch)

    def _line(self, source: Source, text: str) -> None:
        if self.is_async:
            source.line(text)

    def _tiles(self, source: Source, step: str) -> None:
        place = f"memory + ({step} - begin) % {self.stages} * {self.stage_bytes}"
        source.line(f"unsigned char* const a_tile = {place};")
        source.line(f"unsigned char* const b_tile = a_tile + {self.a.num_bytes};")

    def _start(self, source: Source, batch: dict[int, str]) -> None:
        for operand in (self.a, self.b):
            operand.start(source, batch, "ahead")

    def _finish(self, source: Source) -> None:
        for operand in (self.a, self.b):
            operand.finish(source)

    def _products(self, source: Source) -> None:
        source.line("#pragma unroll")
        head = f"for (int k = 0; k < {self.depth * BYTES[self.dtype]}; k += {STEP_BYTES}) {{"
        with source.block(head, "}"):
            self._load(source, self.a, self.m_count)
            self._load(source, self.b, self.n_count // 2)
            with self._each(source):
                left, right = "sum[i][j], a[i]", "b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]"
                source.line(f"irc_mma<{TYPES[self.dtype]}>({left}, {right});")

    def _load(self, source: Source, operand: Tile, count: int) -> None:
        """Append the loads of an operand's fragments of 32 bytes of k; ``k`` counts bytes."""
        letter = operand.letter
        source.line(f"unsigned {letter}[{count}][4];")
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {count}; ++i) {{", "}"):
            if operand.by_word:
                self._words(source, operand)
            else:
                self._matrices(source, operand)
            if self.dtype == "f32":
                source.line("#pragma unroll")
                to = f"{letter}[i][e]"
                source.line(f"for (int e = 0; e < 4; ++e) {to} = irc_tf32({to});")

    def _matrices(self, source: Source, operand: Tile) -> None:
        # Of four tiles of 8 rows by 16 bytes, lane l gives row l % 8 of tile l / 8, in the order of
        # registers: a goes down m first, then along k; b along k first, then along n.
        warp = f"{'m' if operand.letter == 'a' else 'n'}_warp"
        near, far = "lane / 8 % 2", "lane / 16"
        along_m, along_k = (near, far) if operand.letter == "a" else (far, near)
        if operand.k_fast:
            row, byte = f"{warp} + i * 16 + lane % 8 + {along_m} * 8", f"k + {along_k} * 16"
        else:
            row = f"k / {operand.item} + lane % 8 + {along_k} * 8"
            byte = f"({warp} + i * 16 + {along_m} * 8) * {operand.item}"
        transposed = "false" if operand.k_fast else "true"
        place = f"{operand.letter}_tile + {operand.place(row, byte)}"
        source.line(f"irc_ldmatrix<{transposed}>({operand.letter}[i], {place});")

    def _words(self, source: Source, operand: Tile) -> None:
        warp = f"{'m' if operand.letter == 'a' else 'n'}_warp"
        along_m, along_k = ("e % 2", "e / 2") if operand.letter == "a" else ("e / 2", "e % 2")
        row = f"k / 4 + lane % 4 + {along_k} * 4"
        byte = f"({warp} + i * 16 + {along_m} * 8 + lane / 4) * 4"
        place = f"{operand.letter}_tile + {operand.place(row, byte)}"
        source.line("#pragma unroll")
        source.line(
            f"for (int e = 0; e < 4; ++e) "
            f"{operand.letter}[i][e] = *reinterpret_cast<const unsigned*>({place});"
        )

    def _each(self, source: Source) -> AbstractContextManager[None]:
        source.line("#pragma unroll")
        source.line(f"for (int i = 0; i < {self.m_count}; ++i)")
        source.line("#pragma unroll")
        return source.block(f"for (int j = 0; j < {self.n_count}; ++j) {{", "}")

    def _epilogue(self, source: Source, batch: dict[int, str]) -> None:
        kind = f"const {index_type(self.form)}"
        with self._each(source):
            source.line("#pragma unroll")
            with source.block("for (int h = 0; h < 2; ++h) {", "}"):
                source.line(f"{kind} m = a_start + m_warp + i * {ROWS} + h * 8 + lane / 4;")
                source.line(f"{kind} n = b_start + n_warp + j * {COLUMNS} + lane % 4 * 2;")
                values = ["sum[i][j][h * 2]", "sum[i][j][h * 2 + 1]"]
                self.finish(source, batch, values)

    def _stages(self) -> int:
        wanted = min(self.form.options.get("num_stages", 3), 4) if self.is_async else 2
        fitting = SHARED_LIMIT // self.stage_bytes
        return max(2, min(wanted, fitting))

    def _extents(self) -> tuple[int, int]:
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        options = self.form.options
        if m <= 16:
            return 16, 64
        rows = 128 if options.get("block_m", 128) >= 128 and m > 64 else 64
        columns = 128 if options.get("block_n", 128) >= 128 and n > 64 else 64
        return rows, columns


def with_parts(mapping: TaskMapping, parts: int) -> TaskMapping:
    """Return a mapping of m and n with the parts of k as an outermost dim.

    >>> str(with_parts(spatial(4, 2), 3))
    'spatial(3, 1, 1) * spatial(1, 4, 2)'
    """
    if parts == 1:
        return mapping
    inner = [
        (spatial if atom.kind == "spatial" else repeat)(1, *atom.extents) for atom in mapping.atoms
    ]
    return compose(spatial(parts, 1, 1), *inner)
