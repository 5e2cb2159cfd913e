"""Results that are written past the caches.

A plain store reads the line that it fills; where a result is larger than the caches, that is a
third of all traffic. Whether its vectors are aligned is known when a kernel is written, but for the
address of the result itself: so a kernel that streams has two bodies, and picks one when it runs.
"""

from __future__ import annotations

from collections.abc import Callable

from irc.backends.cpu.loops.nest import Access, Nest
from irc.backends.cpu.loops.sizes import is_named
from irc.backends.cpu.vector.builder import I64, Builder, Operand
from irc.dialects.types import ITEM_BYTES

LARGE = 12 << 20
"""Bytes of a result that its reader would not find in the cache anyway."""
LINE = 64


def streamed_buffers(nest: Nest, vector: int | None, lanes: int) -> frozenset[int]:
    """Return the buffers that are large, and whose vectors are aligned if they are."""
    large = (a for a in _stores(nest) if _is_large(a, vector, lanes))
    return frozenset(a.buffer for a in large if _is_aligned(a, vector, lanes))


def single_store(nest: Nest, vector: int | None, lanes: int) -> Access | None:
    """Return the only store of a kernel, where its result is large.

    Its rows can stream whatever their alignment, if their ends, which fill no line, do not.
    """
    stores = _stores(nest)
    return stores[0] if len(stores) == 1 and _is_large(stores[0], vector, lanes) else None


def _stores(nest: Nest) -> list[Access]:
    return [s.access for s in nest.steps if s.kind == "store" and s.access is not None]


def _is_large(access: Access, vector: int | None, lanes: int) -> bool:
    item = ITEM_BYTES[access.dtype]
    if vector is None or access.strides[vector] != 1:
        return False
    # A second body costs compile time for every size: one whose size is open has no such body.
    if is_named(access.size) or access.size * item < LARGE:
        return False
    return lanes * item >= LINE // 2  # half a line is written in two stores, one after the other


def _is_aligned(access: Access, vector: int | None, lanes: int) -> bool:
    others = [s for d, s in enumerate(access.strides) if d != vector]
    return all(not is_named(n) and n % lanes == 0 for n in (access.offset, *others))


def either_way(
    b: Builder,
    buffers: dict[int, Operand],
    streamed: frozenset[int],
    body: Callable[[frozenset[int]], None],
    alignment: int = LINE,
) -> None:
    """Write a body once where nothing is streamed, else one for each kind of address.

    Args:
        b: where to write.
        buffers: addresses by number.
        streamed: which go past the caches where their addresses allow it.
        body: writes it, given what is streamed in this one.
        alignment: bytes, which addresses have to be multiples of.
    """
    if not streamed:
        body(streamed)
        return
    bits = b.i64(0)
    for buffer in sorted(streamed):
        address = b.emit(I64, f"ptrtoint {buffers[buffer]} to i64")
        bits = b.binary("or", bits, address)
    bits = b.binary("and", bits, b.i64(alignment - 1))

    def streaming() -> None:
        body(streamed)
        b.do("fence seq_cst")  # other threads read the result after the region's end

    b.either(b.compare("icmp eq", bits, b.i64(0)), streaming, lambda: body(frozenset()))


def lanes_before(b: Builder, at: Operand, item: int, whole: int) -> Operand:
    """Return how many elements lie between an address and the next multiple of ``whole`` bytes."""
    address = b.emit(I64, f"ptrtoint {at} to i64")
    distance = b.binary("and", b.binary("sub", b.i64(0), address), b.i64(whole - 1))
    return b.binary("lshr", distance, b.i64(item.bit_length() - 1))
