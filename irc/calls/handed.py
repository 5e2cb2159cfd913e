"""Calls of one kind that go straight to torch, and by torch's compiler again now and then.

What such calls do may change where their arguments do not: a module's own attributes, how torch's
compiler is set. A call in many looks whether there is something to compile by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from irc.calls.direct import MISS, Direct

FIRST_LOOK, APART = 64, 4
"""After how many calls there is a look, and how many times as many lie between it and the next."""


class Handed:
    """The short way of one kind of calls.

    Args:
        direct: runs a call, or says that it is of another kind.
        parts: modules that are called, in the modes that they are in now.

    Attributes:
        looks: the last call was given back, to be run by way of torch's compiler.
    """

    def __init__(self, direct: Direct, parts: Sequence[nn.Module]) -> None:
        self._direct, self._parts = direct, parts
        self._modes = modes_of(parts)
        self._left = self._pause = FIRST_LOOK
        self.looks = False

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run a call, or return ``MISS``."""
        if self._modes != modes_of(self._parts):
            return MISS
        self._left -= 1
        if not self._left:
            self._pause *= APART
            self._left, self.looks = self._pause, True
            return MISS
        return self._direct(args)


def modes_of(parts: Sequence[nn.Module]) -> tuple[bool, ...]:
    """Return which modules are in training mode."""
    return tuple([each.training for each in parts])


def compiles() -> bool:
    """Return whether torch's compiler is set to compile: a call says little where it is not."""
    dynamo: Any = torch._dynamo  # pyright: ignore[reportPrivateUsage]
    return dynamo.eval_frame._stance.stance == "default" and not dynamo.config.disable
