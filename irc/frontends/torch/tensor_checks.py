"""Whether traced code checks a tensor, which a program does not: it would answer all the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from irc.frontends.torch import drawn_checks
from irc.frontends.torch.drawn_checks import probabilities_of
from irc.frontends.torch.gaussian_loss import looks_at_variances

_TORCH: Any = torch
CHECKS = (
    _TORCH._assert_async,
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
)
"""What checks that a tensor of one element is not zero, and has no result."""

EFFECT = "a tensor is checked, by assert, torch._check or torch._assert_async"


class CheckLeftOutWarning(UserWarning):
    """A tensor is checked by what is compiled, and the compiled program does not check it."""


def warn_of_checks(effect: str, where: str) -> None:
    """Say that checks of tensors are left out.

    Args:
        effect: what a call does besides, as a capture has it.
        where: of what they are no part.
    """
    if effect == EFFECT:
        text = f"{effect}: it is no part of {where}, which computes on where it does not hold"
        warnings.warn(text, CheckLeftOutWarning, stacklevel=3)


class TensorChecks:
    """Notes whether there is such a check.

    Attributes:
        effect: what traced code did, in words; nothing where it checked no tensor.
    """

    def __init__(self) -> None:
        self.effect = ""

    def note(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Look at a call before it runs."""
        if function in CHECKS or looks_at_variances(function, args, kwargs):
            self.effect = EFFECT
        elif probabilities_of(function, args, kwargs) is not None:
            self.effect = self.effect or drawn_checks.EFFECT

    def look(self, graph: GraphModule) -> None:
        """Look for numbers of tensors that a traced graph checks (``torch._check``)."""
        for node in graph.graph.nodes:
            if node.target is not torch.ops.aten._assert_scalar.default:
                continue
            number: Any = node.args[0]
            value: Any = number.meta.get("val") if isinstance(number, Node) else None
            if isinstance(value, torch.SymBool) and free_unbacked_symbols(value):
                self.effect = EFFECT
