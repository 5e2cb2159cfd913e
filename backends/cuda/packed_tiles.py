"""Template ``packed`` on tensor cores: half floats times integer weights, expanded in registers.

A block has up to 64 rows, each of its warps a panel of 16 columns. Tiles of x come by ``cp.async``,
one ahead; a lane reads the words of its column and makes of their integers the right operand of
``mma`` where it is needed (as MARLIN does, arXiv:2408.11743; the panels are those of all backends).
Integers up to 255 are exact in half floats and their products in float32, so a weight is never
rounded: the sum of a group is scaled, in float32, when it ends. A zero point that is not known
beforehand is subtracted there too, times the sum of the row, which one more product gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import Scalar, literal
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Access, Form, Step
from irc.kernels.source import Source

WARPS, WARP = 4, 32
COLUMNS = 16
"""Of a panel."""
DEPTH = 64
"""Of k in a step: 128 bytes, a row of the swizzle."""
LEAST_ROWS = 9
"""Fewer leave most of a fragment empty: plain code reads the weights as fast."""
NIBBLES = 8


@dataclass(frozen=True)
class Weights:
    """What a packed kernel multiplies.

    Attributes:
        x: the load of the rows.
        q: that of the integers.
        scale: that of the scales.
        zero: that of the zero points, or a whole number.
        depth: of k.
        group: values of k that share a scale.
    """

    x: Step
    q: Step
    scale: Step
    zero: Step | int
    depth: int
    group: int

    @property
    def nibbles(self) -> int:
        """Weights of an element."""
        return NIBBLES if self.q.dtype == "i32" else 1


def weights_of(form: Form) -> Weights | None:
    """Return what a kernel multiplies, None where tensor cores cannot."""
    if form.template != "packed" or form.num_parallel != 3 or form.parallel[2] != COLUMNS:
        return None
    (contract,) = (s for s in form.steps if s.kind == "contract")
    left, right = (form.makers[v] for v in contract.operands)
    x = _operand(form, left, "cast", 0)
    centred, scale = _operand(form, right, "mul", 0), _operand(form, right, "mul", 1)
    integers, zero = _operand(form, centred, "sub", 0), _operand(form, centred, "sub", 1)
    q = _operand(form, integers, "cast", 0)
    if q is not None and q.fn == "bit_and":
        q = _operand(form, _operand(form, q, "bit_and", 0), "shift_right", 0)
    if x is None or q is None or scale is None or zero is None:
        return None
    if not (x.kind == q.kind == scale.kind == "load") or q.dtype not in ("i32", "i8", "u8"):
        return None
    known: Step | int = zero
    if zero.kind == "constant" and float(zero.literal).is_integer() and abs(zero.literal) < 256:
        known = int(zero.literal)
    elif zero.kind != "load":
        return None
    inner = NIBBLES if q.dtype == "i32" else 1
    groups, words = (1, *form.reduced)[-3 if inner > 1 else -2 :][:2]
    weights = Weights(x, q, scale, known, groups * words * inner, words * inner)
    return weights if _lie_as_known(form, weights, groups, words) else None


def _operand(form: Form, step: Step | None, fn: str, index: int) -> Step | None:
    """Return what makes an operand of a step that applies a function."""
    return form.makers[step.operands[index]] if step is not None and step.fn == fn else None


def _lie_as_known(form: Form, w: Weights, groups: int, words: int) -> bool:
    """Return whether rows run along k in whole chunks, and panels are contiguous."""
    inner = (w.nibbles,) if w.nibbles > 1 else ()
    own = (words, *inner) if groups == 1 else (groups, words, *inner)
    if form.reduced != own or w.group % 16 or form.buffers[w.x.place.buffer].dtype not in (
        "f16", "bf16",
    ):  # fmt: skip
        return False
    along = (w.nibbles, 1) if inner else (1,)
    row, *_ = w.x.place.strides
    rows = (row, 0, 0, *((w.group, *along) if groups > 1 else along))
    per_group = w.group // w.nibbles * COLUMNS
    deep = (COLUMNS, 0) if inner else (COLUMNS,)
    panels = (0, groups * per_group, 1, *((per_group, *deep) if groups > 1 else deep))
    flat = (0,) * len(deep)
    scales = (0, groups * COLUMNS, 1, *((COLUMNS, *flat) if groups > 1 else flat))
    scaled = [w.scale, *([w.zero] if isinstance(w.zero, Step) else [])]
    return (
        _is(w.x.place, rows)
        and not (row % 8 or w.x.place.offset % 8)
        and _is(w.q.place, panels)
        and all(_is(s.place, scales) for s in scaled)
    )


def _is(place: Access, strides: tuple[int, ...]) -> bool:
    return place.strides == strides and not place.index_strides


class PackedTiles:
    """The launch of such a kernel, and its code."""

    threads = WARPS * WARP

    def __init__(self, form: Form, weights: Weights) -> None:
        self.form, self.weights = form, weights
        (self.contract,) = (s for s in form.steps if s.kind == "contract")
        self.dtype = form.buffers[weights.x.place.buffer].dtype
        rows, self.panels, _ = form.parallel
        self.m_count = min(4, -(-rows // 16))
        self.rows = 16 * self.m_count
        self.blocks = -(-rows // self.rows) * -(-self.panels // WARPS)
        self.stage_bytes = self.rows * 2 * DEPTH
        self.shared_bytes = 2 * self.stage_bytes
        self.steps = -(-weights.depth // DEPTH)

    @staticmethod
    def fits(form: Form) -> Weights | None:
        """Return what tensor cores multiply; None where there is nothing, or few rows."""
        weights = weights_of(form)
        return weights if weights is not None and form.parallel[0] >= LEAST_ROWS else None

    @property
    def mapping(self) -> TaskMapping:
        """Blocks, warps, their fragments, and lanes: rows by panels by columns."""
        rows, panels = self.form.parallel[0], -(-self.panels // WARPS)
        return compose(
            spatial(-(-rows // self.rows), panels, 1),
            spatial(1, WARPS, 1),
            repeat(self.m_count, 1, 2),
            repeat(2, 1, 1),
            spatial(8, 1, 4),
            repeat(1, 1, 2),
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        blocks = -(-self.panels // WARPS)
        source.line("IRC_DYNAMIC_SHARED(memory);")
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line(f"const long long begin = (long long)(blockIdx.x / {blocks}) * {self.rows};")
        source.line(f"const long long panel = (long long)(blockIdx.x % {blocks}) * {WARPS} + warp;")
        source.line("// A warp beyond the last panel helps to copy, and computes the last again.")
        source.line(f"const long long own = panel < {self.panels} ? panel : {self.panels - 1};")
        source.line(f"float sum[{self.m_count}][2][4] = {{}}, part[{self.m_count}][2][4] = {{}};")
        if isinstance(self.weights.zero, Step):
            source.line(f"float whole[{self.m_count}][4] = {{}};")
        self._copy(source, "0")
        with source.block(f"for (int step = 0; step < {self.steps}; ++step) {{", "}"):
            source.line("irc_copies_left<0>();")
            source.line("// Now this step's tile is whole, and nobody reads the last step's.")
            source.line("__syncthreads();")
            self._copy(source, "step + 1")
            place = f"memory + step % 2 * {self.stage_bytes}"
            source.line(f"unsigned char* const tile = {place};")
            source.line("#pragma unroll")
            with source.block(f"for (int j = 0; j < {DEPTH // 16}; ++j) {{", "}"):
                source.line(f"const int k = step * {DEPTH} + j * 16;")
                with source.block(f"if (k < {self.weights.depth}) {{", "}"):
                    self._expand(source)
                    self._multiply(source)
                    with source.block(f"if ((k + 16) % {self.weights.group} == 0) {{", "}"):
                        self._scale(source)
        self._epilogue(source)

    def _copy(self, source: Source, step: str) -> None:
        """Append the copy of a tile of x; zeros beyond its edges."""
        place, chunks = self.weights.x.place, DEPTH // 8
        name, row = self.form.buffer_name(place.buffer), place.strides[0]
        with source.block(f"if ({step} < {self.steps}) {{", "}"):
            head = f"for (int e = threadIdx.x; e < {self.rows * chunks}; e += {self.threads}) {{"
            with source.block(head, "}"):
                source.line(f"const int row = e / {chunks}, chunk = e % {chunks};")
                source.line(f"const long long m = begin + row, k = ({step}) * {DEPTH} + chunk * 8;")
                inside = f"m < {self.form.parallel[0]} && k < {self.weights.depth}"
                source.line(f"const bool inside = {inside};")
                to = f"memory + ({step}) % 2 * {self.stage_bytes} + "
                to += f"irc_place<{2 * DEPTH}, false>(row, chunk * 16)"
                at = f"inside ? m * {row} + k + {place.offset} : 0"
                source.line(f"irc_copy_async<16>({to}, &{name}[{at}], inside);")
        source.line("irc_commit();")

    def _expand(self, source: Source) -> None:
        """Append the right operand: the integers of 16 of k by 16 columns."""
        w, kind = self.weights, TYPES[self.dtype]
        name = self.form.buffer_name(w.q.place.buffer)
        known = f" - {literal(w.zero, 'f32')}" if isinstance(w.zero, int) and w.zero else ""
        source.line("unsigned b[2][2];")
        source.line("#pragma unroll")
        source.line("for (int n = 0; n < 2; ++n)")
        source.line("#pragma unroll")
        with source.block("for (int half = 0; half < 2; ++half) {", "}"):
            element = f"(k + half * 8{'' if w.nibbles > 1 else ' + lane % 4 * 2'}) / {w.nibbles}"
            per = w.depth // w.nibbles
            at = f"(own * {per} + {element}) * {COLUMNS} + n * 8 + lane / 4 + {w.q.place.offset}"
            source.line(f"const long long at = {at};")
            if w.nibbles > 1:
                source.line(f"const int word = {name}[at] >> lane % 4 * 8;")
                low, high = "(word & 15)", "(word >> 4 & 15)"
            else:
                low, high = f"{name}[at]", f"{name}[at + {COLUMNS}]"
            pair = f"(float){low}{known}, (float){high}{known}"
            source.line(f"b[n][half] = irc_pack<{kind}>({pair});")

    def _multiply(self, source: Source) -> None:
        kind = TYPES[self.dtype]
        if isinstance(self.weights.zero, Step):
            source.line(f"const unsigned ones = irc_pack<{kind}>(1.0f, 1.0f);")
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {self.m_count}; ++i) {{", "}"):
            row = "i * 16 + lane % 8 + lane / 8 % 2 * 8"
            place = f"irc_place<{2 * DEPTH}, false>({row}, j * 32 + lane / 16 * 16)"
            source.line("unsigned a[4];")
            source.line(f"irc_ldmatrix<false>(a, tile + {place});")
            for n in range(2):
                source.line(f"irc_mma<{kind}>(part[i][{n}], a, b[{n}][0], b[{n}][1]);")
            if isinstance(self.weights.zero, Step):
                source.line(f"irc_mma<{kind}>(whole[i], a, ones, ones);")

    def _scale(self, source: Source) -> None:
        """Append the end of a group: its sums, scaled, join the others'."""
        w = self.weights
        source.line("#pragma unroll")
        source.line("for (int n = 0; n < 2; ++n)")
        source.line("#pragma unroll")
        with source.block("for (int e = 0; e < 4; ++e) {", "}"):
            group = f"(own * {w.depth // w.group} + k / {w.group}) * {COLUMNS}"
            source.line(f"const long long at = {group} + n * 8 + lane % 4 * 2 + e % 2;")
            source.line(f"const float scale = {self._read(w.scale)};")
            value = "part[i][n][e]"
            if isinstance(w.zero, Step):
                source.line(f"const float zero = {self._read(w.zero)};")
                value = "(part[i][n][e] - zero * whole[i][e])"
            source.line("#pragma unroll")
            with source.block(f"for (int i = 0; i < {self.m_count}; ++i) {{", "}"):
                source.line(f"sum[i][n][e] += {value} * scale;")
                source.line("part[i][n][e] = 0;")
        if isinstance(w.zero, Step):
            source.line("#pragma unroll")
            source.line(f"for (int i = 0; i < {self.m_count}; ++i)")
            source.line("#pragma unroll")
            source.line("for (int e = 0; e < 4; ++e) whole[i][e] = 0;")

    def _read(self, step: Step) -> str:
        return f"{self.form.buffer_name(step.place.buffer)}[at + {step.place.offset}]"

    def _epilogue(self, source: Source) -> None:
        rest = [s for s in self.form.steps if not s.full and s.kind != "contract"]
        source.line("#pragma unroll")
        source.line(f"for (int i = 0; i < {self.m_count}; ++i)")
        source.line("#pragma unroll")
        source.line("for (int n = 0; n < 2; ++n)")
        source.line("#pragma unroll")
        with source.block("for (int e = 0; e < 4; ++e) {", "}"):
            source.line("const long long m = begin + i * 16 + e / 2 * 8 + lane / 4;")
            source.line("const long long column = n * 8 + lane % 4 * 2 + e % 2;")
            bounds = f"m < {self.form.parallel[0]} && panel < {self.panels}"
            with source.block(f"if ({bounds}) {{", "}"):
                point = Scalar(self.form, source, {0: "m", 1: "panel", 2: "column"})
                point.values[self.contract.result] = "sum[i][n][e]"
                point.emit(rest)
