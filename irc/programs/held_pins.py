"""Constraints by which another plan of a model lies as one does: its stages, and its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Placement
from irc.plan.schema import Plan, placement_of
from irc.training.projections import known_names


def names_by_stage(module: ModuleOp) -> dict[int, list[str]]:
    """Return by stage the parameters and buffers that an op of it reads before any other does.

    Of slices, that is the whole weight.

    Args:
        module: in which the pass that cuts has left its marks.
    """
    func = entry(module)
    known = known_names(func)
    names = {v: known[v] for role, _, v in arguments(func) if role in ("parameter", "buffer")}
    stages: dict[int, list[str]] = {}
    read: set[str] = set()
    for op in func.body.block.ops:
        if not isinstance(stage := op.attributes.get("stage"), IntegerAttr):
            continue
        for value in op.operands:
            if (name := names.get(value, "")) and name not in read:
                read.add(name)
                stages.setdefault(stage.value.data, []).append(name)
    return stages


def stage_pins(stages: Mapping[int, Sequence[str]]) -> str:
    """Return constraints by which stages have these parameters.

    >>> stage_pins({0: ["tok", "l.0.w"]})
    'stage "tok", "l.0.w" = 0'
    """
    lines = {stage: ", ".join(f'"{name}"' for name in own) for stage, own in stages.items() if own}
    return "\n".join(f"stage {names} = {stage}" for stage, names in lines.items())


def weight_pins(plans: Iterable[Plan], gone: Collection[str] = ()) -> list[str]:
    """Return constraints by which weights, states and accumulators lie as they do in plans.

    Args:
        plans: of one mesh.
        gone: names of weights that the other plan has not; their states are left out, too.
    """
    placements: dict[str, Placement] = {}
    for plan in plans:
        whole = Placement.replicated(plan.device_mesh.names)
        for index in plan.weights if plan.device_mesh.axes else ():
            buffer = plan.buffers[index]
            if buffer.role != "constant":
                placement = placement_of(buffer)
                placements[buffer.name] = placement if placement.axes else whole
    return [f'"{name}" = {at}' for name, at in placements.items() if not _is_of(name, gone)]


def _is_of(name: str, weights: Collection[str]) -> bool:
    """True for one of some weights, and for a state or an accumulator of one."""
    ends = name.split(".")
    return any(".".join(ends[i:]) in weights for i in range(len(ends)))
