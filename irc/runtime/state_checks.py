"""What a state that is given, or stored, is held against: names, shapes, and having a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from irc.errors import IrcError, did_you_mean


def check_shape(name: str, value: Any, expected: tuple[int, ...]) -> None:
    """Hold a tensor of a given state against the step's.

    Raises:
        IrcError: ``state-mismatch``.
    """
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != expected:
        actual = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise mismatch(f"'{name}' is {actual}; the step has {list(expected)}", "")


def check_names(
    stored: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Hold the names and shapes of a module's stored tensors against its own.

    Raises:
        IrcError: ``state-mismatch``.
    """
    for name, shape in own.items():
        if name not in stored:
            raise mismatch(f"{where} lacks '{name}'", did_you_mean(name, stored))
        if stored[name] != shape:
            raise mismatch(
                f"'{name}' is {list(stored[name])} in {where}; the module has {list(shape)}", ""
            )
    for name in stored:
        if name not in own:
            raise mismatch(f"the module has no '{name}' as {where}", did_you_mean(name, own))


def no_value(name: str) -> IrcError:
    """Return the error of a parameter that is on the meta device still."""
    return IrcError(
        "weights-missing",
        f"'{name}' has no value yet",
        because="the module is on the meta device until the first step, or "
        "step.prepare(*batch), initialises the parts of each rank",
        help="save it after that",
    )


def mismatch(message: str, advice: str) -> IrcError:
    """Return the error of a state that is not the step's, and what to do."""
    return IrcError("state-mismatch", message, help=advice)
