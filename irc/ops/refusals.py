"""Why an op stays whole along a dim: what a user is told who asks for a split that no rule has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from irc.ops.custom import declaration

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp

REASONS: Mapping[str, str] = {
    "flow.reshape": "only the leading factor of a merged dim is contiguous on a rank",
    "flow.slice": "a dim that is sliced or stepped through is whole",
    "flow.pad": "a dim that is padded is whole",
    "flow.concat": "the joined dim is whole",
}
"""By op: in one sentence, which dims stay whole and why."""


def refusal(op: FlowOp) -> list[str]:
    """Return why splits of an op are refused, as far as its kind says."""
    if op.RECORD is not None:
        return [op.RECORD.refusal] if op.RECORD.refusal else []
    if op.name != "flow.extern":
        return [REASONS[op.name]] if op.name in REASONS else []
    target = op.plain["target"]
    known = declaration(target)
    if "rule" in op.plain or (known is not None and known.rule):
        return [f"the rule declared for {target} is all that is known of it"]
    return [f"{target} declares no rule, so it is replicated: see irc.register_op"]
