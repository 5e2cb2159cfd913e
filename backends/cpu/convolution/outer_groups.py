"""Sums of outer products by group: each row's index says which of the results it is added to.

    out[e, m, n] = sum over r where index[r] = e of  left[r, m] * right[r, n]

Each thread sorts the rows by their index into its own memory; a tile then runs down the list of
its group (the gradient of experts, as :mod:`irc.backends.cpu.matmul.grouped` is their product).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from irc.backends.cpu.convolution.outer import Sums, read_sums
from irc.backends.cpu.convolution.outer_tile import TILE, outer_tile
from irc.backends.cpu.convolution.outer_writer import Indices, OuterWriter, Range
from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.nest import Access, Nest
from irc.backends.cpu.vector.builder import I64, Builder, Operand, Type, constant


def read_groups(nest: Nest) -> tuple[Sums, Access, int | None] | None:
    """Return the sums of a nest, the access of its index, and the dim of groups (None: one)."""
    makers = nest.producers()
    steps = [s for s in nest.steps if s.kind == "contract"]
    if len(steps) != 1:
        return None
    (step,) = steps
    taken, right = (makers[value] for value in step.operands)
    if taken.fn != "where":
        return None
    own, left, none = (makers[value] for value in taken.operands)
    if own.fn != "eq" or none.kind != "constant" or none.literal or left.kind != "load":
        return None
    index, number = (makers[value] for value in own.operands)
    if index.access is None or index.operands or number.kind not in ("index", "constant"):
        return None
    gone = {taken.result, own.result, none.result, index.result, number.result}
    contract = replace(step, operands=(left.result, right.result))
    rest = tuple(contract if s is step else s for s in nest.steps if s.result not in gone)
    if any(gone & set(s.operands) for s in rest):
        return None
    sums = read_sums(replace(nest, steps=rest))
    if sums is None or len(sums.inner) != 1 or sums.bounds:
        return None
    return sums, index.access, number.dim


class GroupsWriter(OuterWriter):
    """Writes the body of a kernel whose sums are by group."""

    def __init__(
        self,
        b: Builder,
        read: tuple[Sums, Access, int | None],
        features: Features,
        buffers: dict[int, Operand],
    ) -> None:
        self.index, self.group = read[1:]
        super().__init__(b, read[0], features, buffers)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return 1 if self.group is None else self.sums.nest.extents[self.group]

    @property
    def num_rows(self) -> int:
        """Rows of all groups."""
        return self.sums.nest.extents[self.sums.inner[0]]

    @property
    def ends(self) -> int:
        """Where the scratch memory holds the end of each group: behind the tiles."""
        return -(-super().scratch_bytes // 64) * 64

    @property
    def rows(self) -> int:
        """Where it holds the rows of the groups."""
        return self.ends + 8 * (self.groups + 3)

    @property
    def scratch_bytes(self) -> int:
        return self.rows + 8 * self.num_rows

    def write(self) -> None:
        self._sort()
        super().write()

    def _define_tile(self) -> None:
        outer_tile(self.b, self.sums, self.plan, listed=True)

    def _slot(self, start: int, index: Operand) -> Operand:
        at = self.b.address(self.scratch, "i8", self.b.i64(start))
        return self.b.address(at, "i64", index)

    def _sort(self) -> None:
        """List the rows of each group: count them, add up the counts, place each row."""
        b, groups = self.b, self.groups
        size = (constant(Type("i8"), 0), b.i64(8 * (groups + 3)), constant(Type("i1"), 0))
        b.invoke("llvm.memset.p0.i64", self._slot(self.ends, b.i64(0)), *size)

        def count(row: Operand, _: list[Operand]) -> list[Operand]:
            slot = self._slot(self.ends, b.add(self._group_of(row), b.i64(2)))
            b.store(b.add(b.load(I64, slot, 8), b.i64(1)), slot, 8)
            return []

        def summed(number: Operand, total: list[Operand]) -> list[Operand]:
            slot = self._slot(self.ends, number)
            after = b.add(b.load(I64, slot, 8), total[0])
            b.store(after, slot, 8)
            return [after]

        def place(row: Operand, _: list[Operand]) -> list[Operand]:
            slot = self._slot(self.ends, b.add(self._group_of(row), b.i64(1)))
            at = b.load(I64, slot, 8)
            b.store(b.add(at, b.i64(1)), slot, 8)
            b.store(row, self._slot(self.rows, at), 8)
            return []

        every = b.i64(self.num_rows)
        b.loop(b.i64(0), every, 1, [], count)
        b.loop(b.i64(2), b.i64(groups + 3), 1, [b.i64(0)], summed)
        b.loop(b.i64(0), every, 1, [], place)

    def _group_of(self, row: Operand) -> Operand:
        """The group of a row; their number for a row of none."""
        b, access = self.b, self.index
        at = b.add(b.i64(access.offset), b.scale(row, access.strides[self.sums.inner[0]]))
        value = b.load(I64, b.address(self.buffers[access.buffer], "i64", at), 8)
        count = b.i64(self.groups)
        return b.select(b.compare("icmp ult", value, count), value, count)

    def _adder(self, chunk: dict[int, Range]) -> Callable[[Sequence[Operand], Operand], None]:
        b, s = self.b, self.sums
        low, high = chunk[s.inner[0]]

        def add(unit: Sequence[Operand], tile: Operand) -> None:
            outer: Indices = dict(zip(s.outer, unit, strict=False))
            group = b.i64(0) if self.group is None else outer[self.group]
            begin, end = (
                b.load(I64, self._slot(self.ends, b.add(group, b.i64(i))), 8) for i in (0, 1)
            )
            last = b.intrinsic("smin", b.add(begin, high), end)
            pointers = [self._at(x, {**outer, **self._starts(unit)}) for x in (s.left, s.right)]
            arguments = (*pointers, tile, b.add(begin, low), last, self._slot(self.rows, b.i64(0)))
            b.do(f"call void @{TILE}({', '.join(map(str, arguments))})")

        return add
