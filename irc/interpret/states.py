"""States of an optimiser as a check of a training step wants them: as after some steps.

At the first step of Adam every moment is zero, and what a parameter moves by is ``g / |g|``: the
sign of a gradient, which rounding decides wherever that is small. No float32 program agrees with
another there, so a wrong update could not be told from a right one. A check starts from moments
that a step has left behind, and from second moments that are alike in all elements of a tensor, so
that no element of the update is more sensitive than the gradient itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.interpret.flow import run_function
from irc.sharding.padding import names_of_padded
from irc.training.optimizers import SQUARES

if TYPE_CHECKING:
    import torch

PREFIX = "optimizer."
"""Names of an optimiser's states start so (`irc.training.update`)."""


def moving(captured: ModuleOp, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return arguments with the optimiser's states as a step leaves them; others as they are.

    Args:
        captured: level flow; a program without an optimiser is not run.
        tensors: all arguments in order.
    """
    func = entry(captured)
    signature = arguments(func)
    if not any(role == "state" and name.startswith(PREFIX) for role, name, _ in signature):
        return tensors
    moved, rows = _states(captured, tensors), names_of_padded(func)
    return [
        _alike(name, moved[name], rows.get(name)) if role == "state" and name in moved else tensor
        for (role, name, _), tensor in zip(signature, tensors, strict=True)
    ]


def _states(captured: ModuleOp, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run a step in float32 and return the optimiser's states after it."""
    outputs = run_function(captured, tensors)
    named = zip(results(entry(captured)), outputs, strict=True)
    return {n: value for (role, n), value in named if role == "state" and n.startswith(PREFIX)}


def _alike(name: str, state: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Give all elements of a second moment their mean, but for rows that are padding."""
    if name.removeprefix(PREFIX).partition(".")[0] not in SQUARES or not state.numel():
        return state
    alike = state.mean().expand(state.shape).clone()
    if rows is not None:
        alike[rows:] = 0
    return alike
