"""Template ``attention``: a program streams over the keys for a tile of query rows.

The softmax is carried along as in FlashAttention (arXiv:2205.14135): the largest score so far, the
sum of powers, and the result, scaled again where the largest grows. Scores are kept in units of
log 2, so that a power is one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from irc.backends.triton.functions import TYPES
from irc.backends.triton.streams import LOG2E, Stream, load, mask_added
from irc.dialects.attention import AttentionForm
from irc.kernels.arithmetic import power_of_two
from irc.kernels.form import Form
from irc.kernels.gpu.attention import LEAST_TILE, candidates
from irc.kernels.source import Source


class Attention(Stream):
    """The tile of an attention kernel and the code for it.

    Args:
        form: name, buffers and options of the kernel.
        attention: what it computes.
    """

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        super().__init__(form, attention)
        features = max(attention.depth, attention.width)
        shared = attention.rows * attention.repeats
        # Few rows: those of all heads that share a key are one tile, and read it once.
        self.is_packed = attention.repeats > 1 and attention.rows <= LEAST_TILE
        self.rows = shared if self.is_packed else attention.rows
        tile = candidates(self.rows, attention.chunk, features, self.dtype)[0]
        options = form.options
        self.block_m = self.extent(options.get("block_m"), tile.rows, self.rows)
        self.block_n = self.extent(options.get("block_n"), tile.keys, attention.chunk)
        self.num_warps = options.get("num_warps") or tile.warps
        self.num_stages = options.get("num_stages") or tile.stages
        self.tiles = -(-self.rows // self.block_m)
        self.heads = (*attention.lead, attention.groups)
        if not self.is_packed:
            self.heads = (*self.heads, attention.repeats)
        self.grid = (prod(self.heads) * attention.parts * self.tiles,)

    @property
    def mapping(self) -> str:
        """The mapping as it is launched."""
        lead = ", ".join(map(str, (*self.of.lead, self.of.groups)))
        ones = ", ".join("1" for _ in (*self.of.lead, self.of.groups))
        repeats, tiles = (1, self.tiles) if self.is_packed else (self.of.repeats, self.tiles)
        inner = self.of.repeats if self.is_packed else 1
        return (
            f"spatial({lead}, {repeats}, {tiles}, {self.of.parts}) * "
            f"repeat({ones}, {inner}, {self.block_m}, 1)"
        )

    def emit(self, source: Source) -> None:
        """Append the body of the kernel function."""
        self._place(source)
        self._bounds(source)
        depth, width = self.both_features(source)
        self._load_queries(source, depth)
        source.line(f'top = tl.full([{self.block_m}, 1], float("-inf"), tl.float32)')
        source.line(f"total = tl.zeros([{self.block_m}, 1], tl.float32)")
        padded = power_of_two(max(self.of.width, LEAST_TILE))
        source.line(f"result = tl.zeros([{self.block_m}, {padded}], tl.float32)")
        if self.whole != self.begin:
            with source.block(f"for t0 in range({self.begin}, {self.whole}, {self.block_n}):"):
                self._step(source, depth, width, is_tail=False)
        if self.whole != self.end:
            with source.block(f"for t0 in range({self.whole}, {self.end}, {self.block_n}):"):
                self._step(source, depth, width, is_tail=True)
        self._finish(source, width)

    # Where a program stands.

    def _place(self, source: Source) -> None:
        source.line(f"pid = tl.program_id(0){self.wide}")
        tile = f"pid % {self.tiles}" if self.tiles > 1 else "0"
        # Rows at the end see the most keys: they start first.
        source.line(f"tile = {self.tiles - 1} - {tile}" if self.of.causal else f"tile = {tile}")
        inner = self.tiles
        if self.of.parts > 1:
            source.line(f"p = pid // {inner} % {self.of.parts}")
            inner *= self.of.parts
        self.place_heads(source, self.heads, inner)
        source.line(f"i = (tile * {self.block_m} + tl.arange(0, {self.block_m}))[:, None]")
        if self.is_packed:
            source.line(f"r = i // {self.of.rows}")
            source.line(f"s = i % {self.of.rows}")
        else:
            source.line("s = i")
        source.line(f"mi = i < {self.rows}")

    def _bounds(self, source: Source) -> None:
        """State which keys are walked: ``begin``, ``whole`` up to which none is masked, ``end``."""
        form, step = self.of, self.block_n
        if form.parts == 1 and not form.causal:
            self.begin, self.end = "0", str(form.keys)
            self.whole = str(form.keys // step * step)
            return
        self.begin, self.whole, self.end = "begin", "whole", "end"
        source.line(f"begin = p * {form.chunk}" if form.parts > 1 else "begin = 0")
        source.line(f"end = {form.keys}")
        if form.parts > 1:
            source.line(f"end = min(end, begin + {form.chunk})")
        sees = "end"
        if form.causal:
            source.line(self.start())
            first, last = "0", str(form.rows - 1)
            if not self.is_packed:
                first = f"tile * {self.block_m}"
                last = f"min({form.rows}, tile * {self.block_m} + {self.block_m}) - 1"
            source.line(f"limit = min(end, {last} + start + 1)")
            source.line(f"sees = min(end, {first} + start + 1)")
            source.line("end = max(begin, limit)")
            sees = "sees"
        source.line(f"whole = begin + max({sees} - begin, 0) // {step} * {step}")

    def _load_queries(self, source: Source, depth: str) -> None:
        masks = ["mi", *self.feature_mask(depth, self.of.depth, "None, :")]
        address = self.address("q", feature=f"{depth}[None, :]")
        source.line(f"q = {load(address, masks)}")

    # The walk over keys.

    def _step(self, source: Source, depth: str, width: str, *, is_tail: bool) -> None:
        form = self.of
        source.line(f"t = t0 + tl.arange(0, {self.block_n}){self.wide}")
        tail = ["t[None, :] < end"] if is_tail and self.end == "end" else []
        if is_tail and self.end != "end":
            tail = [f"t[None, :] < {form.keys}"]
        down = [f"({text.replace('[None, :]', '[:, None]')})" for text in tail]
        across = [f"({text})" for text in tail]
        masks = [*across, *self.feature_mask(depth, form.depth, ":, None")]
        address = self.address("k", "t[None, :]", f"{depth}[:, None]")
        source.line(f"k = {load(address, masks)}")
        source.line(f"x = {self.dot('q', 'k')} * {form.scale * LOG2E!r}")
        self._masked(source, across)
        source.line("higher = tl.maximum(top, tl.max(x, 1, keep_dims=True))")
        source.line("# A row that has seen nothing yet has no largest score.")
        source.line('base = tl.where(higher == float("-inf"), 0.0, higher)')
        source.line("w = tl.exp2(x - base)")
        source.line("again = tl.exp2(top - base)")
        source.line("total = total * again + tl.sum(w, 1, keep_dims=True)")
        masks = [*down, *self.feature_mask(width, form.width, "None, :")]
        address = self.address("v", "t[:, None]", f"{width}[None, :]")
        source.line(f"v = {load(address, masks)}")
        weight = "w" if self.dtype == "f32" else f"w.to({TYPES[self.dtype]})"
        source.line(f"result = {self.dot(weight, 'v', 'result * again')}")
        source.line("top = higher")

    def _masked(self, source: Source, tail: Sequence[str]) -> None:
        """Append what hides keys from rows: the tail, the mask, causality."""
        hidden = [*tail]
        if tail and self.of.causal:
            hidden.append("(t[None, :] <= s + start)")
        if (place := self.of.places.get("mask")) is not None:
            loaded = (["mi"] if self.has_rows("mask") else []) + (
                [*tail] if place.strides[-1] else []
            )
            text = load(self.address("mask", "t[None, :]"), loaded)
            if place.dtype == "i1":
                hidden.append(f"({text} != 0)")
            else:
                mask_added(source, text)
        if hidden:
            source.line(f'x = tl.where({" & ".join(hidden)}, x, float("-inf"))')

    # The end.

    def _finish(self, source: Source, width: str) -> None:
        places = self.of.places
        feature = f"{width}[None, :]"
        masks = ["mi", *self.feature_mask(width, self.of.width, "None, :")]
        source.line("result = tl.div_rn(result, tl.where(total == 0, 1.0, total))")
        source.line("sums = top + tl.log2(total)")
        if "y0" in places:
            earlier = load(self.address("y0", feature=feature), masks)
            source.line(f"earlier = {earlier}.to(tl.float32)")
            source.line(f"earlier_sums = {load(self.address('sums0'), ['mi'])} * {LOG2E!r}")
            source.line("higher = tl.maximum(earlier_sums, sums)")
            source.line('base = tl.where(higher == float("-inf"), 0.0, higher)')
            source.line("old = tl.exp2(earlier_sums - base)")
            source.line("new = tl.exp2(sums - base)")
            source.line("total = old + new")
            source.line("result = old * earlier + new * result")
            source.line("result = tl.div_rn(result, tl.where(total == 0, 1.0, total))")
            source.line("sums = base + tl.log2(total)")
        dtype = TYPES[places["y"].dtype]
        address = self.address("y", feature=feature)
        source.line(f"tl.store({address}, result.to({dtype}), mask={' & '.join(masks)})")
        if "sums" in places:
            source.line(f"tl.store({self.address('sums')}, sums * {math.log(2)!r}, mask=mi)")
