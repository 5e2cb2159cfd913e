"""All facts of a plan, collected from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from irc.report.evidence import Evidence
from irc.report.groups import Group, fusion_groups
from irc.report.ops import OpRow, Ops
from irc.report.summary import weight_bytes
from irc.report.timing import ActionRow, Split, action_rows, split
from irc.report.traffic import Collective, Traffic
from irc.report.unsplit import idle_lines
from irc.report.weights import ArgumentRow, argument_rows
from irc.sharding.saved import saved_by_cuts


@dataclass(frozen=True)
class Explanation:
    """All facts of a plan; JSON has these fields."""

    hash: str
    mesh: dict[str, int]
    cluster: str
    backend: str
    blocks: dict[str, int]
    time: Split
    weight_bytes: int
    arena_bytes: int
    arena_lower_bytes: int
    search: dict[str, Any]
    arguments: list[ArgumentRow]
    actions: list[ActionRow]
    ops: list[OpRow]
    collectives: list[Collective]
    fallbacks: list[OpRow]
    fusion: list[Group]
    idle: list[str]


def gather(evidence: Evidence) -> Explanation:
    """Collect the facts of a plan."""
    plan = evidence.plan
    rows = Ops(evidence).rows()
    return Explanation(
        evidence.loaded.hash,
        dict(plan.device_mesh.axes),
        evidence.cluster,
        plan.backend,
        {name: n for name, n in evidence.counts.items() if name != "forward"},
        split(plan),
        weight_bytes(plan),
        plan.arena_bytes,
        plan.arena_lower_bytes,
        _search(evidence),
        argument_rows(evidence),
        action_rows(plan),
        rows,
        Traffic(evidence).rows(),
        [row for row in rows if row.assumed or row.replicated_only],
        fusion_groups(evidence),
        idle_lines(plan),
    )


def _search(evidence: Evidence) -> dict[str, Any]:
    """Return what the search said of its choice, and the seconds that later cuts save of it."""
    search = {key: value for key, value in evidence.search.items() if key != "ops"}
    if search and (saved := saved_by_cuts(evidence.last)):
        search["saved_by_cuts_s"] = saved
    return search
