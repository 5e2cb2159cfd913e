"""One program of the floor benchmark, and what makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        make: returns a function or module, and its inputs.
        trains: its result has gradients with respect to floating-point inputs or parameters.
    """

    make: Callable[[], tuple[Callable[..., Any], Tensors]]
    trains: bool = True


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def f64(*shape: int) -> torch.Tensor:
    return randn(*shape, dtype=torch.float64)


def spd(n: int) -> torch.Tensor:
    a = f64(n, n)
    return a @ a.T + n * torch.eye(n, dtype=torch.float64)


def of(fn: Callable[..., Any], *inputs: torch.Tensor, trains: bool = True) -> Case:
    return Case(lambda: (fn, tuple(x.clone() for x in inputs)), trains)


def module(make: Callable[[], nn.Module], *inputs: torch.Tensor, trains: bool = True) -> Case:
    """Return the case of a module."""

    def made() -> tuple[nn.Module, Tensors]:
        torch.manual_seed(0)
        return make(), inputs

    return Case(made, trains)
