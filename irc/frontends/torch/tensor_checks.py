"""Whether traced code checks a tensor, which a program does not: it would answer all the same."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

CHECKS = (
    torch._assert_async,
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
)
"""What checks that a tensor of one element is not zero, and has no result."""

EFFECT = "a tensor is checked, by assert or torch._assert_async"


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
        del args, kwargs
        if function in CHECKS:
            self.effect = EFFECT
