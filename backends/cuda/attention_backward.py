"""Template ``attention_backward``: gradients of attention, scores computed again and never stored.

FlashAttention-2 (arXiv:2307.08691, algorithm 2) as two kernels, each of which has a tile of its own
and walks over tiles of the other side. The gradients of keys and values own keys and walk over the
rows of all heads that share them, from the diagonal on; those of queries own rows and walk over
keys, up to the diagonal. Nobody adds to what another block writes, so bits repeat. What is computed
is the same on both sides::

    p = exp(q k * scale + mask - sums)      ds = p * (g v - delta) * scale
    dv += p g      dk += ds q      dq += ds k

A warp owns 8 rows or keys, a lane has one of the 32 that are walked over; each lane adds up its
features. All arithmetic is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from irc.backends.cuda.attention_code import NEVER, WARP, WARPS, AttentionCode
from irc.backends.cuda.scalar import decode, literal, stored_as
from irc.dialects.attention import AttentionForm
from irc.dialects.attention_backward import BEFORE, OUTPUTS
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.errors import IrcError
from irc.kernels.form import Form
from irc.kernels.source import Source

OWNED = 32
"""Rows or keys of a block."""
WALKED = 32
"""Those of a step: one a lane."""


@dataclass(frozen=True)
class Side:
    """What a kernel owns, and what it walks over.

    Attributes:
        own: the roles of its tile: those of scores, and of their gradients.
        walk: their partners.
        at: the index of what it owns, ``s`` or ``t``.
        along: of what it walks over.
        results: role, the weights ``p`` or ``ds``, and the role that they multiply.
    """

    own: tuple[str, str]
    walk: tuple[str, str]
    at: str
    along: str
    results: tuple[tuple[str, str, str], ...]

    @property
    def owns_keys(self) -> bool:
        """True for the gradients of keys and values."""
        return self.at == "t"


KEYS = Side(("k", "v"), ("q", "g"), "t", "s", (("dk", "ds", "q"), ("dv", "p", "g")))
ROWS = Side(("q", "g"), ("k", "v"), "s", "t", (("dq", "ds", "k"),))


class AttentionBackward(AttentionCode):
    """The launch of a kernel of gradients, and its code.

    Raises:
        IrcError: ``op-unsupported``.
    """

    owned, walked = OWNED, WALKED

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        super().__init__(form, attention)
        a = attention
        self.side = self._side()
        count = a.keys if self.side.owns_keys else a.rows
        self.tiles = -(-count // self.owned)
        self.heads = prod(a.lead) * a.groups * (1 if self.side.owns_keys else a.repeats)
        self.blocks = self.heads * self.tiles
        self.num_owned, self.num_walked = count, a.rows if self.side.owns_keys else a.keys
        self.results = [r for r in self.side.results if r[0] in a.places]
        self.shared_bytes = self._shared()
        self.check_shared(self.shared_bytes, self.walked)

    @property
    def bounds(self) -> str:
        """What ``__launch_bounds__`` says; with no number of blocks, ptxas spills to have many."""
        return f"{self.threads}, 1"

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over heads and what they own, warps, and what a warp owns."""
        return compose(
            spatial(max(1, self.heads), max(1, self.tiles)),
            spatial(1, WARPS),
            repeat(1, self.owned // WARPS),
        )

    def _side(self) -> Side:
        wanted = {role for role in OUTPUTS if role in self.attention.places}
        for side in (KEYS, ROWS):
            if wanted <= {role for role, *_ in side.results} and self.attention.parts == 1:
                return side
        raise IrcError(
            "op-unsupported",
            "the CUDA backend has no kernel of all gradients of attention at once",
            where=f"kernel @{self.form.name}, {self.form.loc}",
            because=f"it gives {', '.join(sorted(wanted))} of {self.attention.parts} parts",
            help="map the program for a GPU: its passes make a kernel for each side",
        )

    def _features(self, role: str) -> int:
        return self.attention.depth if role in ("q", "k") else self.attention.width

    def _shared(self) -> int:
        per = self.attention.depth + self.attention.width
        return 4 * (self.owned * per + self.walked * (per + 2))

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        self._place(source)
        source.line("float* const memory_f = reinterpret_cast<float*>(memory);")
        at = 0
        for role in (*self.side.own, *self.side.walk):
            source.line(f"float* const {role}_tile = memory_f + {at};")
            own = role in self.side.own
            at += (self.owned if own else self.walked) * (self._features(role) + (not own))
        per_warp = self.owned // WARPS
        for role, _, other in self.results:
            source.line(f"float {role}[{per_warp}][{-(-self._features(other) // WARP)}] = {{}};")
        for role in self.side.own:
            self._load(source, role, self.owned, 0, "begin", self.num_owned)
        with source.block("for (int step = 0; step < steps; ++step) {", "}"):
            self._walk_to(source, "step")
            source.line("// Nobody reads the last tile any more.")
            source.line("__syncthreads();")
            for role in self.side.walk:
                self._load(source, role, self.walked, 1, "w0", self.num_walked)
            source.line("__syncthreads();")
            self._weights(source, per_warp)
            for role, weight, other in self.results:
                self._add(source, per_warp, role, weight, other)
        self._store(source, per_warp)

    def _place(self, source: Source) -> None:
        """Append which tile the block owns, and how many steps it walks."""
        a, side = self.attention, self.side
        names = {f"i{d}": size for d, size in enumerate(a.lead)} | {"g": a.groups}
        names |= {"tile": self.tiles} if side.owns_keys else {"r": a.repeats, "tile": self.tiles}
        decode(source, "blockIdx.x", names)
        source.line("constexpr long long first = 0, p = 0;")
        source.line(f"const long long begin = (long long)tile * {self.owned};")
        source.line(f"const int warp = threadIdx.x / {WARP}, lane = threadIdx.x % {WARP};")
        source.line("IRC_DYNAMIC_SHARED(memory);")
        source.line(f"long long from = 0, last = {self.num_walked};")
        if a.causal:
            start = self.element("start") if "start" in a.places else "0"
            source.line(f"const long long start = (long long){start};")
            if side.owns_keys:
                source.line("// No row before sees a key of this block.")
                source.line(
                    f"if (begin > start) from = (begin - start) / {self.walked} * {self.walked};"
                )
            else:
                source.line("// No row of this block sees a later key.")
                source.line(f"const long long end = begin + {self.owned} + start;")
                source.line("if (last > end) last = end;")
        source.line(
            f"const int each = from < last ? (int)((last - from + {self.walked - 1}) / "
            f"{self.walked}) : 0;"
        )
        source.line(f"const int steps = each{f' * {a.repeats}' if side.owns_keys else ''};")

    def _walk_to(self, source: Source, step: str) -> None:
        """Append where a step is: the head, and the first row or key."""
        if self.side.owns_keys:
            source.line(f"const int r = {step} / each;")
            source.line(f"const long long w0 = from + {step} % each * {self.walked}ll;")
        else:
            source.line(f"const long long w0 = {step} * {self.walked}ll;")

    def _load(self, source: Source, role: str, count: int, pad: int, begin: str, end: int) -> None:
        """Append the copy of rows to shared memory, as float; zeros beyond the end."""
        features = self._features(role)
        # Unrolled whole, ptxas keeps the predicates of all loads, and spills.
        source.line("#pragma unroll 4")
        head = f"for (int e = threadIdx.x; e < {count * features}; e += {self.threads}) {{"
        with source.block(head, "}"):
            source.line(f"const int row = e / {features}, f = e % {features};")
            source.line(f"const long long at = {begin} + row;")
            value = self.element(role, "at", "at", "f")
            place = f"{role}_tile[row * {features + pad} + f]"
            source.line(f"{place} = at < {end} ? {value} : 0.0f;")

    def _weights(self, source: Source, per_warp: int) -> None:
        """Append ``p`` and ``ds``, of each thing that the warp owns and the lane's partner."""
        source.line(f"float p_of[{per_warp}] = {{}}, ds_of[{per_warp}] = {{}};")
        for name, own, walk in zip(("p_of", "ds_of"), self.side.own, self.side.walk, strict=True):
            features = self._features(own)
            with source.block(f"for (int f = 0; f < {features}; ++f) {{", "}"):
                source.line(f"const float other = {walk}_tile[lane * {features + 1} + f];")
                source.line("#pragma unroll")
                mine = f"{own}_tile[(warp * {per_warp} + i) * {features} + f]"
                source.line(
                    f"for (int i = 0; i < {per_warp}; ++i) "
                    f"{name}[i] = fmaf({mine}, other, {name}[i]);"
                )
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {per_warp}; ++i) {{", "}"):
            source.line(f"const long long {self.side.at} = begin + warp * {per_warp} + i;")
            source.line(f"const long long {self.side.along} = w0 + lane;")
            self._weigh(source, "p_of[i]", "ds_of[i]")

    def _weigh(self, source: Source, score: str, gradient: str) -> None:
        """Append what turns two products into ``p`` and ``ds``, at row ``s`` and key ``t``."""
        a = self.attention
        seen = f"s < {a.rows} && t < {a.keys}" + (" && s + start >= t" if a.causal else "")
        source.line(f"bool seen = {seen};")
        source.line(f"const float total = seen ? {self.element('sums', 's')} : {NEVER};")
        source.line("// A row that sees nothing has no gradient.")
        source.line(f"seen = seen && total != {NEVER};")
        source.line(f"float score = {score} * {literal(a.scale, 'f32')};")
        if "mask" in a.places:
            value = self.element("mask", "s", "t")
            is_bool = a.places["mask"].dtype == "i1"
            source.line(f"if (seen) {'seen =' if is_bool else 'score +='} {value};")
        source.line(f"{score} = seen ? expf(score - total) : 0.0f;")
        delta = f"{gradient} - {self.element('delta', 's')}"
        scale = literal(a.scale, "f32")
        source.line(f"{gradient} = seen ? {score} * ({delta}) * {scale} : 0.0f;")

    def _add(self, source: Source, per_warp: int, role: str, weight: str, other: str) -> None:
        features = self._features(other)
        columns = -(-features // WARP)
        # Unrolled, ptxas keeps predicates of several partners, and spills.
        source.line("#pragma unroll 1")
        with source.block(f"for (int j = 0; j < {self.walked}; ++j) {{", "}"):
            source.line("#pragma unroll")
            with source.block(f"for (int i = 0; i < {per_warp}; ++i) {{", "}"):
                source.line(f"const float one = __shfl_sync(0xffffffffu, {weight}_of[i], j);")
                source.line("#pragma unroll")
                with source.block(f"for (int c = 0; c < {columns}; ++c) {{", "}"):
                    guard = f"if (lane + c * {WARP} < {features}) " if features % WARP else ""
                    value = f"{other}_tile[j * {features + 1} + lane + c * {WARP}]"
                    source.line(f"{guard}{role}[i][c] = fmaf(one, {value}, {role}[i][c]);")

    def _store(self, source: Source, per_warp: int) -> None:
        if self.side.owns_keys:
            source.line("constexpr int r = 0;")
        source.line("#pragma unroll")
        with source.block(f"for (int i = 0; i < {per_warp}; ++i) {{", "}"):
            source.line(f"const long long at = begin + warp * {per_warp} + i;")
            source.line(f"if (at >= {self.num_owned}) continue;")
            for role, _, other in self.results:
                features = self._features(other)
                source.line("#pragma unroll")
                with source.block(f"for (int c = 0; c < {-(-features // WARP)}; ++c) {{", "}"):
                    source.line(f"const int f = lane + c * {WARP};")
                    if features % WARP:
                        source.line(f"if (f >= {features}) continue;")
                    self.store_result(source, role, f"{role}[i][c]")

    def store_result(self, source: Source, role: str, value: str) -> None:
        """Append the store of a gradient at ``at`` and feature ``f``, on what was there before."""
        if BEFORE[role] in self.attention.places:
            value = f"{value} + {self.element(BEFORE[role], 'at', 'at', 'f')}"
        kind = self.attention.places[role].dtype
        source.line(f"{self.target(role, 'at', 'at', 'f')} = {stored_as(value, kind)};")
