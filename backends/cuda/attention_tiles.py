"""Template ``attention`` on tensor cores: tiles of 64 rows by 64 keys, scores in registers.

As FlashAttention-2 (arXiv:2307.08691): a warp holds 16 rows; queries stay in its registers, tiles
of keys and values come by ``cp.async``, one ahead. Scores are the sums of ``mma``, and what they
become is the left operand of the next ``mma`` without leaving the lane: the fragment of 16 x 16
probabilities is that of two 16 x 8 sums (PTX ISA, "Matrix Fragments for mma.m16n8k16").
Probabilities are rounded to the dtype of the values; maxima, totals and results are float32.
"""

from __future__ import annotations

from irc.backends.cuda.attention import Attention
from irc.backends.cuda.attention_code import NEVER, SHARED_LIMIT, WARPS
from irc.backends.cuda.functions import TYPES
from irc.backends.cuda.scalar import literal
from irc.dialects.attention import AttentionForm
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.arithmetic import power_of_two
from irc.kernels.form import Form
from irc.kernels.source import Source

ROWS, KEYS = 64, 64
LEAST_ROWS = 16
"""Rows of a head below which most of a tile would be empty."""
MAX_FEATURES = 128


class AttentionTiles(Attention):
    """The launch of an attention kernel on tensor cores, and its code."""

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        super().__init__(form, attention)
        self.dtype = attention.places["q"].dtype
        self.rows, self.per_warp = ROWS, 2
        self.tiles = -(-attention.rows // ROWS)
        heads = attention.groups * attention.repeats * attention.parts
        self.blocks = self.tiles * heads
        for size in attention.lead:
            self.blocks *= size
        # Rows of a tile are powers of two, so that their chunks can be swizzled.
        self.pitch = {r: 2 * power_of_two(n) for r, n in self._features().items()}
        self.stage_bytes = KEYS * (self.pitch["k"] + self.pitch["v"])
        self.shared_bytes = ROWS * self.pitch["q"] + 2 * self.stage_bytes

    @property
    def bounds(self) -> str:
        """What ``__launch_bounds__`` says: two blocks at once leave a thread all its registers."""
        return f"{self.threads}, 2"

    @staticmethod
    def fits(form: Form, attention: AttentionForm) -> bool:
        """Return whether tensor cores can read q, k and v: halves, in whole chunks of 16 bytes."""
        a = attention
        if a.rows < LEAST_ROWS or a.places["q"].dtype not in ("f16", "bf16"):
            return False
        if a.depth % 16 or a.width % 16 or max(a.depth, a.width) > MAX_FEATURES:
            return False
        return all(
            a.places[role].feature == 1
            and not any(n % 8 for n in (*a.places[role].strides, a.places[role].offset))
            for role in "qkv"
        ) and ROWS * 2 * MAX_FEATURES + 8 * KEYS * MAX_FEATURES <= SHARED_LIMIT  # fmt: skip

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over heads (with their parts) and rows, warps, and the rows of a lane.

        Four lanes share a row.
        """
        return compose(
            spatial(max(1, self.blocks // max(1, self.tiles)), max(1, self.tiles)),
            spatial(1, WARPS),
            repeat(1, 2),
            spatial(1, 8),
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        a = self.attention
        self._place(source)
        source.line(f"float result[{a.width // 8}][4] = {{}};")
        source.line(f"float most[2] = {{{NEVER}, {NEVER}}}, total[2] = {{}};")
        self._copy(source, "q", ROWS, "begin", str(a.rows), "memory")
        self._copy_keys(source, "first")
        source.line("irc_commit();")
        source.line(f"unsigned q[{a.depth // 16}][4];")
        with source.block(f"for (long long t0 = first; t0 < last; t0 += {KEYS}) {{", "}"):
            source.line("irc_copies_left<0>();")
            source.line("// Now this tile is whole, and nobody reads the last one.")
            source.line("__syncthreads();")
            source.line(f"const long long ahead = t0 + {KEYS};")
            with source.block("if (ahead < last) {", "}"):
                self._copy_keys(source, "ahead")
                source.line("irc_commit();")
            with source.block("if (t0 == first) {", "}"):
                self._queries(source)
            self._tiles_at(source, "t0")
            self._scores(source)
            self._softmax(source, a.width // 8)
            self._products(source)
        self._store(source, a.width // 8)

    def _pointers(self, source: Source) -> None:
        source.line("unsigned char* const q_tile = memory;")

    def _features(self) -> dict[str, int]:
        return {"q": self.attention.depth, "k": self.attention.depth, "v": self.attention.width}

    def _tiles_at(self, source: Source, at: str) -> None:
        stage = f"({at} - first) / {KEYS} % 2 * {self.stage_bytes}"
        start = f"memory + {ROWS * self.pitch['q']} + {stage}"
        source.line(f"unsigned char* const k_tile = {start};")
        source.line(f"unsigned char* const v_tile = k_tile + {KEYS * self.pitch['k']};")

    def _copy_keys(self, source: Source, at: str) -> None:
        with source.block("{", "}"):
            self._tiles_at(source, at)
            self._copy(source, "k", KEYS, at, "last", "k_tile")
            self._copy(source, "v", KEYS, at, "last", "v_tile")

    def _copy(self, source: Source, role: str, rows: int, begin: str, end: str, tile: str) -> None:
        place, chunks = self.attention.places[role], self._features()[role] // 8
        name, at = self.form.buffer_name(place.buffer), "s" if role == "q" else "t"
        head = f"for (int e = threadIdx.x; e < {rows * chunks}; e += {self.threads}) {{"
        with source.block(head, "}"):
            source.line(f"const int row = e / {chunks}, chunk = e % {chunks};")
            source.line(f"const long long {at} = {begin} + row;")
            s, t = ("s", "first") if role == "q" else ("0", "t")
            address = self.address(place, s, t, "chunk * 8")
            to = f"{tile} + irc_place<{self.pitch[role]}, false>(row, chunk * 16)"
            source.line(
                f"irc_copy_async<16>({to}, &{name}[{at} < {end} ? {address} : 0], {at} < {end});"
            )

    def _queries(self, source: Source) -> None:
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {self.attention.depth // 16}; ++k) {{", "}"):
            row = "warp * 16 + lane % 8 + lane / 8 % 2 * 8"
            place = f"irc_place<{self.pitch['q']}, false>({row}, k * 32 + lane / 16 * 16)"
            source.line(f"irc_ldmatrix<false>(q[k], q_tile + {place});")

    def _scores(self, source: Source) -> None:
        source.line(f"float score[{KEYS // 8}][4] = {{}};")
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {self.attention.depth // 16}; ++k) {{", "}"):
            source.line("#pragma unroll")
            with source.block(f"for (int j = 0; j < {KEYS // 16}; ++j) {{", "}"):
                row = "j * 16 + lane % 8 + lane / 16 * 8"
                place = f"irc_place<{self.pitch['k']}, false>({row}, k * 32 + lane / 8 % 2 * 16)"
                source.line("unsigned key[4];")
                source.line(f"irc_ldmatrix<false>(key, k_tile + {place});")
                for half in range(2):
                    to = f"score[j * 2 + {half}], q[k], key[{2 * half}], key[{2 * half + 1}]"
                    source.line(f"irc_mma<{TYPES[self.dtype]}>({to});")
        self._each(source, KEYS // 8)
        with source.block("for (int e = 0; e < 4; ++e) {", "}"):
            self._seen(source)

    def _each(self, source: Source, count: int) -> None:
        source.line("#pragma unroll")
        source.line(f"for (int j = 0; j < {count}; ++j)")
        source.line("#pragma unroll")

    def _seen(self, source: Source) -> None:
        """Append what makes a product a score: the scale, the mask, and who takes part."""
        a = self.attention
        source.line("const long long s = begin + warp * 16 + e / 2 * 8 + lane / 4;")
        source.line("const long long t = t0 + j * 8 + lane % 4 * 2 + e % 2;")
        source.line(f"score[j][e] *= {literal(a.scale, 'f32')};")
        seen = f"t < last && s < {a.rows}" + (" && s + start >= t" if a.causal else "")
        source.line(f"bool seen = {seen};")
        if "mask" in a.places:
            value = self.element("mask", "s", "t")
            is_bool = a.places["mask"].dtype == "i1"
            source.line(f"if (seen) {'seen =' if is_bool else 'score[j][e] +='} {value};")
        source.line(f"if (!seen) score[j][e] = {NEVER};")

    def _softmax(self, source: Source, columns: int) -> None:
        source.line("#pragma unroll")
        with source.block("for (int h = 0; h < 2; ++h) {", "}"):
            source.line("float highest = most[h];")
            self._each(source, KEYS // 8)
            source.line(
                "for (int e = 0; e < 2; ++e) highest = irc_max(highest, score[j][h * 2 + e]);"
            )
            with source.block("for (int distance = 1; distance < 4; distance *= 2) {", "}"):
                other = "__shfl_xor_sync(0xffffffffu, highest, distance)"
                source.line(f"highest = irc_max(highest, {other});")
            source.line("// A row that has seen nothing yet has nothing to scale.")
            source.line(f"const float kept = most[h] == {NEVER} ? 0.0f : expf(most[h] - highest);")
            source.line("most[h] = highest;")
            source.line("total[h] *= kept;")
            self._each(source, KEYS // 8)
            with source.block("for (int e = 0; e < 2; ++e) {", "}"):
                source.line("float& one = score[j][h * 2 + e];")
                source.line(f"one = one == {NEVER} ? 0.0f : expf(one - highest);")
                source.line("total[h] += one;")
            self._each(source, columns)
            source.line("for (int e = 0; e < 2; ++e) result[j][h * 2 + e] *= kept;")

    def _products(self, source: Source) -> None:
        kind = TYPES[self.dtype]
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {KEYS // 16}; ++k) {{", "}"):
            pairs = [f"irc_pack<{kind}>(score[k * 2 + {i // 2}][{i % 2 * 2}], "
                     f"score[k * 2 + {i // 2}][{i % 2 * 2 + 1}])" for i in range(4)]  # fmt: skip
            source.line("const unsigned weight[4] = {\n  " + ",\n  ".join(pairs) + "};")
            source.line("#pragma unroll")
            with source.block(f"for (int j = 0; j < {self.attention.width // 16}; ++j) {{", "}"):
                row = "k * 16 + lane % 8 + lane / 8 % 2 * 8"
                place = f"irc_place<{self.pitch['v']}, false>({row}, j * 32 + lane / 16 * 16)"
                source.line("unsigned value[4];")
                source.line(f"irc_ldmatrix<true>(value, v_tile + {place});")
                for half in range(2):
                    to = f"result[j * 2 + {half}], weight, value[{2 * half}], value[{2 * half + 1}]"
                    source.line(f"irc_mma<{kind}>({to});")

    def _store(self, source: Source, columns: int) -> None:
        a = self.attention
        source.line("#pragma unroll")
        with source.block("for (int h = 0; h < 2; ++h) {", "}"):
            with source.block("for (int distance = 1; distance < 4; distance *= 2) {", "}"):
                source.line("total[h] += __shfl_xor_sync(0xffffffffu, total[h], distance);")
            source.line("const long long s = begin + warp * 16 + h * 8 + lane / 4;")
            source.line(f"if (s >= {a.rows}) continue;")
            self._finish_row(source, "total[h]", "most[h]", "lane % 4 == 0")
            self._each(source, columns)
            with source.block("for (int e = 0; e < 2; ++e) {", "}"):
                source.line("const int f = j * 8 + lane % 4 * 2 + e;")
                self._store_feature(source, "result[j][h * 2 + e]")
