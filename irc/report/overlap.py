"""``irc explain plan PLAN --overlap``: which collectives compute hides, and where it waits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from irc.cluster.load import THIS_HOST, find_cluster
from irc.plan.load import load_plan
from irc.plan.schema import Plan, Start, Wait
from irc.report.chunks import batch_slices, chunk_facts, chunks, slice_facts
from irc.report.evidence import Evidence
from irc.report.launches import launches, num_layers
from irc.report.rings import ring_facts, rings
from irc.report.table import counted, seconds, size, table
from irc.simulate.plan import Contention, predict, steps


@dataclass(frozen=True)
class Collective:
    """A collective of a predicted call.

    Attributes:
        start: the action.
        num_bytes: of what it gives a rank.
        begin_s, end_s: when it is on its link.
        bare_s: how long compute stands still at its wait.
    """

    start: Start
    num_bytes: int
    begin_s: float
    end_s: float
    bare_s: float


def collectives(plan: Plan, contention: Contention | None = None) -> list[Collective]:
    """Return the collectives of a predicted call of one rank, in the order in which they begin.

    Args:
        plan: of one program, or a function of one of several.
        contention: what its streams share; by default what the plan's cluster says.
    """
    if contention is None:
        contention = Contention.of(find_cluster(plan.cluster or THIS_HOST), plan.device_mesh)
    run = predict(plan, contention=contention)
    links = {
        a.after[0]: i for i, a in enumerate(run.actions) if a.stream.startswith("link ") and a.after
    }
    computes = [i for i, a in enumerate(run.actions) if a.stream == "compute"]
    order = steps(plan)
    on_link: dict[int, int] = {}
    bare: dict[int, float] = {}
    before = 0.0
    for (position, step), index in zip(order, computes, strict=True):
        if isinstance(step, Start):
            on_link[position] = links[index]
        elif isinstance(step, Wait):
            bare[step.start] = max(0.0, run.timeline.ends[index] - before)
        before = run.timeline.ends[index]
    rows: list[Collective] = []
    for position, step in order:
        if isinstance(step, Start):
            result, link = plan.buffers[step.outputs[0]], on_link[position]
            begin, end = run.timeline.starts[link], run.timeline.ends[link]
            rows.append(Collective(step, result.size_bytes, begin, end, bare[position]))
    return rows


def _facts(row: Collective) -> dict[str, Any]:
    return {
        "op": row.start.op,
        "axis": row.start.attrs["axis"],
        "id": row.start.id.removesuffix(".start"),
        "loc": row.start.loc,
        "bucket": row.start.attrs.get("bucket"),
        "bytes": row.num_bytes,
        "begin_s": row.begin_s,
        "end_s": row.end_s,
        "bare_s": row.bare_s,
    }


def explain_overlap(folder: str, *, as_json: bool = False) -> str:
    """Say how much of the communication is bare, and of which collectives, the worst first.

    Args:
        folder: a plan of one program.
        as_json: ``collectives`` in the order in which they begin, ``chunks`` that were cut,
            ``rings`` of attention, and ``batch_slices``, None where the batch is whole. Times are
            in seconds, sizes in bytes.
    """
    loaded = load_plan(folder)
    plan = loaded.plan
    rows, evidence = collectives(plan), Evidence(loaded)
    if as_json:
        facts: dict[str, Any] = {
            "collectives": [_facts(row) for row in rows],
            "chunks": chunk_facts(evidence),
            "rings": ring_facts(evidence),
            "batch_slices": slice_facts(evidence),
        }
        return json.dumps(facts, indent=1)
    if not rows:
        return "nothing is sent: the plan has no collectives"
    lines: list[str] = []
    for axis in dict.fromkeys(row.start.attrs["axis"] for row in rows):
        own = [row for row in rows if row.start.attrs["axis"] == axis]
        buckets = {row.start.attrs.get("bucket", row.start.id) for row in own}
        busy, bare = sum(r.end_s - r.begin_s for r in own), sum(r.bare_s for r in own)
        part = f"{bare / busy:.0%}" if busy else "nothing"
        lines.append(
            f"link {axis}: {counted(len(own), 'collective')} in"
            f" {len(buckets):,} {'launch' if len(buckets) == 1 else 'launches'},"
            f" {seconds(busy)} in all,"
            f" of which compute waits for {seconds(bare)} ({part})"
        )
    cells = [
        (
            seconds(row.bare_s),
            seconds(row.end_s - row.begin_s),
            seconds(row.begin_s),
            size(row.num_bytes),
            f"{row.start.op.removeprefix('comm.')}[{row.start.attrs['axis']}]",
            row.start.id.removesuffix(".start"),
            row.start.loc,
        )
        for row in sorted(rows, key=lambda row: (-row.bare_s, row.begin_s))
    ]
    heads = ("bare", "time", "begins at", "bytes", "collective", "id", "line")
    said = (
        "Collectives of one bucket are one launch. One that was packed stands for those that were"
        " joined; its line is that of the first."
    )
    return "\n".join(
        [
            *lines, "", *_launches(plan), "", *table(heads, cells, right="rrrr"), "", said,
            *chunks(evidence), *rings(evidence), *batch_slices(evidence),
        ]
    )  # fmt: skip


def _launches(plan: Plan) -> list[str]:
    """Say how many collectives each direction has, and how many that is a layer."""
    layers, rows = num_layers(plan), launches(plan)
    heads, right = ["read by", "collective", "tensors", "launches"], "llrr"
    cells = [
        [row.direction, f"{row.op}[{row.axis}]", str(row.num_tensors), str(row.num_launches)]
        for row in rows
    ]
    if layers:
        heads, right = [*heads, f"a layer of {layers}"], right + "r"
        cells = [
            [*own, f"{row.num_launches / layers:.1f}"] for own, row in zip(cells, rows, strict=True)
        ]
    return table(heads, cells, right=right)
