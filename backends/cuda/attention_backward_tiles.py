"""Template ``attention_backward`` on tensor cores: 64 rows or keys of a block, products by ``mma``.

A warp owns 16 of them. Scores and their gradients, 16 by 64 (or 32, where there are many features),
are sums in registers, and what they become is the left operand of the products that follow without
leaving the lane, as in :mod:`irc.backends.cuda.attention_tiles`. Tiles that are walked over come by
``cp.async``, one ahead. ``p`` and ``ds`` are rounded to the dtype of the operands.
"""

from __future__ import annotations

from irc.backends.cuda.attention_backward import AttentionBackward
from irc.backends.cuda.attention_code import WARPS
from irc.backends.cuda.attention_tiles import LEAST_ROWS, MAX_FEATURES
from irc.backends.cuda.functions import TYPES
from irc.dialects.attention import AttentionForm
from irc.dialects.mapping import TaskMapping, compose, repeat, spatial
from irc.kernels.arithmetic import power_of_two
from irc.kernels.form import Form
from irc.kernels.source import Source

OWNED = 64
FEW_FEATURES = 64
"""Up to so many, a step is 64 rows or keys; the sums of more leave registers for 32."""


class AttentionBackwardTiles(AttentionBackward):
    """The launch of a kernel of gradients on tensor cores, and its code."""

    owned = OWNED

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        self.walked = 64 if max(attention.depth, attention.width) <= FEW_FEATURES else 32
        self.dtype = attention.places["q"].dtype
        super().__init__(form, attention)

    @staticmethod
    def fits(form: Form, attention: AttentionForm) -> bool:
        """Return whether tensor cores can read the operands: halves, in chunks of 16 bytes."""
        a = attention
        if min(a.rows, a.keys) < LEAST_ROWS or a.places["q"].dtype not in ("f16", "bf16"):
            return False
        if a.depth % 16 or a.width % 16 or max(a.depth, a.width) > MAX_FEATURES:
            return False
        return all(
            a.places[role].feature == 1
            and not any(n % 8 for n in (*a.places[role].strides, a.places[role].offset))
            for role in "qkvg"
        )

    @property
    def mapping(self) -> TaskMapping:
        """Blocks over heads and what they own, warps, and what a lane has; four lanes share it."""
        return compose(
            spatial(max(1, self.heads), max(1, self.tiles)),
            spatial(1, WARPS),
            repeat(1, 2),
            spatial(1, 8),
        )

    def _pitch(self, role: str) -> int:
        # Rows of a tile are powers of two, so that their chunks can be swizzled.
        return 2 * power_of_two(self._features(role))

    def _stage_bytes(self) -> int:
        return self.walked * sum(self._pitch(role) for role in self.side.walk)

    def _own_bytes(self) -> int:
        return self.owned * sum(self._pitch(role) for role in self.side.own)

    def _shared(self) -> int:
        return self._own_bytes() + 2 * self._stage_bytes()

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        self._place(source)
        one, other = self.side.own
        source.line(f"unsigned char* const {one}_tile = memory;")
        source.line(f"unsigned char* const {other}_tile = memory + {OWNED * self._pitch(one)};")
        for role, _, walked in self.results:
            source.line(f"float {role}[{self._features(walked) // 8}][4] = {{}};")
        for role in self.side.own:
            self._copy(source, role, self.owned, "begin", self.num_owned)
        self._copy_ahead(source, "0")
        with source.block("for (int step = 0; step < steps; ++step) {", "}"):
            source.line("irc_copies_left<0>();")
            source.line("// Now this tile is whole, and nobody reads the last one.")
            source.line("__syncthreads();")
            self._copy_ahead(source, "step + 1")
            self._walk_to(source, "step")
            self._stage(source, "step")
            self._products(source)
            self._weights_of(source)
            for role, weight, walked in self.results:
                self._multiply(source, role, weight, walked)
        self._store_tiles(source)

    def _stage(self, source: Source, step: str) -> None:
        one, other = self.side.walk
        place = f"memory + {self._own_bytes()} + ({step}) % 2 * {self._stage_bytes()}"
        source.line(f"unsigned char* const {one}_tile = {place};")
        size = self.walked * self._pitch(one)
        source.line(f"unsigned char* const {other}_tile = {one}_tile + {size};")

    def _copy_ahead(self, source: Source, step: str) -> None:
        with source.block(f"if ({step} < steps) {{", "}"):
            self._walk_to(source, f"({step})")
            self._stage(source, step)
            for role in self.side.walk:
                self._copy(source, role, self.walked, "w0", self.num_walked)
        source.line("irc_commit();")

    def _copy(self, source: Source, role: str, rows: int, begin: str, end: int) -> None:
        place, chunks = self.attention.places[role], self._features(role) // 8
        name = self.form.buffer_name(place.buffer)
        head = f"for (int e = threadIdx.x; e < {rows * chunks}; e += {self.threads}) {{"
        with source.block(head, "}"):
            source.line(f"const int row = e / {chunks}, chunk = e % {chunks};")
            source.line(f"const long long at = {begin} + row;")
            address = self.address(place, "at", "at", "chunk * 8")
            to = f"{role}_tile + irc_place<{self._pitch(role)}, false>(row, chunk * 16)"
            source.line(
                f"irc_copy_async<16>({to}, &{name}[at < {end} ? {address} : 0], at < {end});"
            )

    def _products(self, source: Source) -> None:
        """Append scores and their gradients, before what follows them point by point."""
        for name, own, walk in zip(("p_of", "ds_of"), self.side.own, self.side.walk, strict=True):
            source.line(f"float {name}[{self.walked // 8}][4] = {{}};")
            # Unrolled whole, the places of all fragments stay in registers that sums of many
            # features need.
            source.line("#pragma unroll 2")
            with source.block(f"for (int k = 0; k < {self._features(own) // 16}; ++k) {{", "}"):
                row = "warp * 16 + lane % 8 + lane / 8 % 2 * 8"
                self._fragment(source, "mine", own, row, "k * 32 + lane / 16 * 16", turned=False)
                source.line("#pragma unroll")
                with source.block(f"for (int j = 0; j < {self.walked // 16}; ++j) {{", "}"):
                    row = "j * 16 + lane % 8 + lane / 16 * 8"
                    byte = "k * 32 + lane / 8 % 2 * 16"
                    self._fragment(source, "other", walk, row, byte, turned=False)
                    self._mma(source, name, "mine", "other")

    def _fragment(
        self, source: Source, name: str, role: str, row: str, byte: str, *, turned: bool
    ) -> None:
        place = f"irc_place<{self._pitch(role)}, false>({row}, {byte})"
        source.line(f"unsigned {name}[4];")
        source.line(
            f"irc_ldmatrix<{'true' if turned else 'false'}>({name}, {role}_tile + {place});"
        )

    def _mma(self, source: Source, sums: str, left: str, right: str) -> None:
        for half in range(2):
            to = f"{sums}[j * 2 + {half}], {left}, {right}[{2 * half}], {right}[{2 * half + 1}]"
            source.line(f"irc_mma<{TYPES[self.dtype]}>({to});")

    def _weights_of(self, source: Source) -> None:
        source.line("#pragma unroll")
        source.line(f"for (int j = 0; j < {self.walked // 8}; ++j)")
        source.line("#pragma unroll")
        with source.block("for (int e = 0; e < 4; ++e) {", "}"):
            at, along = self.side.at, self.side.along
            source.line(f"const long long {at} = begin + warp * 16 + e / 2 * 8 + lane / 4;")
            source.line(f"const long long {along} = w0 + j * 8 + lane % 4 * 2 + e % 2;")
            self._weigh(source, "p_of[j][e]", "ds_of[j][e]")

    def _multiply(self, source: Source, role: str, weight: str, walked: str) -> None:
        """Append ``role += weight * walked``, the weights being the left operand as they lie."""
        kind, name = TYPES[self.dtype], f"{weight}_of"
        source.line("#pragma unroll")
        with source.block(f"for (int k = 0; k < {self.walked // 16}; ++k) {{", "}"):
            pairs = [f"irc_pack<{kind}>({name}[k * 2 + {i // 2}][{i % 2 * 2}], "
                     f"{name}[k * 2 + {i // 2}][{i % 2 * 2 + 1}])" for i in range(4)]  # fmt: skip
            source.line("const unsigned weight[4] = {\n  " + ",\n  ".join(pairs) + "};")
            source.line("#pragma unroll")
            with source.block(f"for (int j = 0; j < {self._features(walked) // 16}; ++j) {{", "}"):
                row = "k * 16 + lane % 8 + lane / 8 % 2 * 8"
                self._fragment(source, "value", walked, row, "j * 32 + lane / 16 * 16", turned=True)
                self._mma(source, role, "weight", "value")

    def _store_tiles(self, source: Source) -> None:
        if self.side.owns_keys:
            source.line("constexpr int r = 0;")
        source.line("#pragma unroll")
        with source.block("for (int h = 0; h < 2; ++h) {", "}"):
            source.line("const long long at = begin + warp * 16 + h * 8 + lane / 4;")
            source.line(f"if (at >= {self.num_owned}) continue;")
            for role, _, walked in self.results:
                source.line("#pragma unroll")
                source.line(f"for (int j = 0; j < {self._features(walked) // 8}; ++j)")
                source.line("#pragma unroll")
                with source.block("for (int e = 0; e < 2; ++e) {", "}"):
                    source.line("const int f = j * 8 + lane % 4 * 2 + e;")
                    self.store_result(source, role, f"{role}[j][h * 2 + e]")
