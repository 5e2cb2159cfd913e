"""What follows a contraction, on sums in registers: neighbours of a row at once where they align.

Pointwise steps, further loads (bias, residual) and all stores of the kernel; where k is divided
among blocks it runs in a kernel of its own, after their sums have met.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from irc.backends.cuda.functions import BYTES, TYPES
from irc.backends.cuda.scalar import Scalar
from irc.kernels.arithmetic import contraction
from irc.kernels.form import Form, Step
from irc.kernels.source import Source


class Epilogue:
    """Emits the steps behind the contraction of a matmul.

    Args:
        form: the kernel.
        width: neighbours along n that one thread holds.
    """

    def __init__(self, form: Form, width: int) -> None:
        self.form = form
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.steps = [s for s in form.steps if not s.full and s.kind != "contract"]
        self.n_dim = form.num_parallel - 1
        self.width = width
        self.is_vector = width > 1 and self._aligned(width)

    def emit(self, source: Source, batch: dict[int, str], values: Sequence[str]) -> None:
        """Append the epilogue of the points ``m``, ``n`` to ``n + width - 1``.

        Args:
            source: where statements go; ``m`` and ``n`` are defined there.
            batch: coordinates of the batch dims.
            values: the sums, one for each neighbour.
        """
        m, n = self.form.sizes[self.n_dim - 1], self.form.sizes[self.n_dim]
        if self.is_vector:
            with source.block(f"if (m < {m} && n < {n}) {{", "}"):
                self._vector(source, batch, values)
            return
        for number, value in enumerate(values):
            at = f"n + {number}" if number else "n"
            with source.block(f"if (m < {m} && {at} < {n}) {{", "}"):
                point = self._point(source, batch, f"({at})" if number else at, value)
                point.emit(self.steps)

    def _vector(self, source: Source, batch: dict[int, str], values: Sequence[str]) -> None:
        along = [s for s in self.steps if s.access and s.place.strides[self.n_dim] == 1]
        stores = [s for s in along if s.kind == "store"]
        place = self._point(source, batch, "n", values[0])
        for step in along:
            if step.kind == "load":
                name = self.form.buffer_name(step.place.buffer)
                at = f"&{name}[{place.address(step)}]"
                source.line(
                    f"const auto w{step.result} = "
                    f"*reinterpret_cast<const {self._kind(step)}*>({at});"
                )
        for number, step in enumerate(stores):
            source.line(f"{self._kind(step)} r{number};")
        for number, value in enumerate(values):
            with source.block("{", "}"):
                point = self._point(source, batch, f"(n + {number})" if number else "n", value)
                point.load_text = lambda s, text, number=number: (
                    f"w{s.result}.at[{number}]" if s in along else text
                )
                point.store_text = lambda s, text, number=number: f"r{stores.index(s)}.at[{number}]"
                point.emit(self.steps)
        for number, step in enumerate(stores):
            name = self.form.buffer_name(step.place.buffer)
            at = f"&{name}[{place.address(step)}]"
            source.line(f"*reinterpret_cast<{self._kind(step)}*>({at}) = r{number};")

    def _kind(self, step: Step) -> str:
        return f"Vector<{TYPES[self.form.buffers[step.place.buffer].dtype]}, {self.width}>"

    def _point(self, source: Source, batch: dict[int, str], n: str, value: str) -> Scalar:
        point = Scalar(self.form, source, {**batch, self.n_dim - 1: "m", self.n_dim: n})
        accumulated = contraction(self.contract)
        wanted = self.contract.dtype
        narrow = wanted not in ("f16", "bf16", accumulated)
        point.values[self.contract.result] = f"({TYPES[wanted]}){value}" if narrow else value
        return point

    def _aligned(self, width: int) -> bool:
        """Return whether every access along n is of whole vectors, and every store runs along n."""
        touched = [s for s in self.steps if s.access]
        if self.form.sizes[self.n_dim] % width or any(s.place.index_strides for s in touched):
            return False
        if any(s.kind == "store" and s.place.strides[self.n_dim] != 1 for s in touched):
            return False
        along = [s for s in touched if s.place.strides[self.n_dim] == 1]
        numbers = [
            n
            for s in along
            for d, n in enumerate((*s.place.strides, s.place.offset))
            if d != self.n_dim
        ]
        wide = [BYTES[self.form.buffers[s.place.buffer].dtype] * width > 16 for s in along]
        return not any(n % width for n in numbers) and not any(wide)


def num_points(form: Form) -> int:
    """Return the elements of the result of a matmul, over all batches."""
    return prod(form.parallel)
