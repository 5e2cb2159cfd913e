"""What pass ``plan-rings`` decided, as the module says it: attribute ``irc.rings``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    f64,
)
from xdsl.ir import Attribute

from irc.dialects.attributes import to_attribute, to_python
from irc.sharding.ring_work import RingWork

RINGS = "irc.rings"


@dataclass(frozen=True)
class RingFacts:
    """A ring of attention.

    Attributes:
        name: the id of its op.
        way: how it goes round, of `irc.sharding.ring_ways`.
        axis: the mesh axis.
        loc: its source line.
        seconds: of each way that it could go; none where the way was asked for.
        work: what each rank does in a run of the op.
    """

    name: str
    way: str
    axis: str
    loc: str
    seconds: Mapping[str, float]
    work: RingWork


def tell_rings(module: ModuleOp, rings: Sequence[RingFacts]) -> None:
    """Add rings to those that the module says."""
    rows = cast("ArrayAttr[Attribute]", module.attributes.get(RINGS, ArrayAttr([])))
    module.attributes[RINGS] = ArrayAttr([*rows, *map(_row, rings)])


def rings_of(module: ModuleOp) -> list[RingFacts]:
    """Return the rings that a module says it has."""
    told = module.attributes.get(RINGS)
    return [] if told is None else [_facts(row) for row in to_python(told)]


def _row(ring: RingFacts) -> DictionaryAttr:
    work = ring.work
    facts: dict[str, object] = {
        "id": ring.name,
        "way": ring.way,
        "axis": ring.axis,
        "loc": ring.loc,
        "ways": ArrayAttr([StringAttr(way) for way in ring.seconds]),
        "seconds": DenseArrayBase.from_list(f64, list(ring.seconds.values())),
        "flops": work.flops,
        "on_bytes": work.on_bytes,
        "back_bytes": work.back_bytes,
        "received_bytes": work.received_bytes,
    }
    return DictionaryAttr({key: to_attribute(value) for key, value in facts.items()})


def _facts(row: Mapping[str, object]) -> RingFacts:
    def whole(key: str) -> tuple[int, ...]:
        return tuple(cast("Sequence[int]", row[key]))

    ways, seconds = cast("Sequence[str]", row["ways"]), cast("Sequence[float]", row["seconds"])
    return RingFacts(
        str(row["id"]),
        str(row["way"]),
        str(row["axis"]),
        str(row["loc"]),
        dict(zip(ways, seconds, strict=True)),
        RingWork(whole("flops"), whole("on_bytes"), whole("back_bytes"), whole("received_bytes")),
    )
