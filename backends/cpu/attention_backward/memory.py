"""What a gradient kernel reads, keeps and gives: addresses, scratch memory, and what moves rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from irc.backends.cpu.attention.blocks import AttentionWriter
from irc.backends.cpu.attention_backward.plan import GradientPlan, Groups
from irc.backends.cpu.attention_backward.rows import (
    define_copy,
    define_fill,
    define_pairs,
    define_store,
)
from irc.backends.cpu.matmul.panels import define_pack
from irc.backends.cpu.vector.builder import Builder, Operand, Type
from irc.backends.cpu.vector.storage import MEMORY
from irc.dialects.attention import PER_KEY
from irc.dialects.attention_backward import BEFORE, OUTPUTS

SLACK = 2
"""Rows behind a block of rows: the second of an odd last pair."""


@dataclass(frozen=True)
class Rows:
    """A block of rows of a query head, against a block of keys.

    Attributes:
        indices: of the dims of the space before rows, and of the part.
        row, rows: the first, and how many.
        key, count: the first, and how many.
        seen: how many of those some row sees.
        offset: row s sees key t where ``s + offset >= t``; None where all see all.
    """

    indices: Mapping[int, Operand]
    row: Operand
    rows: Operand
    key: Operand
    count: Operand
    seen: Operand
    offset: Operand | None


class GradientMemory(AttentionWriter):
    """Scratch memory and addresses of a gradient kernel, and calls of what copies rows."""

    def __init__(self, b: Builder, plan: GradientPlan, buffers: dict[int, Operand]) -> None:
        super().__init__(b, plan.blocks, buffers)
        self.gradients, form, keys = plan, plan.blocks.form, plan.blocks.keys
        self.kind = Type("float", plan.blocks.lanes)
        self.outputs = tuple(role for role in OUTPUTS if role in form.places)
        rows, depth, width = plan.blocks.block + SLACK, plan.depth.padded, plan.width.padded
        pairs = rows * keys // 2 * plan.pairs
        sizes = {
            "panel_k": form.depth * keys, "panel_v": form.width * keys,
            "scores": rows * keys, "slopes": rows * keys,
            "power_pairs": pairs, "slope_pairs": pairs, "slope_lines": pairs,
            "dk": keys * depth, "dv": keys * width,
            "dq": 0 if plan.inside else form.repeats * form.rows * depth,
            "q": rows * depth * self.is_moved("q"), "g": rows * width * self.is_moved("g"),
            "k": keys * depth * self.is_moved("k"),
        }  # fmt: skip
        self.places = {name: self.reserve(size) for name, size in sizes.items()}
        self.symbols: dict[tuple[str, str], str] = {}

    def is_moved(self, role: str) -> bool:
        """True where the products over rows or keys read a copy."""
        return self.gradients.pairs or role in self.gradients.copied

    def at(self, name: str) -> Operand:
        """Return the address of what is kept in scratch memory."""
        return self.scratch_at(self.places[name])

    def halves(self) -> tuple[Operand, Operand, Operand]:
        """Return where rounded powers and slopes go: in pairs of rows, and slopes by rows."""
        return self.at("power_pairs"), self.at("slope_pairs"), self.at("slope_lines")

    def groups(self, role: str) -> Groups:
        """Return the features of a role."""
        return self.gradients.width if role in ("g", "v", "dv") else self.gradients.depth

    def stride(self, role: str) -> int:
        """Elements from one row, or key, of a role to the next in memory."""
        return self.place(role).strides[-1 if role in PER_KEY else self.plan.row]

    def pitch(self, role: str) -> int:
        """Elements from one row to the next, where scores are computed from."""
        is_copied = role in self.gradients.copied
        return self.groups(role).padded if is_copied else self.stride(role)

    def first(self, role: str, indices: Mapping[int, Operand], at: Operand) -> Operand:
        """Return the address of the first feature of a row, or of a key."""
        b, place, part = self.b, self.place(role), len(self.form.space) - 2
        offset = b.i64(place.offset)
        for dim, index in indices.items():
            if dim != part or role not in PER_KEY:
                offset = b.add(offset, b.scale(index, place.strides[dim]))
        offset = b.add(offset, b.scale(at, self.stride(role)))
        return b.address(self.buffers[place.buffer], MEMORY[place.dtype], offset)

    def mask_address(self, at: Rows, row: Operand) -> Operand:
        """Return the address of the mask of a row and the first key of a block."""
        b, place = self.b, self.place("mask")
        start = self.first("mask", at.indices, at.key)
        index = b.scale(row, place.strides[self.plan.row])
        return b.address(start, MEMORY[place.dtype], index)

    # What moves rows.

    def define_moves(self) -> None:
        """Define what packs, copies, begins and stores rows: once for roles that lie alike."""
        plan, lanes = self.gradients, self.gradients.blocks.lanes
        for role in ("k", "v"):
            self._define_pack(role)
        for role in ("q", "g", "k"):
            if plan.pairs:
                groups, stride = self.groups(role), self.stride(role)
                symbol = self._named("rows", role, f"{groups.count}_{stride}")
                if symbol not in self.b.functions:
                    define_pairs(self.b, symbol, groups, stride)
            elif role in plan.copied:
                self._define("rows", role, role)
        for role in self.outputs:
            if BEFORE[role] in self.form.places:
                self._define("begin", role, BEFORE[role])
            if role != "dq" or not plan.inside:
                self._define("store", role, role)
        define_fill(self.b, "irc.gradients.fill", lanes)

    def _named(self, verb: str, role: str, shape: str) -> str:
        """Return the function that moves a role, which others of its shape share."""
        place = self.place(role)
        own = f"irc.gradients.{verb}_{place.dtype}_{place.feature}_{shape}"
        self.symbols[verb, role] = own
        return own

    def _define_pack(self, role: str) -> None:
        plan, place, kind = self.gradients, self.place(role), self.kind
        key = place.strides[-1]
        symbol = self._named("pack", role, str(key))
        strides = (place.feature, key)
        if plan.pairs:
            place, kind = replace(place, dtype="i32"), Type("i32", plan.blocks.lanes)
            strides = (1, key // 2)
        if symbol not in self.b.functions:
            define_pack(self.b, symbol, place, strides, kind, plan.blocks.keys, plan.blocks.lanes)

    def _define(self, verb: str, role: str, place: str) -> None:
        groups, stride = self.groups(role), self.stride(place)
        symbol = self._named(verb, place, f"{groups.count}_{stride}")
        self.symbols[verb, role] = symbol
        if symbol not in self.b.functions:
            define = define_store if verb == "store" else define_copy
            define(self.b, symbol, self.place(place), groups, stride, self.gradients.blocks.lanes)

    def move(self, verb: str, role: str, first: Operand, second: Operand, *count: Operand) -> None:
        """Write the call of one of those."""
        arguments = ", ".join(map(str, (first, second, *count)))
        self.b.do(f"call void @{self.symbols[verb, role]}({arguments})")

    def begin(
        self, role: str, indices: Mapping[int, Operand], at: Operand, sums: Operand, rows: Operand
    ) -> None:
        """Begin sums with zeros, or with what they are added to."""
        before = BEFORE[role]
        if before in self.form.places:
            self.move("begin", role, self.first(before, indices, at), sums, rows)
            return
        count = self.b.scale(rows, self.groups(role).padded)
        self.b.do(f"call void @irc.gradients.fill({sums}, {count})")
