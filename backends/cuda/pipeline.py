"""Operands of a tensor-core matmul: tiles in shared memory, several stages ahead of the products.

A tile is rows of bytes that run as memory does (along k, or along m or n); its 16-byte chunks are
swizzled (``irc_place``). What a load gives in the dtype of the products is copied without registers
(``cp.async``, Ampere's pipeline: PTX ISA, "cp.async"); what is computed or converted on its way
passes through registers, loaded before the products of a step and stored after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.scalar import Scalar, index_type
from irc.backends.cuda.staging import Operand
from irc.kernels.mapping.banks import verify_free
from irc.kernels.mapping.layout import Layout, row_major
from irc.kernels.source import Source

WARP = 32
CHUNK = 16
"""Bytes that a lane reads or copies at once."""


@dataclass(frozen=True)
class Tile(Operand):
    """One operand, with a tile of it in each stage."""

    @property
    def item(self) -> int:
        """Bytes of an element in shared memory."""
        return BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the tile."""
        return (self.depth if self.k_fast else self.extent) * self.item

    @property
    def num_bytes(self) -> int:
        """Bytes of the tile."""
        return self.depth * self.extent * self.item

    @property
    def by_word(self) -> bool:
        """True where lanes read words, not chunks: 4-byte elements that do not run along k."""
        return self.item == 4 and not self.k_fast

    @property
    def is_async(self) -> bool:
        """True where memory is copied as it is, in pieces that ``cp.async`` knows."""
        if not self.is_direct or self.form.buffers[self.maker.place.buffer].dtype != self.dtype:
            return False
        return self.vector * self.item in (4, 8, 16)

    @property
    def layout(self) -> Layout:
        """Where the 16-byte chunks of a row lie; ``irc_place`` is its code (not ``by_word``).

        Eight rows that lanes read at one chunk are in eight different groups of four banks.
        """
        chunks = self.row_bytes // CHUNK
        rows = self.num_bytes // self.row_bytes
        return row_major(rows, chunks).swizzle(1, 0, (8 // min(chunks, 8)).bit_length() - 1)

    def at(self, row: int, byte: int) -> int:
        """Return the offset of a byte of the tile: the value of :meth:`place`."""
        if self.by_word:
            return row * self.row_bytes + (byte ^ row % 4 * 2 * CHUNK)
        return self.layout((row, byte // CHUNK)) * CHUNK + byte % CHUNK

    def verify_reads(self) -> None:
        """Prove that no fragment that a warp reads has bank conflicts.

        All warps read at multiples of eight rows (or of eight words) from the first, which changes
        no bank relative to another; so the first fragment of each step of k stands for all.

        Raises:
            ValueError: with the lanes that want two words of one bank.
        """
        for k in range(0, self.depth * self.item, 2 * CHUNK):
            if self.by_word:
                words = [self.at(k // 4 + lane % 4, lane // 4 * 4) for lane in range(WARP)]
                verify_free(words, 4, f"the words of {self.letter}")
                continue
            rows = [self._row(k, lane) for lane in range(WARP)]
            verify_free(rows, CHUNK, f"the rows of {self.letter}")

    def _row(self, k: int, lane: int) -> int:
        """Return the offset of the 16 bytes that a lane names to ``ldmatrix``."""
        near, far = lane // 8 % 2, lane // 16
        along_m, along_k = (near, far) if self.letter == "a" else (far, near)
        if self.k_fast:
            return self.at(lane % 8 + along_m * 8, k + along_k * CHUNK)
        return self.at(k // self.item + lane % 8 + along_k * 8, along_m * 8 * self.item)

    def place(self, row: str, byte: str) -> str:
        """Return the offset of a byte of the tile."""
        scalar = "true" if self.by_word else "false"
        return f"irc_place<{self.row_bytes}, {scalar}>({row}, {byte})"

    def start(self, source: Source, batch: dict[int, str], step: str) -> None:
        """Append the copy of a tile, or its loads into registers."""
        if not self.is_async:
            self.fetch(source, batch, step)
            return
        kind = f"const {index_type(self.form)}"
        row, k = f"{self.letter}_row", f"{self.letter}_k"
        name = self.form.buffer_name(self.maker.place.buffer)
        with self._each(source):
            source.line(
                f"{kind} {row} = {self.letter}_start + {'slow' if self.k_fast else 'fast'};"
            )
            source.line(
                f"{kind} {k} = {step} * {self.depth} + {'fast' if self.k_fast else 'slow'};"
            )
            inside = f"{row} < {self.size} && {k} < {self.form.num_columns}"
            source.line(f"const bool inside = {inside};")
            point = Scalar(self.form, source, {**batch, self.dim: row, self.form.num_parallel: k})
            place = self.place("slow", f"fast * {self.item}")
            source.line(
                f"{self._guard()}irc_copy_async<{self.vector * self.item}>({self.letter}_tile + "
                f"{place}, &{name}[inside ? {point.address(self.maker)} : 0], inside);"
            )

    def finish(self, source: Source) -> None:
        """Append the stores of what ``start`` left in registers."""
        if self.is_async:
            return
        value = f"{self.letter}_next[r]"
        direct = self.is_direct and self.register_type.startswith(f"Vector<{TYPES[self.dtype]},")
        with self._each(source):
            if direct:
                place = self.place("slow", f"fast * {self.item}")
                to = f"*reinterpret_cast<{self.register_type}*>({self.letter}_tile + {place})"
                source.line(f"{self._guard()}{to} = {value};")
                return
            text = self._stored(f"{value}.at[j]")
            place = self.place("slow", f"(fast + j) * {self.item}")
            to = f"*reinterpret_cast<{TYPES[self.dtype]}*>({self.letter}_tile + {place})"
            source.line("#pragma unroll")
            source.line(f"for (int j = 0; j < {self.vector}; ++j) {self._guard()}{to} = {text};")

    def _stored(self, text: str) -> str:
        return self._converted(text) if self.is_direct else text

    def _guard(self) -> str:
        bound = self.extent * self.depth // self.vector
        return f"if (e < {bound}) " if bound % self.threads else ""
