"""What kernels along a dim share: where a row of each role begins, and loops that they need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irc.backends.cpu.features import Features
from irc.backends.cpu.loops.steps import FAULT
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import MEMORY, pack, unpack
from irc.dialects.along import AlongForm

UNROLL = 4
"""Vectors side by side in a plain loop. Widths are powers of two."""
PARALLEL_STEPS = 1 << 13
"""Steps of all tasks from which a thread pool is worth its start (about 4 us)."""


Rows: TypeAlias = Mapping[str, Operand]
"""The address of a row's first element, by role."""


class AlongWriter(ABC):
    """Base of the writers: addresses of roles, and loads and stores in compute types."""

    scratch_bytes = 0
    parallel = False

    def __init__(
        self, b: Builder, form: AlongForm, features: Features, buffers: dict[int, Operand]
    ) -> None:
        self.b, self.form, self.features, self.buffers = b, form, features, buffers

    @abstractmethod
    def write(self) -> None:
        """Write the kernel."""

    def start(self, role: str, indices: Sequence[Operand]) -> Operand:
        """Return the address of the first element of a row."""
        b, place = self.b, self.form.places[role]
        total = b.i64(place.offset)
        for index, stride in zip(indices, place.strides, strict=False):
            total = b.add(total, b.scale(index, stride))
        return b.address(self.buffers[place.buffer], MEMORY[place.dtype], total)

    def element(self, role: str, row: Operand, index: Operand) -> Operand:
        """Return the address of an element of a row."""
        place = self.form.places[role]
        return self.b.address(row, MEMORY[place.dtype], self.b.scale(index, place.strides[-1]))

    def moved(self, role: str, at: Operand, index: Operand) -> Operand:
        """Return the address ``index`` elements of memory further on."""
        return self.b.address(at, MEMORY[self.form.places[role].dtype], index)

    def load(self, role: str, at: Operand, lanes: int = 1) -> Operand:
        """Load neighbours of memory as they are computed with."""
        dtype = self.form.places[role].dtype
        return unpack(self.b, self.b.load(Type(MEMORY[dtype], lanes), at), dtype)

    def store(self, role: str, value: Operand, at: Operand) -> None:
        """Store neighbours of memory."""
        self.b.store(pack(self.b, value, self.form.places[role].dtype), at)

    def index(self, role: str, at: Operand, lanes: int = 1) -> Operand:
        """Load indices as i64."""
        indices = self.load(role, at, lanes)
        return self.b.convert("sext", indices, "i64") if indices.type.bits < 64 else indices

    def scratch(self, offset: int) -> Operand:
        """Return an address in the scratch memory of the thread."""
        return self.b.address(Operand(PTR, "%scratch"), "i8", self.b.i64(offset))

    def sweep(
        self, low: Operand, high: Operand, lanes: int, body: Callable[[Operand, int], None]
    ) -> None:
        """Write loops over a range: vectors side by side, single ones, then single elements."""
        b = self.b
        for width, count in ((lanes, UNROLL), (lanes, 1)) if lanes > 1 else ():
            middle = self._whole(low, high, width * count)

            def step(i: Operand, _: list[Operand], count: int = count) -> Sequence[Operand]:
                for u in range(count):
                    body(b.add(i, b.i64(u * lanes)), lanes)
                return ()

            if low.literal is None or low.literal != middle.literal:
                b.loop(low, middle, width * count, [], step)
            low = middle

        def single(i: Operand, _: list[Operand]) -> Sequence[Operand]:
            body(i, 1)
            return ()

        if low.literal is None or low.literal != high.literal:
            b.loop(low, high, 1, [], single)

    def _whole(self, low: Operand, high: Operand, width: int) -> Operand:
        """Return where the whole vectors of a range end."""
        b = self.b
        if low.literal is not None and high.literal is not None:
            return b.i64(int(high.literal - (high.literal - low.literal) % width))
        length = b.binary("sub nsw", high, low)
        return b.add(low, b.binary("and", length, b.i64(-width)))

    def refuse(self) -> None:
        """Tell the caller of an index outside."""
        b = self.b
        word = b.address(Operand(PTR, "%scratch"), "i8", b.i64(-FAULT))
        b.store(constant(Type("i32"), 1), word)


def loop_while(
    b: Builder,
    carried: Sequence[Operand],
    condition: Callable[[list[Operand]], Operand],
    body: Callable[[list[Operand]], Sequence[Operand]],
) -> list[Operand]:
    """Append ``while condition(carried): carried = body(carried)``; returns what is carried."""
    tag = b.fresh()[2:]
    head, inside, done, before = f"while{tag}", f"do{tag}", f"end{tag}", b.block
    b.do(f"br label %{head}")
    b.label(head)
    phis = [Operand(value.type, b.fresh()) for value in carried]
    at = len(b.lines)
    more = condition(list(phis))
    b.do(f"br {more}, label %{inside}, label %{done}")
    b.label(inside)
    after = body(list(phis))
    latch = b.block
    b.do(f"br label %{head}")
    b.lines[at:at] = [
        f"  {phi.ref} = phi {phi.type} [ {first.ref}, %{before} ], [ {last.ref}, %{latch} ]"
        for phi, first, last in zip(phis, carried, after, strict=True)
    ]
    b.label(done)
    return phis
