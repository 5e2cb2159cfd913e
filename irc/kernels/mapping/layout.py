"""Layouts: where the elements of a tile lie. The twin of task mappings (Hidet, arXiv:2210.09603).

``row_major(d...)`` and ``column_major(d...)`` number the elements; ``local(d...)`` gives each to an
owner of its own, who needs room for one. They compose as mappings do, with sizes for workers:

    (l1 * l2)(i) = l1(i // d2) * size2 + l2(i % d2)

So the registers that hold a thread's tasks are laid out by the mapping itself, spatial read as
local and repeat as row-major (:func:`registers`): indexed by coordinates of the *whole* tile, it
gives the thread's own register. ``swizzle`` permutes a dim by another one, ``xor`` the bits of the
address, so that rows start at different banks of shared memory.

>>> parse_layout("row_major(4, 2).swizzle(1) * row_major(1, 8)")((1, 0))
24
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product as cartesian
from math import prod
from typing import Any, Literal, TypeAlias

from irc.dialects.mapping import Atom, TaskMapping
from irc.dialects.mapping_text import parse

Kind: TypeAlias = Literal["local", "row_major"]


@dataclass(frozen=True)
class Swizzle:
    """``index[dim] ^= (index[by] >> log_step) % extent[dim]``, whose extent is a power of two."""

    dim: int
    by: int
    log_step: int = 0

    def __str__(self) -> str:
        return f".swizzle({self.dim}, {self.by}, {self.log_step})"


@dataclass(frozen=True)
class Xor:
    """``at ^= ((at >> (base + shift)) % 2**bits) << base``: CuTe's ``Swizzle<bits, base, shift>``.

    The 128-byte swizzle of tensor copies is ``xor(3, 4, 3)`` on bytes.
    """

    bits: int
    base: int
    shift: int

    def __str__(self) -> str:
        return f".xor({self.bits}, {self.base}, {self.shift})"


@dataclass(frozen=True)
class Block:
    """One factor: an order of its extents, and what permutes it.

    Attributes:
        kind: whether elements are numbered, or each has an owner.
        extents: sizes by dim.
        ranks: as those of an :class:`irc.dialects.mapping.Atom`; empty for row-major.
        permuted: swizzles, first applied first.
    """

    kind: Kind
    extents: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    permuted: tuple[Swizzle | Xor, ...] = ()

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.extents))
        if self.ranks and self.ranks == tuple(reversed(range(len(self.extents)))):
            text = f"column_major({sizes})"
        elif self.ranks:
            text = f"{self.kind}({sizes}, ranks=[{', '.join(map(str, self.ranks))}])"
        else:
            text = f"{self.kind}({sizes})"
        return text + "".join(map(str, self.permuted))

    @property
    def size(self) -> int:
        """Elements that one owner keeps."""
        return 1 if self.kind == "local" else prod(self.extents)

    def __call__(self, index: Sequence[int]) -> int:
        """Return the place of an element."""
        if self.kind == "local":
            return 0
        at = list(index)
        for step in self.permuted:
            if isinstance(step, Swizzle):
                at[step.dim] ^= (at[step.by] >> step.log_step) % self.extents[step.dim]
        place = 0
        for dim in Atom("spatial", self.extents, self.ranks).order:
            place = place * self.extents[dim] + at[dim]
        for step in self.permuted:
            if isinstance(step, Xor):
                place ^= ((place >> (step.base + step.shift)) % (1 << step.bits)) << step.base
        return place


@dataclass(frozen=True)
class Layout:
    """A composition of blocks, outermost first."""

    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return " * ".join(map(str, self.blocks))

    def __mul__(self, inner: Layout) -> Layout:
        return Layout((*self.blocks, *inner.blocks))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tile."""
        return tuple(map(prod, zip(*(block.extents for block in self.blocks), strict=True)))

    @property
    def size(self) -> int:
        """Elements that one owner needs room for."""
        return prod(block.size for block in self.blocks)

    def __call__(self, index: Sequence[int]) -> int:
        """Return the place of an element of the tile with its owner."""
        place, rest, left = 0, list(index), list(self.shape)
        for block in self.blocks:
            left = [n // e for n, e in zip(left, block.extents, strict=True)]
            place = place * block.size + block([r // n for r, n in zip(rest, left, strict=True)])
            rest = [r % n for r, n in zip(rest, left, strict=True)]
        return place

    def swizzle(self, dim: int, by: int | None = None, log_step: int = 0) -> Layout:
        """Permute a dim of the last block by another one (of two, the other), as Hidet does.

        Raises:
            ValueError: where the extent is no power of two, or a dim does not exist.
        """
        block = self.blocks[-1]
        ndim = len(block.extents)
        other = (1 - dim if ndim == 2 else -1) if by is None else by
        if dim not in range(ndim) or other not in range(ndim) or dim == other:
            raise ValueError(f"swizzle({dim}, {other}) of {block} names two of {ndim} dims")
        if block.kind == "local" or block.extents[dim].bit_count() != 1:
            raise ValueError(f"{block} cannot be swizzled: dim {dim} is no power of two")
        return self._permuted(Swizzle(dim, other, log_step))

    def xor(self, bits: int, base: int, shift: int) -> Layout:
        """Permute the places of the last block by exclusive or of their bits.

        Raises:
            ValueError: where that leaves the block.
        """
        block = self.blocks[-1]
        if shift < bits:
            raise ValueError(f"xor({bits}, {base}, {shift}) reads bits that it writes")
        if block.kind == "local" or block.size % (1 << (base + bits)):
            raise ValueError(f"{block} has no whole rows of {1 << (base + bits)} places")
        return self._permuted(Xor(bits, base, shift))

    def _permuted(self, step: Swizzle | Xor) -> Layout:
        last = replace(self.blocks[-1], permuted=(*self.blocks[-1].permuted, step))
        return Layout((*self.blocks[:-1], last))


def local(*extents: int) -> Layout:
    """Return the layout whose elements each have an owner of their own."""
    return Layout((Block("local", extents),))


def row_major(*extents: int, ranks: Sequence[int] = ()) -> Layout:
    """Return the layout whose last dim (that of the last rank) is together in memory."""
    order = tuple(ranks)
    return Layout((Block("row_major", extents, () if order == tuple(sorted(order)) else order),))


def column_major(*extents: int) -> Layout:
    """Return the layout whose first dim is together in memory."""
    return row_major(*extents, ranks=tuple(reversed(range(len(extents)))))


def registers(mapping: TaskMapping) -> Layout:
    """Return where a worker keeps the values of its tasks, by coordinates of the task space.

    For every worker, task number s is at place s. Replicas each keep their own copy.
    """
    blocks = [
        Block("local" if atom.kind == "spatial" else "row_major", atom.extents, atom.ranks)
        for atom in mapping.atoms
        if atom.kind != "replicate"
    ]
    return Layout(tuple(blocks or [Block("local", (1,) * mapping.ndim)]))


def is_injective(layout: Layout) -> bool:
    """Say whether no two elements of one owner share a place (up to the places that it has).

    Composition keeps that: so each block is looked at alone. A row-major block without permutation
    is by construction; a swizzle of one dim by another is an exclusive or with a value that it does
    not change; ``xor`` with ``shift >= bits`` likewise. What is left is counted.
    """
    return all(_is_one_to_one(block) for block in layout.blocks)


def _is_one_to_one(block: Block) -> bool:
    if block.kind == "local" or not block.permuted:
        return True
    swizzles = [step for step in block.permuted if isinstance(step, Swizzle)]
    xors = [step for step in block.permuted if isinstance(step, Xor)]
    powers = all(block.extents[s.dim].bit_count() == 1 and s.dim != s.by for s in swizzles)
    whole = all(x.shift >= x.bits and not block.size % (1 << (x.base + x.bits)) for x in xors)
    if powers and whole:
        return True
    places = {block(point) for point in cartesian(*map(range, block.extents))}
    return len(places) == prod(block.extents) and max(places, default=0) < block.size


def parse_layout(text: str) -> Layout:
    """Read ``row_major(64, 8).swizzle(1) * row_major(1, 8)`` (``grammar/mapping.lark``).

    Raises:
        ValueError: with the place where the text stops making sense.
    """
    blocks: list[Block] = []
    for part in parse(text, "layout").children:
        block, *steps = part.children
        layout = Layout((_block(block),))
        for step in steps:
            numbers = tuple(map(int, step.children))
            counts = (1, 2, 3) if step.data == "swizzle" else (3,)
            if len(numbers) not in counts:
                raise ValueError(f"{step.data} takes {counts[-1]} numbers, not {len(numbers)}")
            layout = layout.swizzle(*numbers) if step.data == "swizzle" else layout.xor(*numbers)
        blocks += layout.blocks
    return Layout(tuple(blocks))


def _block(node: Any) -> Block:
    extents = tuple(int(child) for child in node.children if not hasattr(child, "data"))
    named = [tuple(map(int, c.children)) for c in node.children if hasattr(c, "data")]
    match str(node.data):
        case "local":
            return local(*extents).blocks[0]
        case "column_major":
            return column_major(*extents).blocks[0]
        case _:
            ranks = named[0] if named else ()
            if ranks and sorted(ranks) != list(range(len(extents))):
                raise ValueError(f"ranks={list(ranks)} are not a permutation")
            return row_major(*extents, ranks=ranks).blocks[0]
