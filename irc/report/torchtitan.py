"""The section ``[parallelism]`` of a torchtitan configuration."""

from __future__ import annotations

from irc.dialects.placement import B
from irc.report.axes import MEANING, Role
from irc.report.exported import Export

KEYS: dict[Role, str] = {
    "data": "data_parallel_replicate_degree",
    "sharded data": "data_parallel_shard_degree",
    "sequence": "context_parallel_degree",
    "tensor": "tensor_parallel_degree",
}
"""In the order of torchtitan's mesh, outermost first."""


def parallelism_section(export: Export) -> str:
    """Write the degrees that a plan's mesh stands for, and what they cannot say."""
    mesh = export.evidence.mesh
    degrees = dict.fromkeys(KEYS.values(), 1)
    lines = [f"# Plan {export.evidence.loaded.hash[:16]}: {mesh}, priced for a cluster of irc's."]
    order: list[str] = []
    for axis, role in export.roles.items():
        lines.append(f"# {axis}: {MEANING[role]}")
        if role in KEYS:
            degrees[KEYS[role]] *= mesh.size(axis)
            order.append(KEYS[role])
    lines += _notes(export, order)
    lines += ["[parallelism]", *(f"{key} = {degree}" for key, degree in degrees.items())]
    lines += ["pipeline_parallel_degree = 1", f"disable_loss_parallel = {_flag(not _loss(export))}"]
    return "\n".join(lines) + "\n"


def _notes(export: Export, order: list[str]) -> list[str]:
    notes: list[str] = []
    if any(role == "whole" for role in export.roles.values()):
        notes.append("an axis that splits nothing has no key: start fewer processes")
    if order != sorted(order, key=list(KEYS.values()).index):
        notes.append("torchtitan's mesh has its axes in another order, so ranks hold other shards")
    axis = export.tensor_axis
    if axis and not export.styles[axis].norms:
        notes.append(
            "torchtitan adds sequence parallelism to tensor parallelism; the plan does not"
        )
    return [f"# Note: {note}." for note in notes]


def _loss(export: Export) -> bool:
    """Return whether the logits stay split over the vocabulary: the last product gives shards."""
    axis = export.tensor_axis
    if not axis or not export.styles[axis].modules:
        return False
    last = list(export.styles[axis].modules.values())[-1]
    return last.name == "ColwiseParallel" and last.gives != B


def _flag(value: bool) -> str:
    return "true" if value else "false"
