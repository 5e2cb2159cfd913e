"""What was cut so that it overlaps, as ``irc explain plan PLAN --overlap`` says it."""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.ir import Attribute

from irc.dialects.attributes import to_python
from irc.report.evidence import Evidence
from irc.report.table import counted, seconds, table
from irc.sharding.batch_slices import SLICES
from irc.sharding.chunks import CHUNKS


def chunks(evidence: Evidence) -> list[str]:
    """Return a line for each collective or layer of experts that was cut, and what that saves.

    Empty where nothing was cut, and for a plan without its IR texts.
    """
    cells: list[tuple[str, ...]] = []
    for facts in chunk_facts(evidence):
        saved = facts.get("saved_s")
        cells.append(
            (
                str(facts["degree"]),
                str(facts["dim"]),
                "as asked" if saved is None else seconds(saved),
                f"{facts['op'].removeprefix('comm.')}[{facts['axis']}]",
                facts["id"],
                facts["loc"],
            )
        )
    if not cells:
        return []
    heads = ("pieces", "along dim", "saves a call", "cut with what it feeds", "id", "line")
    return ["", *table(heads, cells, right="rrr")]


def chunk_facts(evidence: Evidence) -> list[dict[str, Any]]:
    """Return what was cut: id, op, axis, degree, dim, line, and ``saved_s`` where a price chose.

    Empty where nothing was cut, and for a plan without its IR texts.
    """
    told = evidence.last.attributes.get(CHUNKS) if evidence.passes else None
    return to_python(cast("ArrayAttr[Attribute]", told)) if isinstance(told, ArrayAttr) else []


def batch_slices(evidence: Evidence) -> list[str]:
    """Return what pass slice-batch did: into how many slices of a batch, and what that saves.

    Empty where the batch is whole, and for a plan without its IR texts.
    """
    facts = slice_facts(evidence)
    if facts is None:
        return []
    ways, rows = facts["ways"], facts["rows"]
    saved = facts.get("saved_s")
    why = "as asked" if saved is None else f"saves {seconds(saved)} a call"
    sent = counted(facts["collectives"], "collective")
    return [
        "",
        f"batch in {ways} slices of {counted(rows // ways, 'sample')} of '{facts['input']}',"
        f" computed in turns: {why}; {sent} in {ways} parts",
    ]


def slice_facts(evidence: Evidence) -> dict[str, Any] | None:
    """Return into how many slices a batch was cut (``ways``), of what, and ``saved_s`` by price.

    None where the batch is whole, and for a plan without its IR texts.
    """
    told = evidence.last.attributes.get(SLICES) if evidence.passes else None
    return to_python(told) if isinstance(told, DictionaryAttr) else None
