"""The fusion groups of a plan, each with the reason that the pass gave."""

from __future__ import annotations

from dataclasses import dataclass

from irc.dialects.builder import functions
from irc.dialects.flow import FlowOp, FusionOp, YieldOp, id_of, loc_of
from irc.report.evidence import Evidence
from irc.report.ops import label
from irc.search.facts import call_counts


@dataclass(frozen=True)
class Group:
    """Ops that one kernel computes."""

    id: str
    kind: str
    runs: int
    ops: tuple[str, ...]
    why: str
    loc: str


def fusion_groups(evidence: Evidence) -> list[Group]:
    """Return the groups in program order; none where the plan has no IR after fuse."""
    if "fuse" not in evidence.passes:
        return []
    module = evidence.after("fuse")
    counts = call_counts(functions(module))
    return [
        Group(
            f"{name}/{id_of(op)}",
            op.kind,
            counts[name],
            tuple(
                f"{id_of(inner)} {label(inner)}"
                for inner in op.body.block.ops
                if isinstance(inner, FlowOp) and not isinstance(inner, YieldOp)
            ),
            _text(op, "why"),
            loc_of(op),
        )
        for name, func in functions(module).items()
        for op in func.body.block.ops
        if isinstance(op, FusionOp)
    ]


def _text(op: FlowOp, key: str) -> str:
    return str(getattr(op.attributes.get(key), "data", ""))
