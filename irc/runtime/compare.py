"""Holding a plan's outputs against eager: the captured model, run by the interpreter of flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from irc.dialects.builder import arguments, entry, results
from irc.errors import printable
from irc.interpret.flow import run_function
from irc.interpret.levels import difference
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.runtime.code import load_program

TOLERANCE = 1e-4
"""Relative to the largest magnitude of an output."""

HALF_SLACK = 4.0
"""How many times eager's own error a plan may have, where eager is itself worse than that."""


@dataclass(frozen=True)
class Comparison:
    """How far a plan's outputs are from the model.

    Attributes:
        max_abs: largest difference from eager in the model's dtypes.
        relative: largest difference from eager in float64, relative to an output's magnitude.
        eager_relative: the same of eager in the model's dtypes: what rounding alone does.
        where: the tensor that the relative errors are of, where each has a limit of its own.
    """

    max_abs: float
    relative: float
    eager_relative: float
    where: str = ""

    @property
    def ok(self) -> bool:
        """True where the difference is rounding."""
        return self.relative <= max(TOLERANCE, HALF_SLACK * self.eager_relative)


def compare(
    loaded: LoadedPlan,
    weights: Mapping[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> Comparison | None:
    """Compare outputs with eager in the model's dtypes and in float64; None without the model's IR.

    Args:
        loaded: the plan; its first IR file is the captured model.
        weights: whole, by name, as they were before the run.
        inputs: whole, in the plan's order.
        outputs: of the plan.

    Raises:
        IrcError: ``plan-corrupt`` where the captured model has arguments that the plan has not.
    """
    texts = loaded.ir()
    if not texts:
        return None
    name, text = next(iter(texts.items()))
    module = load_program(loaded, text, name)
    plan = loaded.plan
    tensors = dict(weights)
    tensors |= {plan.buffers[i].name: x for i, x in zip(plan.inputs, inputs, strict=True)}
    names = [argument for _, argument, _ in arguments(entry(module))]
    if unknown := [each for each in names if each not in tensors]:
        raise corrupt(f"{name} has an argument '{printable(unknown[0])}', which the plan has not")
    ordered = [tensors[each] for each in names]
    # States go into weights; one that is an input's new value is an output of the plan.
    # What ranks hold between calls is no output, or on each rank a part of one.
    held = {plan.buffers[i].name for i in plan.inputs if plan.buffers[i].role == "cache"}
    parts = {plan.buffers[i].name for i in plan.outputs if plan.buffers[i].placement}
    shown = [
        name not in parts if role != "state" else name not in weights and name not in held
        for role, name in results(entry(module))
    ]
    outputs = [
        value
        for i, value in zip(plan.outputs, outputs, strict=True)
        if not plan.buffers[i].placement
    ]
    with torch.no_grad():
        eager = _outputs(run_function(module, ordered), shown)
        exact = _outputs(run_function(module, ordered, dtype=torch.float64), shown)
    return Comparison(
        max((_max_abs(a, b) for a, b in _pairs(outputs, eager)), default=0.0),
        max((difference(a, b) for a, b in zip(outputs, exact, strict=True)), default=0.0),
        max((difference(a, b) for a, b in zip(eager, exact, strict=True)), default=0.0),
    )


def _outputs(values: Sequence[torch.Tensor], shown: Sequence[bool]) -> list[torch.Tensor]:
    return [value for value, is_output in zip(values, shown, strict=True) if is_output]


def _pairs(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return results and what they are held against.

    Raises:
        IrcError: ``plan-corrupt`` where the plan's actions and its ``ir/`` are two programs.
    """
    shapes, wanted = ([tuple(value.shape) for value in each] for each in (outputs, eager))
    if shapes != wanted:
        raise corrupt(f"the plan gives results of shapes {shapes}, the program in ir/ {wanted}")
    return list(zip(outputs, eager, strict=True))


def _max_abs(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.numel() == 0:
        return 0.0
    return float((a.to(torch.float64) - b.to(torch.float64)).abs().nan_to_num(0.0).max())
