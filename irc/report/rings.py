"""How attention goes round a split sequence, as ``irc explain plan PLAN --overlap`` says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from irc.report.evidence import Evidence
from irc.report.table import seconds, size, table
from irc.sharding.ring_told import rings_of


def rings(evidence: Evidence) -> list[str]:
    """Return a line for each ring: its way, and what its ranks compute and send.

    Empty where there is none, and for a plan without its IR texts.
    """
    rows = rings_of(evidence.last) if evidence.passes else []
    if not rows:
        return []
    cells = [
        (
            ring.way,
            ring.axis,
            seconds(ring.seconds[ring.way]) if ring.seconds else "as asked",
            ", ".join(f"{way} {seconds(s)}" for way, s in ring.seconds.items() if way != ring.way),
            _spread([f"{n:.4g}" for n in ring.work.flops]),
            _spread([size(n) for n in ring.work.on_bytes]),
            _spread([size(n) for n in ring.work.back_bytes]),
            ring.name,
            ring.loc,
        )
        for ring in rows
    ]
    heads = ("ring", "axis", "time", "other ways", "FLOPs by rank", "sent on", "sent back",
             "id", "line")  # fmt: skip
    said = (
        "FLOPs are of the ring's attention without what a causal mask hides. Sent on: to the next"
        " rank; sent back: results to whom they belong, and to bring chunks in order."
    )
    return ["", *table(heads, cells, right=""), "", said]


def ring_facts(evidence: Evidence) -> list[dict[str, Any]]:
    """Return each ring: its way, the seconds of each way, and FLOPs and bytes of each rank.

    Empty where there is none, and for a plan without its IR texts.
    """
    return [
        {
            "id": ring.name,
            "way": ring.way,
            "axis": ring.axis,
            "loc": ring.loc,
            "seconds": dict(ring.seconds),
            "flops": ring.work.flops,
            "on_bytes": ring.work.on_bytes,
            "back_bytes": ring.work.back_bytes,
            "received_bytes": ring.work.received_bytes,
        }
        for ring in (rings_of(evidence.last) if evidence.passes else [])
    ]


def _spread(values: Sequence[str]) -> str:
    """Say what all ranks have, or each."""
    return f"each {values[0]}" if len(set(values)) == 1 else ", ".join(values)
