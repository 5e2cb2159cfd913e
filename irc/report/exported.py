"""A plan as torch names its parallelism: styles by axis, and what they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from irc.dialects.placement import B
from irc.report.axes import Role, axis_roles
from irc.report.diff import alike
from irc.report.evidence import Evidence
from irc.report.styles import Styles, styles_of
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
        axes = [axis for axis, styles in self.styles.items() if styles.modules]
        return max(axes, key=lambda axis: len(self.styles[axis].modules), default="")

    @cached_property
    def parameters(self) -> list[Argument]:
        """The parameters and buffers."""
        held = ("parameter", "buffer", "state")
        return [one for one in entry_arguments(self.evidence) if one.role in held]

    def losses(self) -> list[str]:
        """Say what of the plan torch's styles do not express; indented lines go with the last."""
        losses: list[str] = []
        if self.tensor_axis:
            styles = self.styles[self.tensor_axis]
            whys: dict[str, list[str]] = {}
            for name, why in styles.refused.items():
                whys.setdefault(why, []).append(name)
            losses += [f"{', '.join(alike(names))}: {why}" for why, names in whys.items()]
            if styles.lost:
                reasons = alike(styles.lost)
                losses.append(
                    f"{WEAKER[styles.level]}; the plan's own layouts would be wrong here:"
                )
                losses += [f"  {reason}" for reason in reasons[:SHOWN]]
                losses += [f"  and {len(reasons) - SHOWN} more"] * (len(reasons) > SHOWN)
            if styles.reshapes:
                lines = ", ".join(styles.reshapes)
                losses.append(
                    f"these reshape a shard, and must write -1 for the split dim: {lines}"
                )
        return [*losses, *self._other_axes(), *self._unstyled()]

    def _other_axes(self) -> list[str]:
        others = [a for a, s in self.styles.items() if s.modules and a != self.tensor_axis]
        losses = [
            f"axis '{a}' splits weights as well; parallelize_module takes one" for a in others
        ]
        return losses + [
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


def dtensor_of(one: Argument, evidence: Evidence) -> tuple[str, ...]:
    """Return the placement of a parameter as DTensor writes it; empty where it has none."""
    return () if one.placement is None else to_dtensor(one.placement, evidence.mesh)


def _shards(one: Argument, evidence: Evidence) -> str:
    return f"[{', '.join(dtensor_of(one, evidence))}]"
