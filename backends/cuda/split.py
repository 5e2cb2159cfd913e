"""Split-K: k as one more dim of tasks, for matmuls with fewer tiles than multiprocessors.

Blocks of one part of k write their sums, unrounded, to a buffer of ``parts`` results; a second
kernel adds the parts in order and only then runs the epilogue (an activation of a part is not a
part of the activation). The rule is Hidet's ``parallel_k_heuristic`` (arXiv:2210.09603), with the
longest part that still fills the device.
"""

from __future__ import annotations

from math import prod

from irc.backends.cuda.epilogue import Epilogue, num_points
from irc.backends.cuda.scalar import decode
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.gpu.run_time import has_sizes
from irc.kernels.source import Source

THREADS = 256
MULTIPROCESSORS = {90: 132, 80: 108}
LEAST_STEPS = 4
"""Steps of k that a part must have: fewer do not fill the pipeline."""
MAX_PARTS = 16


def num_parts(form: Form, tiles: int, steps: int, arch: int) -> int:
    """Return among how many blocks the k of one tile is divided.

    Args:
        form: the kernel; its option ``split_k`` decides where it is there.
        tiles: blocks of the result.
        steps: tiles of k.
        arch: compute capability as a number.
    """
    if has_sizes((tiles, steps)):
        return 1  # how many fill the device is not known
    if (asked := form.options.get("split_k")) is not None:
        return max(1, min(asked, steps))
    multiprocessors = MULTIPROCESSORS.get(arch, 108)
    parts = min(multiprocessors // max(tiles, 1), steps // LEAST_STEPS, MAX_PARTS)
    # Each part has as many steps as the first; the last may have fewer, none is empty.
    return max(1, -(-steps // -(-steps // parts))) if parts > 1 else 1


def declare_range(source: Source, steps: int, parts: int) -> None:
    """Append ``begin`` and ``end``, the tiles of k that a block does."""
    if parts == 1:
        kind = "const" if has_sizes((steps,)) else "constexpr"
        source.line(f"{kind} int begin = 0, end = {steps};")
        return
    each = -(-steps // parts)
    source.line(f"const int begin = part * {each};")
    source.line(f"const int end = begin + {each} < {steps} ? begin + {each} : {steps};")


def store_part(source: Source, form: Form, values: list[str]) -> None:
    """Append the stores of a block's own sums at ``m``, ``n`` and its neighbours."""
    m, n = form.sizes[form.num_parallel - 2 : form.num_parallel]
    batch = "batch" if form.num_parallel > 2 else "0"
    row = f"(((long long)part * {prod(form.parallel[:-2])} + {batch}) * {m} + m) * {n} + n"
    for number, value in enumerate(values):
        at = f" + {number}" if number else ""
        source.line(f"if (m < {m} && n{at} < {n}) partial[{row}{at}] = {value};")


class SumOfParts:
    """The kernel that adds the parts and runs the epilogue."""

    def __init__(self, form: Form, parts: int) -> None:
        self.form, self.parts = form, parts
        self.epilogue = Epilogue(form, 4)
        self.width = 4 if self.epilogue.is_vector else 1
        if self.width == 1:
            self.epilogue = Epilogue(form, 1)
        self.threads = THREADS
        self.num_points = num_points(form)
        self.blocks = -(-self.num_points // (THREADS * self.width))

    @property
    def mapping(self) -> TaskMapping:
        """Blocks, threads and neighbours, over the elements of the result."""
        return compose(spatial(max(1, self.blocks)), spatial(THREADS), repeat(self.width))

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        form, total = self.form, num_points(self.form)
        names = {f"i{d}": size for d, size in enumerate(form.parallel[:-2])}
        m, n = form.sizes[form.num_parallel - 2 : form.num_parallel]
        kind = "const long long"
        source.line(
            f"{kind} at = ((long long)blockIdx.x * {THREADS} + threadIdx.x) * {self.width};"
        )
        source.line(f"if (at >= {total}) return;")
        decode(source, "at", {**names, "m": m, "n": n}, kind)
        source.line(f"float sum[{self.width}] = {{}};")
        with source.block(f"for (int part = 0; part < {self.parts}; ++part) {{", "}"):
            source.line("#pragma unroll")
            source.line(
                f"for (int e = 0; e < {self.width}; ++e) "
                f"sum[e] += partial[(long long)part * {total} + at + e];"
            )
        batch = {d: f"i{d}" for d in range(len(names))}
        self.epilogue.emit(source, batch, [f"sum[{e}]" for e in range(self.width)])
