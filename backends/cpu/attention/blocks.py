"""Attention kernels: how one will be computed, and its loop over blocks of rows.

Streaming (online) softmax over blocks of keys (arXiv:1805.02867, arXiv:2205.14135): a block's
scores, then the row's largest and sum so far, then what was accumulated is scaled and added to.
Many rows have their queries in the lanes (:mod:`irc.backends.cpu.attention.lanes`), few rows their
features (:mod:`irc.backends.cpu.attention.few`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.sizes import is_named, typical
from irc.backends.cpu.loops.units import decode
from irc.backends.cpu.vector.builder import I64, Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY
from irc.dialects.attention import PER_KEY, AttentionForm, Place
from irc.dialects.size import Dim

FEW = 8
"""Rows up to which lanes along the features cost less than lanes of which most are idle."""
LONG, MANY_BLOCKS = 256, 32
"""Rows from which, and blocks with which, one of four vectors is read less often than of two."""
MAX_KEYS = 128
"""Keys of a block: its scores and what they are multiplied by stay in the first cache."""


@dataclass(frozen=True)
class AttentionPlan:
    """Everything that is decided before an attention kernel is written.

    Attributes:
        form: what is computed.
        features: for which machine.
        row: the dim of the space that is divided into blocks of rows: S, or R where S is 1.
        lanes: lanes of a vector.
        block: rows of a block.
        keys: keys of a block.
        parallel: whether a thread pool is worth its start.
    """

    form: AttentionForm
    features: Features
    row: int
    lanes: int
    block: int
    keys: int
    parallel: bool

    @property
    def rows(self) -> int:
        """How many rows there are along the dim that is divided."""
        return self.form.space[self.row]

    @property
    def batch(self) -> tuple[int, ...]:
        """The other parallel dims."""
        return tuple(d for d in range(len(self.form.space) - 1) if d != self.row)

    @property
    def products(self) -> Dim:
        """Multiplications of the whole kernel, whatever is masked."""
        return prod(self.form.space, start=1) * (self.form.depth + self.form.width)

    @property
    def crosses(self) -> bool:
        """True where the diagonal crosses several blocks of rows, or may."""
        moves = self.form.causal and self.row == len(self.form.space) - 3
        return moves and (is_named(self.rows) or self.rows > self.block)

    @property
    def clips(self) -> bool:
        """True where a last block has fewer rows, not some of the block before it again.

        On the diagonal a row's sum depends, in its last bit, on the block that it is in: of two
        threads with a row each, the later one's would count.
        """
        return self.crosses and (is_named(self.rows) or self.rows % self.block != 0)

    @property
    def varies(self) -> bool:
        """True where only the run knows how many rows a block has."""
        return is_named(self.rows) or self.clips

    @property
    def is_one_block(self) -> bool:
        """True where every row meets all its keys, at least one, at once."""
        forms = self.form.places
        if is_named(self.form.chunk) or self.crosses:
            return False
        return self.form.chunk <= self.keys and "start" not in forms and "y0" not in forms

    @property
    def scores_scaled(self) -> bool:
        """True where scores are stored scaled (an additive mask, or a scale that turns order)."""
        mask = self.form.places.get("mask")
        return self.form.scale <= 0 or (mask is not None and mask.dtype != "i1")


def plan_attention(form: AttentionForm, features: Features, workers: int) -> AttentionPlan:
    """Decide how an attention kernel runs."""
    row = len(form.space) - (4 if form.rows == 1 and form.repeats > 1 else 3)
    rows, lanes = typical(form.space[row]), features.float_lanes
    # On the diagonal half of a block is for nothing, so blocks of causal attention stay small.
    many = prod(map(typical, form.space[:-2])) >= MANY_BLOCKS * 4 * lanes
    wide = rows >= LONG and many and not form.causal
    block = min((4 if wide else 2) * lanes, -(-rows // lanes) * lanes)
    keys = MAX_KEYS
    if not is_named(form.chunk):
        keys = -(-form.chunk // -(-form.chunk // MAX_KEYS))
        keys += keys % 2 if keys < form.chunk else 0
    flops = 2.0 * prod(map(typical, form.space)) * (form.depth + form.width)
    return AttentionPlan(form, features, row, lanes, block, keys, workers > 1 and flops > 200_000)


@dataclass(frozen=True)
class Unit:
    """One block of rows of one head, and the keys of its part.

    Attributes:
        indices: of the batch dims.
        first: the first row, along ``plan.row``.
        part: the first key of its part.
        start, stop: the keys that any of its rows may see.
        shift: row ``first + i`` sees key t where ``i + shift >= t``; None where all see all.
    """

    indices: Mapping[int, Operand]
    first: Operand
    part: Operand
    start: Operand
    stop: Operand
    shift: Operand | None


class AttentionWriter:
    """What both forms share: addresses, the share of a thread, the loop over units."""

    def __init__(self, b: Builder, plan: AttentionPlan, buffers: dict[int, Operand]) -> None:
        self.b, self.plan, self.form, self.buffers = b, plan, plan.form, buffers
        self.scratch = Operand(Type("ptr"), "%scratch")
        self.size = 0
        self.rounds = False
        """Whether results are rounded in pairs, which takes denormals for zeros."""
        # The last block of rows is moved back so that all are whole, unless it is clipped.
        self.num_blocks = b.parts(plan.rows, plan.block)
        if is_named(plan.rows):
            self.valid = b.intrinsic("smin", b.i64(plan.rows), b.i64(plan.block))
        else:
            self.valid = b.i64(min(plan.rows, plan.block))

    def reserve(self, elements: int) -> int:
        """Take scratch memory for float32 elements; returns its first byte."""
        at = self.size
        self.size += -(-elements * 4 // 64) * 64
        return at

    def existing(self, row: int) -> Operand:
        """Return a row of a block; where their number varies, the last one for those beyond."""
        b = self.b
        if not self.plan.varies:
            return b.i64(row)
        return b.intrinsic("smin", b.i64(row), b.add(self.valid, b.i64(-1)))

    def call(self, name: str, *operands: Operand) -> None:
        """Call a helper function."""
        arguments = ", ".join(map(str, operands))
        self.b.do(f"call void @irc.attention.{name}({arguments}{self.b.size_argument})")

    def scratch_at(self, byte: int) -> Operand:
        """Return an address in scratch memory."""
        return self.b.address(self.scratch, "i8", self.b.i64(byte))

    def place(self, role: str) -> Place:
        """Return where a role lies."""
        return self.form.places[role]

    def address(
        self, role: str, unit: Unit, row: Operand | None = None, key: Operand | None = None
    ) -> Operand:
        """Return the address of the first feature of a row and key of a role."""
        b, place, part = self.b, self.form.places[role], len(self.form.space) - 2
        at = b.i64(place.offset)
        for dim, index in unit.indices.items():
            if dim != part or role not in PER_KEY:
                at = b.add(at, b.scale(index, place.strides[dim]))
        if row is not None:
            at = b.add(at, b.scale(row, place.strides[self.plan.row]))
        if key is not None:
            at = b.add(at, b.scale(key, place.strides[-1]))
        return b.address(self.buffers[place.buffer], MEMORY[place.dtype], at)

    def units(
        self, body: Callable[[Unit], None], head: Callable[[Unit], None] | None = None
    ) -> None:
        """Write the loop over the units of this thread; ``head`` is before the first of a head."""
        b, plan = self.b, self.plan
        thread, threads = Operand(I64, "%thread"), Operand(I64, "%threads")
        offset = self.offset() if self.form.causal else b.i64(0)

        def share(of: Operand) -> Operand:
            return b.binary("udiv", b.binary("mul", of, units), threads)

        def one(index: Operand, _: list[Operand]) -> list[Operand]:
            extents = [self.form.space[d] for d in plan.batch]
            *batch, block = decode(b, index, [*extents, self.num_blocks])
            unit = self._unit(dict(zip(plan.batch, batch, strict=True)), block, offset)
            if (begin := head) is not None:
                first = b.compare("icmp eq", block, b.i64(0))
                first = b.binary("or", first, b.compare("icmp eq", index, low))
                b.when(first, lambda: begin(unit))
            body(unit)
            return []

        units = b.product([*(self.form.space[d] for d in plan.batch), self.num_blocks])
        low = share(thread)
        b.loop(low, share(b.add(thread, b.i64(1))), 1, [], one)

    def offset(self) -> Operand:
        """Return how far the first row is from the first key."""
        b = self.b
        if "start" not in self.form.places:
            return b.i64(0)
        place = self.place("start")
        kind = MEMORY[place.dtype]
        at = b.address(self.buffers[place.buffer], kind, b.i64(place.offset))
        value = b.load(Type(kind), at)
        return value if kind == "i64" else b.convert("sext", value, "i64")

    def _unit(self, batch: dict[int, Operand], block: Operand, offset: Operand) -> Unit:
        b, plan, form = self.b, self.plan, self.form
        if form.causal and self.num_blocks.literal != 1:
            block = self._folded(block)
        first = b.scale(block, plan.block)
        if plan.clips:
            left = b.binary("sub nsw", b.i64(plan.rows), first)
            self.valid = b.intrinsic("smin", left, b.i64(plan.block))
        elif is_named(plan.rows):
            last = b.intrinsic("smax", b.i64(plan.rows + -plan.block), b.i64(0))
            first = b.intrinsic("smin", first, last)
        elif plan.rows > plan.block and plan.rows % plan.block:
            first = b.intrinsic("smin", first, b.i64(plan.rows - plan.block))
        start, stop = b.i64(0), b.i64(form.keys)
        if form.parts > 1:
            start = b.scale(batch[len(form.space) - 2], form.chunk)
            stop = b.intrinsic("smin", b.add(start, b.i64(form.chunk)), stop)
        if not form.causal:
            return Unit(batch, first, start, start, stop, None)
        moves = plan.row == len(form.space) - 3
        shift = b.add(first, offset) if moves else offset
        last = b.add(shift, self.valid if moves else b.i64(1))
        stop = b.intrinsic("smax", b.intrinsic("smin", stop, last), start)
        return Unit(batch, first, start, start, stop, shift)

    def _folded(self, block: Operand) -> Operand:
        """Take blocks from both ends in turn: later ones see more keys, and shares are equal."""
        b = self.b
        half = b.binary("lshr", block, b.i64(1))
        other = b.binary("sub", b.add(self.num_blocks, b.i64(-1)), half)
        odd = b.compare("icmp ne", b.binary("and", block, b.i64(1)), b.i64(0))
        return b.select(odd, other, half)
