"""Matmul on tensor cores by warpgroups: ``wgmma``, fed by TMA (sm_90a).

One warpgroup loads, one thread of it: tiles arrive by ``cp.async.bulk.tensor`` in a ring of stages,
each with two barriers in shared memory, *full* (the bytes are there) and *empty* (all warps that
multiply are past it). The other warpgroups multiply 64 rows each and hold the sums, and take
the registers that the loader gives back. As in CUTLASS's warp-specialised kernels; the layouts are
those of the PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", swizzle 128 B.

Of 64 x n sums, warp ``w`` holds rows ``16 w`` to ``16 w + 15`` as ``mma.m16n8`` does:
``spatial(4, 1) * repeat(1, n / 8) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2)``.
"""

from __future__ import annotations

from math import prod

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.split import MULTIPROCESSORS, declare_range, num_parts
from irc.backends.cuda.staging import num_blocks, place_block
from irc.backends.cuda.sums import Sums
from irc.backends.cuda.tensor_core import ACCUMULATOR, TensorCore, with_parts
from irc.backends.cuda.tensor_map import DEPTH, TensorMap, tensor_map
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

GROUP = 128
"""Threads of a warpgroup."""
BLOCK_BYTES = 64 * 128
"""Of 64 rows of 128 bytes."""
SHARED_LIMIT = 200 * 1024
# Registers of a thread that loads, and of one that multiplies, where two groups do: together what
# 384 threads of 168 have, with which such a kernel starts. One group does with what it starts with.
LOADER, WORKER = 40, 232


class Hopper(Sums):
    """The launch of a matmul kernel on warpgroups, and its code."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.extents = self._extents()
        self.groups = self.extents[0] // 64
        self.threads = (1 + self.groups) * GROUP
        self.steps = -(-form.num_columns // DEPTH)
        tiles = num_blocks(form, self.extents)
        self.parts = num_parts(form, tiles, self.steps, 90)
        self.blocks = tiles * self.parts
        self.tile_bytes = (self.extents[0] * DEPTH * 2, self.extents[1] * DEPTH * 2)
        self.stage_bytes = sum(self.tile_bytes)
        self.stages = max(2, min(SHARED_LIMIT // self.stage_bytes, max(self.steps, 2), 6))
        self.shared_bytes = self.stages * (self.stage_bytes + 16)
        a, b = (self._map(*side) for side in zip("ab", self.contract.operands, strict=True))
        assert a is not None and b is not None, "fits has been asked"
        self.maps = (a, b)

    @property
    def bounds(self) -> str:
        """What ``__launch_bounds__`` says: registers change hands only where the start is known."""
        return f"{self.threads}, 1" if self.groups == 2 else str(self.threads)

    @staticmethod
    def fits(form: Form) -> bool:
        """Return whether both operands are tensors that TMA can read."""
        if not TensorCore.fits(form) or form.options.get("tf32") or form.num_columns == 0:
            return False
        (contract,) = (s for s in form.steps if s.kind == "contract")
        if contract.operand_dtypes[0] not in ("f16", "bf16"):
            return False
        dims = form.num_parallel - 2, form.num_parallel - 1
        return all(
            tensor_map(form, letter, form.makers[value], dim, 64) is not None
            for letter, value, dim in zip("ab", contract.operands, dims, strict=True)
        )

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over m and n (of one batch), warpgroups, warps, registers and lanes.

        Threads of the loading warpgroup have no tasks. With several parts of k there is a third
        dim, the part, outermost.
        """
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        atoms = compose(
            spatial(max(1, -(-m // self.extents[0])), max(1, -(-n // self.extents[1]))),
            spatial(self.groups, 1),
            spatial(4, 1),
            repeat(1, self.extents[1] // 8),
            *ACCUMULATOR,
        )
        return with_parts(atoms, self.parts)

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        batch = place_block(source, self.form, self.extents, self.parts)
        declare_range(source, self.steps, self.parts)
        source.line("IRC_DYNAMIC_SHARED(memory);")
        at = self.stages * self.stage_bytes
        source.line(f"auto* const full = reinterpret_cast<unsigned long long*>(memory + {at});")
        source.line(f"auto* const empty = full + {self.stages};")
        with source.block("if (threadIdx.x == 0) {", "}"):
            with source.block(f"for (int s = 0; s < {self.stages}; ++s) {{", "}"):
                source.line("irc_barrier_init(full + s, 1);")
                source.line(f"irc_barrier_init(empty + s, {4 * self.groups});")
            source.line("irc_barrier_fence();")
        source.line("__syncthreads();")
        with source.block(f"if (threadIdx.x < {GROUP}) {{", "}"):
            if self.groups == 2:
                source.line(f"irc_registers_less<{LOADER}>();")
            with source.block("if (threadIdx.x == 0) {", "}"):
                self._load(source, batch)
            source.line("return;")
        if self.groups == 2:
            source.line(f"irc_registers_more<{WORKER}>();")
        self._multiply(source)
        self._epilogue(source, batch)

    def _ring(self, source: Source) -> None:
        source.line(f"const int stage = (step - begin) % {self.stages};")
        source.line(f"const int parity = (step - begin) / {self.stages} % 2;")
        source.line(f"unsigned char* const a_tile = memory + stage * {self.stage_bytes};")
        source.line(f"unsigned char* const b_tile = a_tile + {self.tile_bytes[0]};")

    def _load(self, source: Source, batch: dict[int, str]) -> None:
        with source.block("for (int step = begin; step < end; ++step) {", "}"):
            self._ring(source)
            source.line("// The first turn of the ring finds every stage empty.")
            source.line("irc_barrier_wait(empty + stage, parity ^ 1);")
            source.line(f"irc_barrier_expect(full + stage, {self.stage_bytes});")
            for tensor in self.maps:
                for number in range(tensor.copies):
                    self._copy(source, tensor, number, batch)

    def _copy(self, source: Source, tensor: TensorMap, number: int, batch: dict[int, str]) -> None:
        letter, last = tensor.letter, len(self.form.sizes) - 1
        places: list[str] = []
        for dim in tensor.dims:
            if dim == last:
                places.append(f"step * {DEPTH}")
            elif dim in batch:
                places.append(f"(int){batch[dim]}")
            else:
                places.append(f"(int){letter}_start" + (f" + {number * 64}" if number else ""))
        to = f"{letter}_tile" + (f" + {number * BLOCK_BYTES}" if number else "")
        source.line(
            f"irc_copy_tile_{tensor.rank}d({to}, &{letter}_map, full + stage, {', '.join(places)});"
        )

    def _multiply(self, source: Source) -> None:
        columns = self.extents[1]
        source.line(f"const int group = threadIdx.x / {GROUP} - 1;")
        source.line("const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;")
        source.line(f"float sum[{columns // 2}] = {{}};")
        along = [int(tensor.dims[0] != len(self.form.sizes) - 1) for tensor in self.maps]
        with source.block("for (int step = begin; step < end; ++step) {", "}"):
            self._ring(source)
            source.line("irc_barrier_wait(full + stage, parity);")
            source.line("irc_products_begin();")
            source.line("#pragma unroll")
            with source.block(f"for (int k = 0; k < {DEPTH // 16}; ++k) {{", "}"):
                group = f"a_tile + group * {BLOCK_BYTES}"
                for letter, place, rows in zip("ab", (group, "b_tile"), along, strict=True):
                    # 16 of k are 32 bytes of each row, or 16 rows.
                    step = 16 * 128 if rows else 32
                    leading = BLOCK_BYTES if rows else 16
                    source.line(
                        f"const auto {letter} = "
                        f"irc_descriptor({place} + k * {step}, {leading}, {8 * 128});"
                    )
                source.line(
                    f"irc_product<{TYPES[self.dtype]}, {columns}, {along[0]}, {along[1]}>"
                    "(sum, a, b);"
                )
            source.line("irc_products_commit();")
            source.line("// The products of the step before are done: its stage may be filled.")
            source.line("irc_products_left<1>();")
            source.line(
                "if (step > begin && lane == 0) "
                f"irc_barrier_arrive(empty + (step - begin - 1) % {self.stages});"
            )
        source.line("irc_products_left<0>();")
        source.line("irc_products_done(sum);")

    def _epilogue(self, source: Source, batch: dict[int, str]) -> None:
        kind = "const long long" if self.form.is_wide else "const int"
        source.line("#pragma unroll")
        source.line(f"for (int j = 0; j < {self.extents[1] // 8}; ++j)")
        source.line("#pragma unroll")
        with source.block("for (int h = 0; h < 2; ++h) {", "}"):
            source.line(f"{kind} m = a_start + group * 64 + warp * 16 + h * 8 + lane / 4;")
            source.line(f"{kind} n = b_start + j * 8 + lane % 4 * 2;")
            values = ["sum[j * 4 + h * 2]", "sum[j * 4 + h * 2 + 1]"]
            self.finish(source, batch, values)

    def _map(self, letter: str, value: int) -> TensorMap | None:
        dim, extent = (
            (self.m_dim, self.extents[0]) if letter == "a" else (self.n_dim, self.extents[1])
        )
        return tensor_map(self.form, letter, self.form.makers[value], dim, extent)

    def _extents(self) -> tuple[int, int]:
        """Return the tile: the largest of which there are enough to fill the device."""
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        asked = self.form.options.get("block_m", 128), self.form.options.get("block_n", 128)
        batch = prod(self.form.parallel[:-2])
        if min(asked) >= 128 and m > 64 and n > 128:
            tiles = batch * -(-m // 128) * -(-n // 256)
            if asked[1] >= 256 or tiles >= 2 * MULTIPROCESSORS[90]:
                return 128, 256
        rows = 128 if m > 64 and asked[0] >= 128 else 64
        return rows, 128 if n > 64 and asked[1] >= 128 else 64
