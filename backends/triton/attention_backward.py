"""Template ``attention_backward``: gradients of attention, as two kernels that add up in registers.

Gradients of keys and values are sums over rows, gradients of queries sums over keys, so a program
keeps a tile of keys and walks over the rows of all heads that share it, or keeps a tile of rows
and walks over keys: nothing is added up in memory, and the result is the same each time
(FlashAttention-2, arXiv:2307.08691, section 3.1; two passes as in Triton's tutorial). The powers
are computed again from the log-sums that forward kept. Scores are in units of log 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from irc.backends.triton.functions import TYPES
from irc.backends.triton.streams import LOG2E, Stream, load, mask_added
from irc.dialects.attention import AttentionForm
from irc.dialects.attention_backward import BEFORE, OUTPUTS
from irc.errors import IrcError
from irc.kernels.arithmetic import power_of_two
from irc.kernels.form import Form
from irc.kernels.gpu.attention import LEAST_TILE, backward_candidates
from irc.kernels.source import Source


class AttentionBackward(Stream):
    """The tile of a kernel that gives dk and dv, or dq, and the code for it.

    Args:
        form: name, buffers and options of the kernel.
        attention: what it computes.

    Raises:
        IrcError: ``op-unsupported`` for a kernel that gives gradients of both sides.
    """

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        super().__init__(form, attention)
        self.outputs = [role for role in OUTPUTS if role in attention.places]
        self.by_keys = "dq" not in self.outputs
        if "dq" in self.outputs and (len(self.outputs) > 1 or attention.parts > 1):
            raise _refused(form)
        features = max(attention.depth, attention.width)
        tile = backward_candidates(attention.rows, attention.keys, features, self.dtype)[0]
        options = form.options
        self.block_m = self.extent(options.get("block_m"), tile.rows, attention.rows)
        self.block_n = self.extent(options.get("block_n"), tile.keys, attention.keys)
        self.num_warps = options.get("num_warps") or tile.warps
        self.num_stages = options.get("num_stages") or tile.stages
        kept = (attention.keys, self.block_n) if self.by_keys else (attention.rows, self.block_m)
        self.tiles = -(-kept[0] // kept[1])
        self.heads = (*attention.lead, attention.groups)
        if not self.by_keys:
            self.heads = (*self.heads, attention.repeats)
        self.grid = (prod(self.heads) * self.tiles,)

    @property
    def mapping(self) -> str:
        """The mapping as it is launched, over heads and the tiles of keys or of rows."""
        ones = ", ".join("1" for _ in self.heads)
        block = self.block_n if self.by_keys else self.block_m
        heads = ", ".join(map(str, self.heads))
        return f"spatial({heads}, {self.tiles}) * repeat({ones}, {block})"

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        source.line(f"pid = tl.program_id(0){self.wide}")
        source.line(f"tile = pid % {self.tiles}" if self.tiles > 1 else "tile = 0")
        self.place_heads(source, self.heads, self.tiles)
        depth, width = self.both_features(source)
        if self.of.causal:
            source.line(self.start())
        if self.by_keys:
            self._emit_keys(source, depth, width)
        else:
            self._emit_rows(source, depth, width)

    # A tile of keys, all rows: scores are transposed, keys by rows.

    def _emit_keys(self, source: Source, depth: str, width: str) -> None:
        block_m, block_n, rows = self.block_m, self.block_n, self.of.rows
        source.line(f"t = tile * {block_n} + tl.arange(0, {block_n})")
        self._tail(source, "t", self.of.keys, block_n, ":, None")
        self._load_keys(source, "k", depth, self.of.depth)
        self._load_keys(source, "v", width, self.of.width)
        for role, size in (("dk", self.of.depth), ("dv", self.of.width)):
            if role in self.outputs:
                source.line(f"{role} = tl.zeros([{block_n}, {_padded(size)}], tl.float32)")
        first = "0"
        if self.of.causal:
            # Rows before `first` see none of these keys, from `all` on they see all of them.
            source.line(f"first = max(tile * {block_n} - start, 0) // {block_m} * {block_m}")
            source.line(f"all = max(tile * {block_n} + {block_n - 1} - start, 0)")
            source.line(f"all = max(first, (all + {block_m - 1}) // {block_m} * {block_m})")
            first = "all"
        with source.block(f"for r in range(0, {self.of.repeats}):"):
            if self.of.causal:
                with source.block(f"for s0 in range(first, min(all, {rows}), {block_m}):"):
                    self._add_rows(source, depth, width, is_diagonal=True)
            with source.block(f"for s0 in range({first}, {rows}, {block_m}):"):
                self._add_rows(source, depth, width, is_diagonal=False)
        for role, name, size in (("dk", depth, self.of.depth), ("dv", width, self.of.width)):
            if role in self.outputs:
                text = f"{role} * {self.of.scale!r}" if role == "dk" else role
                masks = [*self._tailed("t"), *self.feature_mask(name, size, "None, :")]
                self._store(source, role, text, masks, "t[:, None]", f"{name}[None, :]")

    def _load_keys(self, source: Source, role: str, name: str, size: int) -> None:
        masks = [*self._tailed("t"), *self.feature_mask(name, size, "None, :")]
        source.line(f"{role} = {load(self.address(role, 't[:, None]', f'{name}[None, :]'), masks)}")

    def _add_rows(self, source: Source, depth: str, width: str, *, is_diagonal: bool) -> None:
        """Add what a tile of rows gives to dk and dv; rows beyond the last have no weight."""
        source.line(f"s = s0 + tl.arange(0, {self.block_m}){self.wide}")
        down = self._tail(source, "s", self.of.rows, self.block_m, ":, None")
        across = self._tail(source, "s", self.of.rows, self.block_m, "None, :", "across")
        masks = [*down, *self.feature_mask(depth, self.of.depth, "None, :")]
        address = self.address("q", feature=f"{depth}[None, :]", row="s[:, None]")
        source.line(f"q = {load(address, masks)}")
        self._weights(source, self.dot("k", "tl.trans(q)"), across, "None, :", is_diagonal)
        masks = [*down, *self.feature_mask(width, self.of.width, "None, :")]
        address = self.address("g", feature=f"{width}[None, :]", row="s[:, None]")
        source.line(f"dy = {load(address, masks)}")
        if "dv" in self.outputs:
            source.line(f"dv = {self.dot(self._narrow('w'), 'dy', 'dv')}")
        if "dk" in self.outputs:
            source.line(f"dw = {self.dot('v', 'tl.trans(dy)')}")
            self._load_row(source, "delta", across, "None, :", "0")
            source.line("ds = w * (dw - delta)")
            source.line(f"dk = {self.dot(self._narrow('ds'), 'q', 'dk')}")

    # A tile of rows, all keys.

    def _emit_rows(self, source: Source, depth: str, width: str) -> None:
        block_m, block_n, keys = self.block_m, self.block_n, self.of.keys
        source.line(f"s = tile * {block_m} + tl.arange(0, {block_m})")
        down = self._tail(source, "s", self.of.rows, block_m, ":, None")
        for name, role, feature, size in (
            ("q", "q", depth, self.of.depth), ("dy", "g", width, self.of.width),
        ):  # fmt: skip
            address = self.address(role, feature=f"{feature}[None, :]", row="s[:, None]")
            masks = [*down, *self.feature_mask(feature, size, "None, :")]
            source.line(f"{name} = {load(address, masks)}")
        self._load_row(source, "sums", down, ":, None", 'float("inf")')
        self._load_row(source, "delta", down, ":, None", "0")
        source.line(f"dq = tl.zeros([{block_m}, {_padded(self.of.depth)}], tl.float32)")
        end, whole = str(keys), str(keys // block_n * block_n)
        if self.of.causal:
            last = f"min({self.of.rows}, tile * {block_m} + {block_m}) - 1"
            source.line(f"end = max(0, min({keys}, {last} + start + 1))")
            source.line(f"whole = max(0, min({keys}, tile * {block_m} + start + 1))")
            source.line(f"whole = whole // {block_n} * {block_n}")
            end, whole = "end", "whole"
        if whole != "0":
            with source.block(f"for t0 in range(0, {whole}, {block_n}):"):
                self._add_keys(source, depth, width, is_tail=False)
        if whole != end:
            with source.block(f"for t0 in range({whole}, {end}, {block_n}):"):
                self._add_keys(source, depth, width, is_tail=True)
        masks = [*down, *self.feature_mask(depth, self.of.depth, "None, :")]
        text = f"dq * {self.of.scale!r}"
        self._store(source, "dq", text, masks, "", f"{depth}[None, :]", row="s[:, None]")

    def _add_keys(self, source: Source, depth: str, width: str, *, is_tail: bool) -> None:
        """Add what a tile of keys gives to dq."""
        source.line(f"t = t0 + tl.arange(0, {self.block_n}){self.wide}")
        across = [f"(t[None, :] < {self.of.keys})"] if is_tail else []
        for role, name, size in (("k", depth, self.of.depth), ("v", width, self.of.width)):
            masks = [*across, *self.feature_mask(name, size, ":, None")]
            address = self.address(role, "t[None, :]", f"{name}[:, None]")
            source.line(f"{role} = {load(address, masks)}")
        self._weights(source, self.dot("q", "k"), across, ":, None", is_tail and self.of.causal)
        source.line(f"ds = w * ({self.dot('dy', 'v')} - delta)")
        source.line(f"dq = {self.dot(self._narrow('ds'), 'tl.trans(k)', 'dq')}")

    # What both do.

    def _weights(
        self, source: Source, scores: str, tail: Sequence[str], rows: str, is_diagonal: bool
    ) -> None:
        """Append ``w``: what each key weighs in each row, zero where it is hidden."""
        keys = ":, None" if rows == "None, :" else "None, :"
        source.line(f"x = {scores} * {self.of.scale * LOG2E!r}")
        hidden = [*tail] if not self.by_keys else []
        if is_diagonal:
            hidden.append(f"(t[{keys}] <= s[{rows}] + start)")
        if (place := self.of.places.get("mask")) is not None:
            bounds: list[str] = [*tail]
            if not self.by_keys and self.has_rows("mask"):
                bounds += self._tailed("s")
            if self.by_keys:
                bounds = [*(tail if self.has_rows("mask") else []), *self._tailed("t")]
            address = self.address("mask", f"t[{keys}]", row=f"s[{rows}]")
            # The same number for all rows and keys is no block, and Triton masks no number.
            text = load(address, bounds if "[" in address else [])
            if place.dtype == "i1":
                hidden.append(f"({text} != 0)")
            else:
                mask_added(source, text)
        if hidden:
            source.line(f'x = tl.where({" & ".join(hidden)}, x, float("-inf"))')
        if self.by_keys:
            self._load_row(source, "sums", tail, rows, 'float("inf")')
        # What a mask adds may round a score to more than its log-sum.
        source.line("w = tl.exp2(tl.minimum(x - sums, 0.0))")

    def _load_row(
        self, source: Source, role: str, masks: Sequence[str], rows: str, other: str
    ) -> None:
        """Append a load of one number for each row; a row that sees nothing has no weight."""
        source.line(f"{role} = {load(self.address(role, row=f's[{rows}]'), masks, other)}")
        if role == "sums":
            source.line(f'sums = tl.where(sums == float("-inf"), float("inf"), sums * {LOG2E!r})')

    def _store(
        self,
        source: Source,
        role: str,
        text: str,
        masks: Sequence[str],
        key: str,
        feature: str,
        row: str = "0",
    ) -> None:
        before = BEFORE[role]
        if before in self.of.places:
            earlier = load(self.address(before, key, feature, row), masks)
            text = f"{text} + {earlier}.to(tl.float32)"
        dtype = TYPES[self.of.places[role].dtype]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        address = self.address(role, key, feature, row)
        source.line(f"tl.store({address}, ({text}).to({dtype}){mask})")

    def _narrow(self, name: str) -> str:
        return name if self.dtype == "f32" else f"{name}.to({TYPES[self.dtype]})"

    def _tail(
        self, source: Source, name: str, size: int, block: int, index: str, suffix: str = ""
    ) -> list[str]:
        """Append the mask of a tile that ends beyond the last row or key; none where none does."""
        if size % block == 0:
            return []
        source.line(f"m{name}{suffix} = {name}[{index}] < {size}")
        return [f"m{name}{suffix}"]

    def _tailed(self, name: str) -> list[str]:
        size, block = (self.of.keys, self.block_n) if name == "t" else (self.of.rows, self.block_m)
        return [f"m{name}"] if size % block else []


def _padded(size: int) -> int:
    return power_of_two(max(size, LEAST_TILE))


def _refused(form: Form) -> IrcError:
    return IrcError(
        "op-unsupported",
        "the Triton backend has no attention backward of rows and keys in one kernel",
        where=f"kernel @{form.name}, {form.loc}",
        because="dq is added up over keys, dk and dv over rows: each has a kernel here",
        help="map the program for a GPU target: irc opt -p map-tasks{target=sm_90}",
    )
