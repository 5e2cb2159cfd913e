"""Kernels without reductions: a flat loop over the grid, 16 bytes at once where it can."""

from __future__ import annotations

from math import prod

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.scalar import Scalar, decode, index_type
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

THREADS = 256
# Enough blocks to fill any device several times over; more elements are strided over.
MAX_BLOCKS = 4096
SQUARE = 32


class Pointwise:
    """The launch of a kernel without reductions, and its code."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.shared: list[str] = []
        self.crossed = self._crossed()
        self.vector = 1 if self.crossed is not None else self._vector()
        self.threads = THREADS
        total = prod(form.sizes)
        if self.crossed is not None:
            rows, columns = form.sizes[self.crossed], form.sizes[-1]
            squares = -(-rows // SQUARE) * -(-columns // SQUARE)
            self.blocks = total // (rows * columns) * squares if total else 0
        else:
            needed = -(-total // (THREADS * self.vector))
            self.blocks = needed if form.symbols else min(MAX_BLOCKS, needed)

    @property
    def mapping(self) -> TaskMapping:
        """Blocks, threads and what a thread does, over the tasks as one dim (crossed: as two)."""
        if self.crossed is not None:
            rows, columns = self.form.sizes[self.crossed], self.form.sizes[-1]
            rest = self.blocks // max(1, -(-rows // SQUARE) * -(-columns // SQUARE))
            return compose(
                spatial(max(1, rest), -(-rows // SQUARE) or 1, -(-columns // SQUARE) or 1),
                repeat(1, SQUARE * SQUARE // THREADS, 1),
                spatial(1, THREADS // SQUARE, SQUARE),
            )
        span = max(1, self.blocks) * self.threads * self.vector
        turns = max(1, -(-prod(self.form.sizes) // span))
        return compose(
            repeat(turns), spatial(max(1, self.blocks)), spatial(self.threads), repeat(self.vector)
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        if self.crossed is not None:
            self._squares(source, self.crossed)
            return
        kind = index_type(self.form)
        total = prod(self.form.sizes) // self.vector
        start = f"({kind})blockIdx.x * {THREADS} + threadIdx.x"
        head = f"if (p < {total}) {{"
        if self.form.symbols or self.blocks * THREADS >= total:
            source.line(f"const {kind} p = {start};")
        else:
            # Of 64 bits: the last addition may pass 2^31.
            step = f"(long long)gridDim.x * {THREADS}"
            head = f"for (long long p = {start}; p < {total}; p += {step}) {{"
        with source.block(head, "}"):
            names = {f"i{d}": n for d, n in enumerate(self.form.sizes)}
            if self.vector == 1:
                decode(source, "p", names, f"const {kind}")
                self._scalar(source).emit(self.form.steps)
            else:
                *_, last = names
                names[last] //= self.vector
                decode(source, "p", {**names}, f"const {kind}")
                self._vectors(source, last)

    def _scalar(self, source: Source) -> Scalar:
        return Scalar(self.form, source, {d: f"i{d}" for d in range(len(self.form.sizes))})

    def _vectors(self, source: Source, last: str) -> None:
        """Load vectors, compute their elements, store vectors."""
        width, dim = self.vector, len(self.form.sizes) - 1
        place = Scalar(
            self.form, source, {**{d: f"i{d}" for d in range(dim)}, dim: f"{last} * {width}"}
        )
        loads = [s for s in self.form.steps if s.kind == "load" and s.place.strides[dim] == 1]
        stores = [s for s in self.form.steps if s.kind == "store"]
        for step in loads:
            kind = f"Vector<{TYPES[self.form.buffers[step.place.buffer].dtype]}, {width}>"
            name = self.form.buffer_name(step.place.buffer)
            source.line(
                f"const auto w{step.result} = "
                f"*reinterpret_cast<const {kind}*>(&{name}[{place.address(step)}]);"
            )
        for number, step in enumerate(stores):
            kind = f"Vector<{TYPES[self.form.buffers[step.place.buffer].dtype]}, {width}>"
            source.line(f"{kind} r{number};")
        point = self._scalar(source)
        point.load_text = lambda s, text: f"w{s.result}.at[j]" if s in loads else text
        point.store_text = lambda s, text: f"r{stores.index(s)}.at[j]"
        source.line("#pragma unroll")
        with source.block(f"for (int j = 0; j < {width}; ++j) {{", "}"):
            point.emit(self.form.steps)
        for number, step in enumerate(stores):
            name = self.form.buffer_name(step.place.buffer)
            address = place.address(step)
            source.line(f"*reinterpret_cast<decltype(r{number})*>(&{name}[{address}]) = r{number};")

    def _vector(self) -> int:
        """Return how many neighbours a thread takes: 16 bytes of the widest buffer, or 1."""
        form = self.form
        if not form.sizes or any(s.kind == "index" for s in form.steps):
            return 1
        touched = [s for s in form.steps if s.access]
        if any(s.place.index_strides for s in touched):
            return 1
        along = [s for s in touched if s.place.strides[-1]]
        if not along or any(s.place.strides[-1] != 1 for s in along):
            return 1
        if any(s.kind == "store" and s.place.strides[-1] != 1 for s in touched):
            return 1
        width = 16 // max(BYTES[form.buffers[s.place.buffer].dtype] for s in along)
        numbers = [
            form.sizes[-1],
            *(n for s in along for n in (s.place.offset, *s.place.strides[:-1])),
        ]
        while width > 1 and any(n % width for n in numbers):
            width //= 2
        return width

    def _crossed(self) -> int | None:
        """Return the dim that some load walks in order while the stores walk the last one."""
        last = len(self.form.sizes) - 1
        for step in self.form.steps:
            if step.kind == "load" and last > 0 and step.place.strides[last] > 1:
                for dim, stride in enumerate(step.place.strides[:last]):
                    if stride == 1 and min(self.form.sizes[dim], self.form.sizes[last]) >= 8:
                        return dim
        return None

    def _squares(self, source: Source, crossed: int) -> None:
        """Squares of 32 by 32: what one row reads past, the next rows find in the cache."""
        sizes, last = self.form.sizes, len(self.form.sizes) - 1
        rows, columns = -(-sizes[crossed] // SQUARE), -(-sizes[last] // SQUARE)
        kind = f"const {index_type(self.form)}"
        rest = {f"i{d}": n for d, n in enumerate(sizes) if d not in (crossed, last)}
        source.line(f"{kind} tile = blockIdx.x % {rows * columns};")
        if rest:
            source.line(f"{kind} rest = blockIdx.x / {rows * columns};")
            decode(source, "rest", rest, kind)
        source.line(f"{kind} i{last} = tile % {columns} * {SQUARE} + threadIdx.x % {SQUARE};")
        source.line("#pragma unroll")
        with source.block(f"for (int j = 0; j < {SQUARE}; j += {THREADS // SQUARE}) {{", "}"):
            source.line(
                f"{kind} i{crossed} = tile / {columns} * {SQUARE} + threadIdx.x / {SQUARE} + j;"
            )
            with source.block(
                f"if (i{crossed} < {sizes[crossed]} && i{last} < {sizes[last]}) {{", "}"
            ):
                self._scalar(source).emit(self.form.steps)
