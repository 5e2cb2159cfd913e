"""Operands of a matmul on their way from global memory through registers to shared memory.

A block copies tiles of m (or n) by k. Consecutive threads take consecutive elements of the dim
that is adjacent in memory, 16 bytes at once where sizes and strides allow; elements beyond the
edges are 0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.scalar import Scalar, decode, index_type, stored_as
from irc.kernels.arithmetic import held
from irc.kernels.form import Form, Step
from irc.kernels.source import Source


@dataclass(frozen=True)
class Operand:
    """One operand of the contraction.

    Attributes:
        form: the kernel.
        letter: ``a`` (m by k) or ``b`` (n by k).
        number: the value that the contraction reads.
        dim: the dim m or n.
        extent: of the tile along that dim.
        depth: of the tile along k.
        threads: of the block.
        dtype: in which shared memory holds it.
    """

    form: Form
    letter: str
    number: int
    dim: int
    extent: int
    depth: int
    threads: int
    dtype: str

    @property
    def maker(self) -> Step:
        """The step that makes the operand, a load unless it is computed on the way."""
        return self.form.makers[self.number]

    @property
    def size(self) -> int:
        """Of the dim m or n."""
        return self.form.sizes[self.dim]

    @property
    def is_direct(self) -> bool:
        """True where the operand is what a load gives."""
        return self.maker.kind == "load" and not self.maker.operands

    @property
    def k_fast(self) -> bool:
        """True where neighbours along k are neighbours in memory."""
        if not self.is_direct:
            return True
        return self.maker.place.strides[self.dim] != 1 or self.maker.place.strides[-1] == 1

    @property
    def vector(self) -> int:
        """Elements that one thread copies at once."""
        if not self.is_direct or len(self.form.reduced) != 1:
            return 1
        place, fast = self.maker.place, len(self.form.sizes) - 1 if self.k_fast else self.dim
        if place.strides[fast] != 1:
            return 1
        width = 16 // BYTES[self.form.buffers[place.buffer].dtype]
        extent = self.depth if self.k_fast else self.extent
        others = [s for d, s in enumerate(place.strides) if d != fast]
        while width > 1 and any(
            n % width for n in (self.form.sizes[fast], place.offset, extent, *others)
        ):
            width //= 2
        return width

    @property
    def turns(self) -> int:
        """Vectors that one thread copies for each tile."""
        return -(-self.extent * self.depth // (self.vector * self.threads))

    @property
    def register_type(self) -> str:
        """The C type of what a thread holds between the two copies."""
        element = self.dtype
        if self.is_direct:
            element = self.form.buffers[self.maker.place.buffer].dtype
        return f"Vector<{TYPES[element]}, {self.vector}>"

    def declare(self, source: Source) -> None:
        """Append the registers."""
        source.line(f"{self.register_type} {self.letter}_next[{self.turns}];")

    def fetch(self, source: Source, batch: dict[int, str], step: str = "step") -> None:
        """Append the copy of a tile, number ``step``, from global memory to registers."""
        place, row, k = f"{self.letter}_next[r]", f"{self.letter}_row", f"{self.letter}_k"
        with self._each(source):
            kind = f"const {index_type(self.form)}"
            # As wide as offsets: the product with a stride may pass 2^31.
            source.line(
                f"{kind} {row} = {self.letter}_start + {'slow' if self.k_fast else 'fast'};"
            )
            source.line(
                f"{kind} {k} = {step} * {self.depth} + {'fast' if self.k_fast else 'slow'};"
            )
            source.line(f"{place} = {self.register_type}{{}};")
            inside = f"{row} < {self.size} && {k} < {self.form.num_columns}"
            if self.extent * self.depth % (self.vector * self.threads):
                inside += f" && e < {self.extent * self.depth // self.vector}"
            with source.block(f"if ({inside}) {{", "}"):
                self._element(source, place, {**batch, self.dim: row}, k, kind)

    def _element(
        self, source: Source, place: str, coordinates: dict[int, str], k: str, kind: str
    ) -> None:
        first, reduced = self.form.num_parallel, self.form.reduced
        if len(reduced) == 1:
            coordinates[first] = k
        else:
            names = {f"c{n}": size for n, size in enumerate(reduced)}
            decode(source, k, names, kind)
            coordinates |= {first + n: name for n, name in enumerate(names)}
        point = Scalar(self.form, source, coordinates)
        if self.is_direct:
            name = self.form.buffer_name(self.maker.place.buffer)
            address = point.address(self.maker)
            source.line(
                f"{place} = *reinterpret_cast<const {self.register_type}*>(&{name}[{address}]);"
            )
            return
        wanted = self.form.behind([self.number], lambda s: True)
        point.emit(s for s in self.form.steps if s.result in wanted)
        source.line(f"{place}.at[0] = {stored_as(point.values[self.number], self.dtype)};")

    def store(self, source: Source, target: str, *, k_major: bool) -> None:
        """Append the copy from registers to shared memory.

        Args:
            source: where statements go.
            target: the array of the tile.
            k_major: index it ``[k][row]``, else ``[row][k]``.
        """
        value = f"{self.letter}_next[r]"
        with self._each(source):
            bound = self.extent * self.depth // self.vector
            guard = (
                f"if (e < {bound}) "
                if self.extent * self.depth % (self.vector * self.threads)
                else ""
            )
            row, k = ("slow", "fast") if self.k_fast else ("fast", "slow")
            row, k = (row, f"{k} + j") if self.k_fast else (f"{row} + j", k)
            index = f"[{k}][{row}]" if k_major else f"[{row}][{k}]"
            text = self._converted(f"{value}.at[j]")
            source.line("#pragma unroll")
            source.line(f"for (int j = 0; j < {self.vector}; ++j) {guard}{target}{index} = {text};")

    def _converted(self, text: str) -> str:
        if not self.is_direct:
            return text
        stored = self.form.buffers[self.maker.place.buffer].dtype
        if stored == self.dtype:
            return text
        return f"irc_float({text})" if held(stored) != stored else f"({TYPES[self.dtype]}){text}"

    def _each(self, source: Source) -> AbstractContextManager[None]:
        source.line("#pragma unroll")
        fast = (self.depth if self.k_fast else self.extent) // self.vector
        return _opened(source, self.turns, self.threads, fast, self.vector)


def _opened(
    source: Source, turns: int, threads: int, fast: int, vector: int
) -> AbstractContextManager[None]:
    head = f"for (int r = 0; r < {turns}; ++r) {{"
    scaled = f" * {vector}" if vector > 1 else ""
    lines = (
        f"const int e = threadIdx.x + r * {threads};",
        f"const int fast = e % {fast}{scaled}, slow = e / {fast};",
    )
    return source.block("\n  ".join((head, *lines)), "}")


def place_block(
    source: Source, form: Form, extents: tuple[int, int], parts: int = 1
) -> dict[int, str]:
    """Append the position of a block, as ``a_start``, ``b_start``; return the batch coordinates.

    With several ``parts`` of k, blocks of a part are neighbours, and ``part`` is the block's.
    """
    m, n = form.sizes[form.num_parallel - 2 : form.num_parallel]
    rows, columns = -(-m // extents[0]), -(-n // extents[1])
    kind = f"const {index_type(form)}"
    batch = {f"i{d}": size for d, size in enumerate(form.parallel[:-2])}
    block = "blockIdx.x"
    if parts > 1:
        block = "block"
        source.line(f"const int part = blockIdx.x / {num_blocks(form, extents)};")
        source.line(f"const int block = blockIdx.x % {num_blocks(form, extents)};")
    if batch:
        source.line(f"{kind} batch = {block} / {rows * columns};")
        decode(source, "batch", batch, kind)
    source.line(
        f"const int place = {block} % {rows * columns};" if batch else f"const int place = {block};"
    )
    source.line(
        f"// Tiles are numbered down groups of {GROUP} rows: neighbours share operands in L2."
    )
    source.line(f"const int first = place / {GROUP * columns} * {GROUP};")
    source.line(f"const int rows = first + {GROUP} < {rows} ? {GROUP} : {rows} - first;")
    source.line(f"{kind} a_start = (first + place % {GROUP * columns} % rows) * {extents[0]};")
    source.line(f"{kind} b_start = place % {GROUP * columns} / rows * {extents[1]};")
    return {d: f"i{d}" for d in range(len(batch))}


def num_blocks(form: Form, extents: tuple[int, int]) -> int:
    """Return the blocks of a matmul."""
    m, n = form.sizes[form.num_parallel - 2 : form.num_parallel]
    return prod(form.parallel[:-2]) * -(-m // extents[0]) * -(-n // extents[1])


GROUP = 8
