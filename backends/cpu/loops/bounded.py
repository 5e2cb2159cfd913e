"""Loads with bounds: the borders of windows, and padding. What lies outside is never touched.

Where the lanes do not move within a bound, one comparison serves a whole vector: a vector outside
is read at element 0, which is there, and thrown away. Else each lane has its own mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from irc.backends.cpu.loops.nest import Access, Bound
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.backends.cpu.vector.storage import COMPUTE, MEMORY, unpack

if TYPE_CHECKING:
    from irc.backends.cpu.loops.steps import Place, StepWriter


def bounded_load(steps: StepWriter, access: Access, place: Place, u: int, lanes: int) -> Operand:
    """Write one vector (or scalar) of a load with bounds."""
    b = steps.b
    inside = within(steps, access.bounds, place, u, lanes)
    memory, pointer = Type(MEMORY[access.dtype], lanes), steps.buffers[access.buffer]
    base = steps.offset(access, place, u)
    stride = access.strides[place.vector] if place.vector is not None else 0
    if inside.type.lanes == 1:
        base = b.select(inside, base, b.i64(0))
        if lanes == 1 or stride == 1:
            at = b.address(pointer, memory.element, base)
            raw = steps.vector_load(memory, at, place.mask)
        else:
            raw = steps.lane_loads(memory, pointer, base, None, stride)
    elif stride == 1:
        mask = inside if place.mask is None else b.binary("and", inside, place.mask)
        raw = steps.vector_load(memory, b.address(pointer, memory.element, base), mask)
    else:
        raw = _lane_by_lane(b, memory, pointer, base, inside, stride)
    value = unpack(b, raw, access.dtype)
    fill = constant(Type(COMPUTE[access.dtype], lanes), access.fill)
    return b.select(b.splat(inside, lanes), value, fill)


def within(
    steps: StepWriter, bounds: tuple[Bound, ...], place: Place, u: int, lanes: int
) -> Operand:
    """Return whether a place lies inside all bounds: one i1, or one for each lane."""
    b = steps.b
    scalar, vector = list[Operand](), list[Operand]()
    for bound in bounds:
        total = b.i64(bound.start)
        for dim in sorted(bound.dims):
            index = place.indices.get(dim, b.i64(0))
            if dim == place.vector:
                index = b.add(index, b.i64(u * lanes))
            total = b.add(total, b.scale(index, bound.strides[dim]))
        spread = place.vector in bound.dims and lanes > 1
        if spread:
            assert place.vector is not None
            kind = Type("i64", lanes)
            step = steps.in_lanes(bound.strides[place.vector], kind)
            moved = b.binary("mul nsw", b.iota(kind), step)
            total = b.binary("add nsw", b.splat(total, lanes), moved)
        check = b.compare("icmp ult", total, steps.in_lanes(bound.size, total.type))
        (vector if spread else scalar).append(check)
    checks = [b.splat(_all(b, scalar), lanes)] if scalar and vector else scalar
    return _all(b, [*checks, *vector])


def _all(b: Builder, checks: list[Operand]) -> Operand:
    total, *others = checks
    for check in others:
        total = b.binary("and", total, check)
    return total


def _lane_by_lane(
    b: Builder, kind: Type, pointer: Operand, base: Operand, inside: Operand, stride: int
) -> Operand:
    result = Operand(kind, "poison")
    for lane in range(kind.lanes):
        index = b.select(b.lane(inside, lane), b.add(base, b.i64(lane * stride)), b.i64(0))
        at = b.address(pointer, kind.element, index)
        result = b.insert(result, b.load(Type(kind.element), at), lane)
    return result
