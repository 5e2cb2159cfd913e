"""Operands of a tensor-core matmul: tiles in shared memory, several stages ahead of the products.

A tile is rows of bytes that run as memory does (along k, or along m or n); its 16-byte chunks are
swizzled (``irc_place``). What a load gives in the dtype of the products is copied without registers
(``cp.async``, Ampere's pipeline: PTX ISA, "cp.async"); what is computed or converted on its way
passes through registers, loaded before the products of a step and stored after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.scalar import Scalar
from irc.backends.cuda.staging import Operand
from irc.kernels.source import Source

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

    def place(self, row: str, byte: str) -> str:
        """Return the offset of a byte of the tile."""
        scalar = "true" if self.by_word else "false"
        return f"irc_place<{self.row_bytes}, {scalar}>({row}, {byte})"

    def start(self, source: Source, batch: dict[int, str], step: str) -> None:
        """Append the copy of a tile, or its loads into registers."""
        if not self.is_async:
            self.fetch(source, batch, step)
            return
        kind = "const long long" if self.form.is_wide else "const int"
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
