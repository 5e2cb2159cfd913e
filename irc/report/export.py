"""``irc export``: a plan's placements in the words of other systems, to be used without irc.

parallelize-module   Python: a dictionary for torch.distributed.tensor.parallel
torchtitan           TOML: the section [parallelism]; of a plan in stages, all that a trainer needs
megatron             arguments of Megatron-LM; of a plan in stages only
json                 every placement, as DTensor and OneFlow write it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from irc.dialects.placement import B
from irc.errors import IrcError, did_you_mean
from irc.plan.parts_files import is_parts
from irc.report.axes import MEANING, Role, axis_roles
from irc.report.diff import alike
from irc.report.evidence import Evidence
from irc.report.styles import Style, Styles, styles_of
from irc.report.weights import Argument, entry_arguments
from irc.sharding.dtensor import to_dtensor


@dataclass(frozen=True)
class Export:
    """A plan, seen with the eyes of PyTorch."""

    evidence: Evidence

    @cached_property
    def roles(self) -> dict[str, Role]:
        """What each mesh axis is for."""
        return axis_roles(self.evidence)

    @cached_property
    def styles(self) -> dict[str, Styles]:
        """The parallel styles of each axis."""
        return {axis: styles_of(self.evidence, axis) for axis in self.evidence.mesh.names}

    @cached_property
    def tensor_axis(self) -> str:
        """The axis that parallelize_module is called with; it takes one only."""
        axes = [axis for axis, found in self.styles.items() if found.modules]
        return max(axes, key=lambda axis: len(self.styles[axis].modules), default="")

    @cached_property
    def parameters(self) -> list[Argument]:
        """The parameters and buffers."""
        held = ("parameter", "buffer", "state")
        return [one for one in entry_arguments(self.evidence) if one.role in held]

    def losses(self) -> list[str]:
        """Say what of the plan torch's styles do not express; indented lines go with the last."""
        found: list[str] = []
        if self.tensor_axis:
            styles = self.styles[self.tensor_axis]
            whys: dict[str, list[str]] = {}
            for name, why in styles.refused.items():
                whys.setdefault(why, []).append(name)
            found += [f"{', '.join(alike(names))}: {why}" for why, names in whys.items()]
            if styles.lost:
                reasons = alike(styles.lost)
                found.append(f"{WEAKER[styles.level]}; the plan's own layouts would be wrong here:")
                found += [f"  {reason}" for reason in reasons[:SHOWN]]
                found += [f"  and {len(reasons) - SHOWN} more"] * (len(reasons) > SHOWN)
            if styles.reshapes:
                lines = ", ".join(styles.reshapes)
                found.append(f"these reshape a shard, and must write -1 for the split dim: {lines}")
        return [*found, *self._other_axes(), *self._unstyled()]

    def _other_axes(self) -> list[str]:
        others = [a for a, s in self.styles.items() if s.modules and a != self.tensor_axis]
        found = [f"axis '{a}' splits weights as well; parallelize_module takes one" for a in others]
        return found + [
            f"axis '{axis}' {ADVICE[role]}" for axis, role in self.roles.items() if role in ADVICE
        ]

    def _unstyled(self) -> list[str]:
        """Name the parameters that are split on the tensor axis and belong to no style."""
        axes = [axis for axis, role in self.roles.items() if role == "tensor"]
        axis = self.tensor_axis or next(iter(axes), "")
        if not axis:
            return []
        whole: dict[str, list[str]] = {}
        for one in self.parameters:
            module = one.name.rpartition(".")[0]
            styled = module in self.styles[axis].modules or module in self.styles[axis].refused
            if not styled and one.placement is not None and one.placement[axis] != B:
                whole.setdefault(_shards(one, self.evidence), []).append(one.name)
        return [
            f"{', '.join(alike(names))}: {shards} in the plan, and whole here"
            for shards, names in whole.items()
        ]


SHOWN = 6

ADVICE: Mapping[Role, str] = {
    "data": "splits the batch: give each rank its part, and wrap the model in"
    " DistributedDataParallel to train it",
    "sharded data": "stores weights in parts: give each rank its part of the batch, and call"
    " torch.distributed.fsdp.fully_shard on each block",
    "sequence": "splits positions: torch.distributed.tensor.experimental.context_parallel does so",
    "whole": "splits nothing: its ranks compute the same",
}

WEAKER: Mapping[str, str] = {
    "pairs": "values between modules are whole, but inside column-row pairs",
    "alone": "values between modules are whole",
    "exact": "",
}


def export_plan(folder: str | Path, form: str) -> str:
    """Write a plan for another system.

    Args:
        folder: the plan.
        form: ``parallelize-module``, ``torchtitan``, ``megatron`` or ``json``.

    Raises:
        IrcError: for a folder that is no plan, or a plan for one device.
    """
    if form not in (known := (*FORMS, "megatron")):
        raise IrcError(
            "option-value", f"there is no format '{form}'", help=did_you_mean(form, known)
        )
    if is_parts(folder):
        return _in_stages(folder, form)
    evidence = Evidence.of(folder)
    if form == "megatron":
        raise IrcError(
            "option-value",
            "Megatron-LM is given arguments for a plan in stages, and this plan has none",
            help="irc compile --mesh pipe=2,data=2 --train adamw; irc plan -o FILE.args writes "
            "those of a search",
        )
    if not evidence.mesh.axes:
        raise IrcError(
            "option-value",
            "the plan is for one device: it has no placements to export",
            help="compile it with --mesh",
        )
    return FORMS[form](Export(evidence))


def _in_stages(folder: str | Path, form: str) -> str:
    from irc.plan.parts_files import load_parts
    from irc.report.pipeline_settings import pipeline_settings

    if form == "torchtitan" or form == "megatron":
        return pipeline_settings(load_parts(folder), form)
    raise IrcError(
        "option-value",
        f"a plan in stages is not written as {form}",
        because="the placements of a stage are those of a program of its own",
        help="irc export --format torchtitan, or megatron",
    )


def _python(export: Export) -> str:
    from irc.report.parallelize import python_source

    return python_source(export)


def _toml(export: Export) -> str:
    from irc.report.torchtitan import parallelism_section

    return parallelism_section(export)


def _json(export: Export) -> str:
    evidence = export.evidence
    return (
        json.dumps(
            {
                "plan": evidence.loaded.hash,
                "mesh": dict(evidence.mesh.axes),
                "cluster": evidence.cluster,
                "axes": {a: {"role": r, "meaning": MEANING[r]} for a, r in export.roles.items()},
                "arguments": {
                    one.name: {
                        "role": one.role,
                        "shape": list(one.shape),
                        "dtype": one.dtype,
                        "placements": list(_dtensor(one, evidence)),
                        "bytes_per_rank": one.bytes_per_rank,
                    }
                    for one in entry_arguments(evidence)
                },
                "modules": {
                    axis: {name: _style(style) for name, style in found.modules.items()}
                    for axis, found in export.styles.items()
                },
                "not_expressible": export.losses(),
            },
            indent=1,
        )
        + "\n"
    )


def _style(style: Style) -> dict[str, str]:
    return {"style": style.name, "input": str(style.given), "output": str(style.gives)}


def _dtensor(one: Argument, evidence: Evidence) -> tuple[str, ...]:
    return () if one.placement is None else to_dtensor(one.placement, evidence.mesh)


def _shards(one: Argument, evidence: Evidence) -> str:
    return f"[{', '.join(_dtensor(one, evidence))}]"


FORMS: Mapping[str, Callable[[Export], str]] = {
    "parallelize-module": _python,
    "torchtitan": _toml,
    "json": _json,
}
