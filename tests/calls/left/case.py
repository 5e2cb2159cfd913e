"""One call, and numbers for it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Call(NamedTuple):
    """What is compiled, and what it is called with."""

    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


def numbers(*shape: int) -> Tensor:
    """Return the same random numbers for a shape each time."""
    source = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=source)


def cases_of(*modules: ModuleType) -> dict[str, Callable[[], Call]]:
    """Return the cases that modules define, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Call"
    }
