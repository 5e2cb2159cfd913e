"""Template ``attention``: softmax over keys in one pass, with the scores never in memory.

A block has a few rows of one head and walks over tiles of 32 keys (online softmax,
arXiv:1805.02867; FlashAttention, arXiv:2205.14135). A warp holds whole rows: each lane computes the
score of one key, maxima and sums meet by shuffles, and each lane adds up its features of the
values. All arithmetic is float32. Parts of the keys are blocks of their own; another kernel merges
them.
"""

from __future__ import annotations

from math import prod

from irc.backends.cuda.attention_code import NEVER, WARP, WARPS, AttentionCode
from irc.backends.cuda.scalar import decode, literal, stored_as
from irc.dialects.attention import AttentionForm
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.form import Form
from irc.kernels.source import Source

KEYS = 32
"""Keys of a tile: one a lane."""


class Attention(AttentionCode):
    """The launch of an attention kernel, and its code."""

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        super().__init__(form, attention)
        # Fewer rows a warp where a head has few: decoding has one.
        self.per_warp = 4 if attention.rows > 2 * WARPS else 2 if attention.rows > WARPS else 1
        self.rows = WARPS * self.per_warp
        self.tiles = -(-attention.rows // self.rows)
        heads = attention.groups * attention.repeats * attention.parts
        self.blocks = prod(attention.lead) * heads * self.tiles
        floats = self.rows * attention.depth + KEYS * (attention.depth + 1 + attention.width)
        self.shared_bytes = 4 * floats
        self.check_shared(self.shared_bytes, KEYS)

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over heads (with their parts) and rows, warps over rows, rows of a warp.

        The lanes of a warp share its rows.
        """
        return compose(
            spatial(max(1, self.blocks // max(1, self.tiles)), max(1, self.tiles)),
            spatial(1, WARPS),
            repeat(1, self.per_warp),
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        a = self.attention
        self._place(source)
        columns = -(-a.width // WARP)
        source.line(f"float result[{self.per_warp}][{columns}] = {{}};")
        source.line(f"float most[{self.per_warp}], total[{self.per_warp}] = {{}};")
        source.line(f"for (int i = 0; i < {self.per_warp}; ++i) most[i] = {NEVER};")
        self._load(source, "q", self.rows, a.depth, a.depth, "begin", f"{a.rows}")
        with source.block(f"for (long long t0 = first; t0 < last; t0 += {KEYS}) {{", "}"):
            source.line("// Nobody reads the last tile any more.")
            source.line("__syncthreads();")
            self._load(source, "k", KEYS, a.depth, a.depth + 1, "t0", "last")
            self._load(source, "v", KEYS, a.width, a.width, "t0", "last")
            source.line("__syncthreads();")
            self._scores(source)
            self._softmax(source, columns)
        self._store(source, columns)

    def _place(self, source: Source) -> None:
        a = self.attention
        names = {f"i{d}": size for d, size in enumerate(a.lead)}
        names |= {"g": a.groups, "r": a.repeats, "p": a.parts, "tile": self.tiles}
        decode(source, "blockIdx.x", names)
        source.line(f"const int begin = tile * {self.rows};")
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line("IRC_DYNAMIC_SHARED(memory);")
        self._pointers(source)
        source.line(f"const long long first = (long long)p * {a.chunk};")
        source.line(f"long long last = first + {a.chunk};")
        source.line(f"if (last > {a.keys}) last = {a.keys};")
        start = "0"
        if "start" in a.places:
            start = f"(long long){self.element('start')}"
        if a.causal:
            source.line(f"const long long start = {start};")
            source.line("// No row of this block sees a later key.")
            source.line(f"const long long end = begin + {self.rows} + start;")
            source.line("if (last > end) last = end;")

    def _pointers(self, source: Source) -> None:
        depth = self.attention.depth
        source.line("float* const q_tile = reinterpret_cast<float*>(memory);")
        source.line(f"float* const k_tile = q_tile + {self.rows * depth};")
        source.line(f"float* const v_tile = k_tile + {KEYS * (depth + 1)};")

    def _load(
        self, source: Source, role: str, rows: int, features: int, pitch: int, begin: str, end: str
    ) -> None:
        """Append the copy of rows to shared memory, as float; zeros beyond the end."""
        total, s_or_t = rows * features, "s" if role == "q" else "t"
        head = f"for (int e = threadIdx.x; e < {total}; e += {self.threads}) {{"
        with source.block(head, "}"):
            source.line(f"const int row = e / {features}, f = e % {features};")
            source.line(f"const long long {s_or_t} = {begin} + row;")
            value = self.element(role, feature="f", **{s_or_t: s_or_t})
            if role == "q":
                value = f"{value} * {literal(self.attention.scale, 'f32')}"
            place = f"{role}_tile[row * {pitch} + f]"
            source.line(f"{place} = {s_or_t} < {end} ? {value} : 0.0f;")

    def _scores(self, source: Source) -> None:
        a = self.attention
        source.line("const long long t = t0 + lane;")
        source.line(f"float score[{self.per_warp}] = {{}};")
        with source.block(f"for (int f = 0; f < {a.depth}; ++f) {{", "}"):
            source.line(f"const float key = k_tile[lane * {a.depth + 1} + f];")
            source.line("#pragma unroll")
            query = f"q_tile[(warp * {self.per_warp} + i) * {a.depth} + f]"
            source.line(
                f"for (int i = 0; i < {self.per_warp}; ++i) "
                f"score[i] = fmaf({query}, key, score[i]);"
            )
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {self.per_warp}; ++i) {{", "}"):
            source.line(f"const long long s = begin + warp * {self.per_warp} + i;")
            seen = f"t < last && s < {a.rows}" + (" && s + start >= t" if a.causal else "")
            source.line(f"bool seen = {seen};")
            if "mask" in a.places:
                value = self.element("mask", "s", "t")
                if a.places["mask"].dtype == "i1":
                    source.line(f"if (seen) seen = {value};")
                else:
                    source.line(f"if (seen) score[i] += {value};")
            source.line(f"if (!seen) score[i] = {NEVER};")

    def _softmax(self, source: Source, columns: int) -> None:
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {self.per_warp}; ++i) {{", "}"):
            source.line("float highest = irc_max(most[i], irc_warp_max(score[i]));")
            source.line("// A row that has seen nothing yet has nothing to scale.")
            source.line(f"const float kept = most[i] == {NEVER} ? 0.0f : expf(most[i] - highest);")
            source.line(
                f"const float weight = score[i] == {NEVER} ? 0.0f : expf(score[i] - highest);"
            )
            source.line("total[i] = total[i] * kept + irc_warp_sum(weight);")
            source.line("most[i] = highest;")
            source.line("#pragma unroll")
            source.line(f"for (int c = 0; c < {columns}; ++c) result[i][c] *= kept;")
            # Unrolled whole, ptxas keeps predicates of all keys, and spills.
            source.line("#pragma unroll 4")
            with source.block(f"for (int j = 0; j < {KEYS}; ++j) {{", "}"):
                source.line("const float one = __shfl_sync(0xffffffffu, weight, j);")
                source.line("#pragma unroll")
                with source.block(f"for (int c = 0; c < {columns}; ++c) {{", "}"):
                    width = self.attention.width
                    guard = f"if (lane + c * {WARP} < {width}) " if width % WARP else ""
                    value = f"v_tile[j * {width} + lane + c * {WARP}]"
                    source.line(f"{guard}result[i][c] = fmaf(one, {value}, result[i][c]);")

    def _store(self, source: Source, columns: int) -> None:
        a = self.attention
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {self.per_warp}; ++i) {{", "}"):
            source.line(f"const long long s = begin + warp * {self.per_warp} + i;")
            source.line(f"if (s >= {a.rows}) continue;")
            self._finish_row(source, "total[i]", "most[i]", "lane == 0")
            source.line("#pragma unroll")
            with source.block(f"for (int c = 0; c < {columns}; ++c) {{", "}"):
                source.line(f"const int f = lane + c * {WARP};")
                if a.width % WARP:
                    source.line(f"if (f >= {a.width}) continue;")
                self._store_feature(source, "result[i][c]")

    def _finish_row(self, source: Source, total: str, most: str, once: str) -> None:
        """Append the log-sum of row ``s``, and what its features are multiplied by, ``ours``.

        Args:
            source: where statements go.
            total: of the weights.
            most: the highest score.
            once: true in one lane of those that have the row.
        """
        source.line(f"const bool some = {total} != 0.0f;")
        source.line(f"float sums = some ? {most} + logf({total}) : {NEVER};")
        source.line(f"float ours = some ? 1.0f / {total} : 0.0f;")
        if "y0" in self.attention.places:
            self._merge(source)
        if "sums" in self.attention.places:
            source.line(f"if ({once}) {self.target('sums', 's')} = sums;")

    def _store_feature(self, source: Source, value: str) -> None:
        """Append the store of feature ``f`` of row ``s``, with the result over other keys."""
        source.line(f"float value = {value} * ours;")
        if "y0" in self.attention.places:
            source.line(f"value += theirs * {self.element('y0', 's', feature='f')};")
        kind = self.attention.places["y"].dtype
        source.line(f"{self.target('y', 's', feature='f')} = {stored_as('value', kind)};")

    def _merge(self, source: Source) -> None:
        """Append the weights of the softmax over other keys and of ours."""
        source.line(f"const float before = {self.element('sums0', 's')};")
        source.line("const float larger = irc_max(before, sums);")
        source.line(f"const float a = before == {NEVER} ? 0.0f : expf(before - larger);")
        source.line(f"const float b = sums == {NEVER} ? 0.0f : expf(sums - larger);")
        source.line("const bool any = a + b != 0.0f;")
        source.line("const float theirs = any ? a / (a + b) : 0.0f;")
        source.line("ours *= any ? b / (a + b) : 0.0f;")
        source.line(f"sums = any ? larger + logf(a + b) : {NEVER};")
