"""The graph of what will be kernels, kept acyclic while ops join.

A unit is a group of ops that becomes one kernel, or one library op. Joining is illegal where a
path leaves the unit and comes back: then neither end could run first. Every unit has a level above
those of all units that it reads, so a search for such a path only visits units between two levels,
and fusion stays near linear in the number of ops (Pearce and Kelly keep a topological order alike).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from xdsl.ir import Operation

Kind: TypeAlias = Literal["rows", "matmul", "library", "outer"]


@dataclass(eq=False)
class Unit:
    """Ops that run together.

    Attributes:
        kind: how they run.
        ops: compute ops (or the library op), in program order.
        reads: units that this one needs.
        readers: units that need this one.
        level: above the level of all that it reads.
    """

    kind: Kind
    ops: list[Operation]
    reads: set[Unit] = field(default_factory=set["Unit"])
    readers: set[Unit] = field(default_factory=set["Unit"])
    level: int = 0


def link(unit: Unit, reads: Iterable[Unit]) -> None:
    """Let a unit read others, and raise levels where they must."""
    for other in reads:
        unit.reads.add(other)
        other.readers.add(unit)
    pending = [unit]
    while pending:
        raised = pending.pop()
        level = 1 + max((other.level for other in raised.reads), default=-1)
        if level > raised.level:
            raised.level = level
            pending.extend(raised.readers)


def makes_cycle(merged: Sequence[Unit], reads: Iterable[Unit]) -> bool:
    """Say whether one unit made of ``merged``, reading also ``reads``, would read itself."""
    inside = set(merged)
    lowest = min(unit.level for unit in merged)
    pending = [u for u in {*reads, *(r for m in merged for r in m.reads)} if u not in inside]
    seen = set(pending)
    while pending:
        unit = pending.pop()
        if unit.level <= lowest:
            continue
        for other in unit.reads:
            if other in inside:
                return True
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return False


def merge(units: Sequence[Unit], kind: Kind, owner: dict[Operation, Unit]) -> Unit:
    """Make several units one, the first of them."""
    kept, *others = units
    kept.kind = kind
    for other in others:
        for reader in other.readers:
            reader.reads.discard(other)
            if reader is not kept:
                reader.reads.add(kept)
                kept.readers.add(reader)
        for read in other.reads:
            read.readers.discard(other)
            if read is not kept:
                read.readers.add(kept)
                kept.reads.add(read)
        kept.ops.extend(other.ops)
        kept.reads.discard(other)
        kept.readers.discard(other)
        for op in other.ops:
            owner[op] = kept
    kept.level = max(unit.level for unit in units)
    link(kept, ())
    pending = list(kept.readers)
    for reader in pending:
        link(reader, ())
    return kept


def in_order(units: Iterable[Unit], position: dict[Operation, int]) -> list[Unit]:
    """Sort units so that each comes after what it reads, else by the place of their last op."""
    waiting = {unit: len(unit.reads) for unit in units}
    place = {unit: max(position[op] for op in unit.ops) for unit in waiting}
    ready: list[tuple[int, int]] = []
    by_key: dict[tuple[int, int], Unit] = {}
    for number, unit in enumerate(waiting):
        by_key[place[unit], number] = unit
    keys = {unit: key for key, unit in by_key.items()}
    for unit, count in waiting.items():
        if count == 0:
            heappush(ready, keys[unit])
    order: list[Unit] = []
    while ready:
        unit = by_key[heappop(ready)]
        order.append(unit)
        for reader in unit.readers:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heappush(ready, keys[reader])
    assert len(order) == len(waiting), "units form a cycle"
    return order
