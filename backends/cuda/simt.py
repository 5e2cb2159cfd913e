"""Matmul on the plain cores: float32, float64 and integers.

Hidet's template (section 5 of arXiv:2210.09603): warps, then registers, then lanes, then
registers. Two tiles of each operand are in shared memory, one read while the next is written; the
loads of the next tile stand before the products of this one.
"""

from __future__ import annotations

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import Scalar, index_type
from irc.backends.cuda.staging import Operand, num_blocks, place_block
from irc.dialects.mapping import TaskMapping, compose, spatial
from irc.dialects.mapping_attr import parse_mapping
from irc.errors import InternalError
from irc.kernels.arithmetic import contraction
from irc.kernels.form import Form
from irc.kernels.source import Source

# Block of m by n: warps * registers * lanes * registers.
# fmt: off
MAPPINGS = {
    (128, 128): parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)"),
    (128, 64):  parse_mapping("spatial(4, 2) * repeat(2, 1) * spatial(4, 8) * repeat(4, 4)"),
    (64, 128):  parse_mapping("spatial(4, 2) * repeat(1, 2) * spatial(4, 8) * repeat(4, 4)"),
    (64, 64):   parse_mapping("spatial(4, 2) * repeat(1, 1) * spatial(4, 8) * repeat(4, 4)"),
    (32, 32):   parse_mapping("spatial(2, 2) * repeat(1, 1) * spatial(4, 8) * repeat(4, 2)"),
    (16, 64):   parse_mapping("spatial(1, 4) * repeat(1, 1) * spatial(4, 8) * repeat(4, 2)"),
}
# fmt: on
DEPTH = 8
PAD = 4


class Simt:
    """The launch of a matmul kernel on the plain cores, and its code."""

    def __init__(self, form: Form) -> None:
        self.form = form
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.dtype = contraction(self.contract)
        self.m_dim, self.n_dim = form.num_parallel - 2, form.num_parallel - 1
        self.extents = self._extents()
        self.tile = MAPPINGS[self.extents]
        self.threads = self.tile.num_workers
        self.blocks = num_blocks(form, self.extents)
        a, b = self.contract.operands
        self.a = Operand(form, "a", a, self.m_dim, self.extents[0], DEPTH, self.threads, self.dtype)
        self.b = Operand(form, "b", b, self.n_dim, self.extents[1], DEPTH, self.threads, self.dtype)

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over m and n (of one batch), then the threads of each."""
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        grid = spatial(max(1, -(-m // self.extents[0])), max(1, -(-n // self.extents[1])))
        return compose(grid, self.tile)

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        kind, (rows, columns) = TYPES[self.dtype], self.extents
        batch = place_block(source, self.form, self.extents)
        source.line(f"alignas(16) __shared__ {kind} a_tile[2][{DEPTH}][{rows + PAD}];")
        source.line(f"alignas(16) __shared__ {kind} b_tile[2][{DEPTH}][{columns + PAD}];")
        threads, (m_regs, n_regs), (m_at, n_at) = lower(self.tile)
        source.line(f"const int m_thread = {threads[0]};")
        source.line(f"const int n_thread = {threads[1]};")
        source.line(f"{kind} sum[{m_regs}][{n_regs}] = {{}};")
        self.a.declare(source)
        self.b.declare(source)
        steps = -(-self.form.num_columns // DEPTH)
        with source.block(f"for (int step = 0; step <= {steps}; ++step) {{", "}"):
            with source.block(f"if (step < {steps}) {{", "}"):
                self.a.fetch(source, batch)
                self.b.fetch(source, batch)
            with source.block("if (step > 0) {", "}"):
                self._products(source, m_regs, n_regs, m_at, n_at)
            with source.block(f"if (step < {steps}) {{", "}"):
                self.a.store(source, "a_tile[step % 2]", k_major=True)
                self.b.store(source, "b_tile[step % 2]", k_major=True)
            source.line("__syncthreads();")
        self._epilogue(source, batch, (m_regs, n_regs), (m_at, n_at))

    def _products(self, source: Source, m_regs: int, n_regs: int, m_at: str, n_at: str) -> None:
        kind = TYPES[self.dtype]
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {DEPTH}; ++k) {{", "}"):
            source.line(f"{kind} a[{m_regs}], b[{n_regs}];")
            for letter, count, at in (("a", m_regs, m_at), ("b", n_regs, n_at)):
                source.line("#pragma unroll")
                index = f"{'m' if letter == 'a' else 'n'}_thread + {at}"
                place = f"{letter}_tile[(step - 1) % 2][k][{index}]"
                source.line(f"for (int i = 0; i < {count}; ++i) {letter}[i] = {place};")
            source.line("#pragma unroll")
            with source.block(f"for (int i = 0; i < {m_regs}; ++i) {{", "}"):
                source.line("#pragma unroll")
                product = {
                    "f32": "fmaf(a[i], b[j], sum[i][j])",
                    "f64": "fma(a[i], b[j], sum[i][j])",
                }
                text = product.get(self.dtype, "sum[i][j] + a[i] * b[j]")
                source.line(f"for (int j = 0; j < {n_regs}; ++j) sum[i][j] = {text};")

    def _epilogue(
        self, source: Source, batch: dict[int, str], regs: tuple[int, int], at: tuple[str, str]
    ) -> None:
        kind = f"const {index_type(self.form)}"
        for letter, start, count, place in zip("mn", ("a_start", "b_start"), regs, at, strict=True):
            index = "i" if letter == "m" else "j"
            source.line("#pragma unroll")
            source.line(f"for (int {index} = 0; {index} < {count}; ++{index}) {{")
            place = place.replace("i", index)
            source.line(f"{kind} {letter} = {start} + {letter}_thread + {place};")
        sizes = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        with source.block(f"if (m < {sizes[0]} && n < {sizes[1]}) {{", "}"):
            emit_epilogue(self.form, source, batch, "sum[i][j]")
        source.line("}\n}")

    def _extents(self) -> tuple[int, int]:
        m, n = self.form.sizes[self.m_dim], self.form.sizes[self.n_dim]
        if m <= 16:
            return 16, 64
        if min(m, n) <= 32:
            return 32, 32
        if self.dtype != "f32":
            # Twice the registers for each sum.
            return 64, 64
        wanted = self.form.options.get("block_m", 128), self.form.options.get("block_n", 128)
        extents = [
            128 if w >= 128 and size > 64 else 64 for w, size in zip(wanted, (m, n), strict=True)
        ]
        if min(wanted) <= 32:
            return 32, 32
        return extents[0], extents[1]


def emit_epilogue(form: Form, source: Source, batch: dict[int, str], value: str) -> None:
    """Append what follows the contraction, for the point ``m``, ``n``."""
    (contract,) = (s for s in form.steps if s.kind == "contract")
    coordinates = {**batch, form.num_parallel - 2: "m", form.num_parallel - 1: "n"}
    point = Scalar(form, source, coordinates)
    accumulated, wanted = contraction(contract), TYPES.get(contract.dtype, "")
    narrow = contract.dtype not in ("f16", "bf16", accumulated)
    point.values[contract.result] = f"({wanted}){value}" if narrow else value
    point.emit(s for s in form.steps if not s.full and s.kind != "contract")


def lower(tile: TaskMapping) -> tuple[tuple[str, str], tuple[int, int], tuple[str, str]]:
    """Lower a 2-D mapping: for each dim a thread's start, its registers, and where register i is.

    >>> lower(parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)"))[1:]
    ((8, 8), ('i / 4 * 16 + i % 4', 'i / 4 * 32 + i % 4'))
    """
    starts: list[str] = []
    counts: list[int] = []
    places: list[str] = []
    for dim in range(2):
        start: list[str] = []
        place: list[str] = []
        count = 1
        for number in range(len(tile.atoms) - 1, -1, -1):
            atom, later = tile.atoms[number], TaskMapping(tile.atoms[number + 1 :])
            step = later.task_shape[dim] if later.atoms else 1
            workers = later.num_workers if later.atoms else 1
            if atom.kind == "spatial":
                start.insert(0, _worker(workers, atom.extents, dim, step))
            elif atom.extents[dim] > 1:
                place.insert(0, _register(count, atom.extents[dim], step))
                count *= atom.extents[dim]
        starts.append(" + ".join(t for t in start if t) or "0")
        # The outermost repeat needs no remainder.
        places.append(_simplified(" + ".join(place) or "0", count))
        counts.append(count)
    if len(starts) != 2:
        raise InternalError(f"{tile} has other than two dims")
    return (starts[0], starts[1]), (counts[0], counts[1]), (places[0], places[1])


def _worker(workers: int, extents: tuple[int, ...], dim: int, step: int) -> str:
    if extents[dim] == 1:
        return ""
    inner = workers * (extents[1] if dim == 0 else 1)
    text = "threadIdx.x" if inner == 1 else f"threadIdx.x / {inner}"
    return f"(int)({text} % {extents[dim]}) * {step}"


def _register(count: int, extent: int, step: int) -> str:
    text = "i" if count == 1 else f"i / {count}"
    text = f"{text} % {extent}"
    return text if step == 1 else f"{text} * {step}"


def _simplified(text: str, count: int) -> str:
    first, *rest = text.split(" + ")
    if first == "0":
        return "0"
    words = first.split(" % ")
    tail = words[1].split(" * ")[1:] if len(words) > 1 else []
    outer = " * ".join([words[0], *tail])
    return " + ".join([outer, *rest])
