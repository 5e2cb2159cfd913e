"""Writing the steps of a kernel body at one place of the loop nest.

A value that varies along the vector dim is ``unroll`` vectors; any other is one scalar, splatted
where a vector needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from irc.backends.cpu.loops.bounded import bounded_load
from irc.backends.cpu.loops.nest import Access, Facts, Nest, Step
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.loops.units import SIZE_VALUES
from irc.backends.cpu.vector.builder import PTR, Builder, Operand, Type, constant
from irc.backends.cpu.vector.pointwise import apply
from irc.backends.cpu.vector.storage import COMPUTE, MEMORY, cast, pack, unpack
from irc.dialects.types import ITEM_BYTES

Env = dict[int, list[Operand]]
FAULT = 64
"""Bytes from the word that a kernel sets where an index lies outside, to its scratch memory."""

STREAMED = "!nontemporal !{i32 1}"
"""Of a store: past the caches, without reading the line first."""


@dataclass
class Place:
    """Where in the nest code is being written.

    Attributes:
        indices: the current index in each dim whose loop is open (the first lane's in the vector
        dim). lanes: lanes of a vector here; 1 outside the vector loop and in scalar tails.
        unroll: how many vectors side by side.
        mask: which lanes are inside the space, or None for all.
        vector: the vector dim where its loop is open.
        local: the vector index counts from the chunk's start in scratch rows.
    """

    indices: Mapping[int, Operand]
    lanes: int = 1
    unroll: int = 1
    mask: Operand | None = None
    vector: int | None = None
    local: bool = False

    def at(self, dim: int, index: Operand) -> Place:
        """Return the place inside the loop over one more dim."""
        place = Place({**self.indices, dim: index}, self.lanes, self.unroll, self.mask)
        place.vector, place.local = self.vector, self.local
        return place


@dataclass
class StepWriter:
    """Writes loads, stores and arithmetic of one kernel.

    Attributes:
        scratch: where values lie that are kept between passes.
        streamed: buffers whose whole, aligned vectors go past the caches.
    """

    b: Builder
    nest: Nest
    facts: Facts
    buffers: dict[int, Operand]
    scratch: dict[int, Access] = field(default_factory=dict[int, Access])
    streamed: frozenset[int] = frozenset()

    def steps(self, steps: Iterable[Step], env: Env, place: Place) -> None:
        """Write the steps whose values are not in ``env`` yet."""
        for step in steps:
            if step.result not in env:
                env[step.result] = self.value(step, env, place)

    def value(self, step: Step, env: Env, place: Place) -> list[Operand]:
        """Write one value."""
        vectorial = place.vector is not None and place.vector in self.facts.dims[step.result]
        if step.kind == "load":
            assert step.access is not None
            return self.load(step.access, [env[v] for v in step.operands], place, vectorial)
        count = place.unroll if vectorial else 1
        lanes = place.lanes if vectorial else 1
        if step.kind == "constant":
            if not isinstance(step.literal, float) and is_named(step.literal):
                return [cast(self.b, self.b.i64(step.literal), "i64", step.dtype)]
            return [constant(Type(COMPUTE[step.dtype]), step.literal)]
        if step.kind == "index":
            assert step.dim is not None
            return [self.index(step.dim, lanes, u, place, step.dtype) for u in range(count)]
        by_value = self.nest.producers()
        dtypes = [by_value[v].dtype for v in step.operands]
        return [
            apply(
                self.b,
                step.fn,
                [self.pick(env[v], u, lanes) for v in step.operands],
                dtypes,
                step.dtype,
            )
            for u in range(count)
        ]

    def pick(self, values: list[Operand], u: int, lanes: int) -> Operand:
        """Return the u-th vector of a value, a scalar in all lanes."""
        return self.b.splat(values[u if len(values) > 1 else 0], lanes)

    def index(self, dim: int, lanes: int, u: int, place: Place, dtype: str) -> Operand:
        """Return the position in a dim."""
        b = self.b
        base = place.indices[dim]
        if place.vector == dim:
            base = b.add(base, b.i64(u * lanes))
        if lanes > 1:
            kind = Type("i64", lanes)
            base = b.binary("add nsw", b.splat(base, lanes), b.iota(kind))
        return cast(b, base, "i64", dtype)

    def offset(self, access: Access, place: Place, u: int) -> Operand:
        """Return the element that the first lane of vector u touches (without gathers)."""
        b = self.b
        total = b.i64(access.offset)
        for dim, stride in enumerate(access.strides):
            if not stride:
                continue
            index = place.indices.get(dim, b.i64(0))
            if dim == place.vector:
                if access.buffer < 0 and place.local:
                    index = b.i64(0)
                index = b.add(index, b.i64(u * place.lanes))
            total = b.add(total, self.distance(access, dim, index))
        return total

    def distance(self, access: Access, dim: int, index: Operand) -> Operand:
        """Return how many elements an index in one dim is from 0."""
        b, stride = self.b, access.strides[dim]
        blocks = {d: (size, inner) for d, size, inner in access.blocks}
        if dim not in blocks:
            return b.scale(index, stride)
        size, inner = blocks[dim]
        block = b.scale(b.binary("udiv", index, b.i64(size)), stride)
        return b.add(block, b.scale(b.binary("urem", index, b.i64(size)), inner))

    def load(
        self, access: Access, indices: list[list[Operand]], place: Place, vectorial: bool
    ) -> list[Operand]:
        """Write a load; a gather's indices are clamped so that it stays inside its buffer."""
        memory = Type(MEMORY[access.dtype])
        lanes = place.lanes if vectorial else 1
        results: list[Operand] = []
        for u in range(place.unroll if vectorial else 1):
            if access.bounds:
                results.append(bounded_load(self, access, place, u, lanes))
                continue
            base = self.offset(access, place, u)
            gather = self.gathered(access, indices, u, lanes)
            pointer = self.buffers[access.buffer]
            if gather is not None and gather.type.lanes == 1:
                base, gather = self.b.binary("add", base, gather), None
            stride = access.strides[place.vector] if place.vector is not None else 0
            if lanes == 1 or (gather is None and stride == 1):
                at = self.b.address(pointer, memory.element, base)
                raw = self.vector_load(Type(memory.element, lanes), at, place.mask)
            else:
                kind = Type(memory.element, lanes)
                raw = self.lane_loads(kind, pointer, base, gather, stride, place.mask)
            results.append(unpack(self.b, raw, access.dtype))
        return results

    def vector_load(self, kind: Type, at: Operand, mask: Operand | None) -> Operand:
        """Load consecutive elements, under a mask where there is one."""
        if kind.lanes == 1 or mask is None:
            return self.b.load(kind, at)
        name = f"llvm.masked.load.{kind.mangled}.p0"
        align = constant(Type("i32"), kind.bits // 8)
        return self.b.call(kind, name, at, align, mask, Operand(kind, "zeroinitializer"))

    def lane_loads(
        self,
        kind: Type,
        pointer: Operand,
        base: Operand,
        gather: Operand | None,
        stride: int,
        mask: Operand | None = None,
    ) -> Operand:
        """Load lanes one by one; those outside a mask read what the first one reads."""
        b = self.b
        result = Operand(kind, "poison")
        for lane in range(kind.lanes):
            index = b.add(base, b.i64(lane * stride))
            if mask is not None:
                index = b.select(b.lane(mask, lane), index, base)
            if gather is not None:
                index = b.binary("add", index, b.lane(gather, lane))
            at = b.address(pointer, kind.element, index)
            result = b.insert(result, b.load(Type(kind.element), at), lane)
        return result

    def gathered(
        self, access: Access, indices: list[list[Operand]], u: int, lanes: int
    ) -> Operand | None:
        """Return the part of an address that index values give; None where that is nothing.

        Each index is held against its own count: a dim of one element has no part in an address,
        and next to a view of a buffer lie elements that are not the view's.
        """
        if not access.index_strides:
            return None
        b = self.b
        wide = max(min(x[0].type.lanes, lanes) for x in indices)
        total: Operand | None = None
        rows = zip(indices, access.index_strides, access.index_counts, strict=True)
        for values, stride, count in rows:
            value = self.pick(values, u, wide)
            if value.type.bits < 64:
                value = b.convert("sext", value, "i64")
            inside = b.intrinsic("smax", value, constant(value.type, 0))
            inside = b.intrinsic("smin", inside, self.in_lanes(count + -1, value.type))
            self.report(b.compare("icmp ne", value, inside))
            if not is_named(stride) and stride == 0:
                continue
            term = b.binary("mul", inside, self.in_lanes(stride, value.type))
            total = term if total is None else b.binary("add", total, term)
        return total

    def report(self, outside: Operand) -> None:
        """Tell the caller of the kernel, in front of the scratch memory, of an index outside."""
        b = self.b
        if outside.type.lanes > 1:
            name = f"llvm.vector.reduce.or.{outside.type.mangled}"
            outside = b.call(Type("i1"), name, outside)
        word = b.address(Operand(PTR, "%scratch"), "i8", b.i64(-FAULT))
        b.when(outside, lambda: b.store(constant(Type("i32"), 1), word))

    def in_lanes(self, number: int, kind: Type) -> Operand:
        """Return a number, perhaps with names, in all lanes."""
        if is_named(number):
            return self.b.splat(self.b.i64(number), kind.lanes)
        return constant(kind, number)

    def store(self, access: Access, values: list[Operand], place: Place) -> None:
        """Write a store."""
        b = self.b
        element = MEMORY[access.dtype]
        vectorial = place.vector is not None and access.strides[place.vector] != 0
        lanes = place.lanes if vectorial else 1
        for u in range(place.unroll if vectorial else 1):
            value = pack(b, self.pick(values, u, lanes), access.dtype)
            base = self.offset(access, place, u)
            pointer = self.buffers[access.buffer]
            stride = access.strides[place.vector] if place.vector is not None else 0
            if lanes > 1 and stride != 1:
                for lane in range(lanes):
                    index = b.add(base, b.i64(lane * stride))
                    b.store(b.lane(value, lane), b.address(pointer, element, index))
                continue
            at = b.address(pointer, element, base)
            if access.buffer in self.streamed and lanes > 1 and place.mask is None:
                whole = min(lanes * value.type.bits // 8, 64)
                b.do(f"store {value}, {at}, align {whole}, {STREAMED}")
                continue
            if lanes == 1 or place.mask is None:
                b.store(value, at)
                continue
            align = constant(Type("i32"), ITEM_BYTES[access.dtype])
            b.invoke(f"llvm.masked.store.{value.type.mangled}.p0", value, at, align, place.mask)

    def save(self, number: int, env: Env, place: Place) -> None:
        """Keep a value in the scratch row."""
        self.store(self.scratch[number], env[number], place)

    def restore(self, number: int, env: Env, place: Place) -> None:
        """Take a value back from the scratch row."""
        vectorial = place.vector is not None and place.vector in self.facts.dims[number]
        env[number] = self.load(self.scratch[number], [], place, vectorial)


def buffer_pointers(b: Builder, count: int) -> dict[int, Operand]:
    """Load the kernel's arguments from its argument array."""
    array = Operand(PTR, "%args")
    return {i: b.load(PTR, b.address(array, "ptr", b.i64(i)), 8) for i in range(count)}


def size_pointer() -> list[str]:
    """Return the lines that load where the values of a kernel's sizes are."""
    return [
        f"  %place.sizes = getelementptr ptr, ptr %args, i64 {SIZE_VALUES}",
        "  %sizes = load ptr, ptr %place.sizes, align 8",
    ]
