"""Draws that torch refuses by the values of a tensor: those of ``torch.bernoulli``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

REFUSED = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
"""What torch says of numbers that are no probabilities."""

EFFECT = "torch.bernoulli checks that it is given probabilities"

_TORCH: Any = torch
OF_SELF = (
    _TORCH.bernoulli,
    torch.Tensor.bernoulli,
    torch.ops.aten.bernoulli.default,
    "bernoulli",
)
"""Functions, and the name of a method, that draw by their first argument where it is alone."""

OF_OTHER = (torch.Tensor.bernoulli_, "bernoulli_")
"""Those that write to their first argument and may take a second one for probabilities."""


def probabilities_of(
    function: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return what a call draws by, which torch checks; None where it takes none, or a number."""
    if function in OF_OTHER:
        p = args[1] if len(args) > 1 else kwargs.get("p")
        return None if isinstance(p, int | float) else p
    if function not in OF_SELF or len(args) > 1 or kwargs.get("p") is not None:
        return None
    return args[0] if args else kwargs.get("input")
