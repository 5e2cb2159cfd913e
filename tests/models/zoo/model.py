"""What an entry of the zoo is: how to build a model, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, VOCAB = 4, 7, 132


@dataclass(frozen=True)
class Model:
    """An architecture of transformers, unmodified, small and with random weights.

    Attributes:
        name: of the architecture.
        build: makes it, in evaluation mode.
        inputs: keyword arguments of a call.
        labels: what a call takes besides to compute its loss.
        widened: whether its casts to float32 are casts to float64 when it is captured for float64;
            torch.export refuses that for a number that becomes a tensor.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Mapping[str, Any]
    labels: Mapping[str, Any] = field(default_factory=dict)
    widened: bool = True

    @property
    def with_loss(self) -> dict[str, Any]:
        """Arguments of a call that computes the loss."""
        return {**self.inputs, **self.labels}


def made(cls: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Return what builds ``transformers.cls(transformers.config(**sizes))``."""

    def build() -> nn.Module:
        import transformers

        torch.manual_seed(7)
        module = getattr(transformers, cls)(getattr(transformers, config)(**sizes)).eval()
        _enliven(module)
        return module

    return build


def _enliven(module: nn.Module) -> None:
    """Move parameters that start as zeros and ones: a wrong gradient of them must show."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for value in module.parameters():
            if value.numel() > 1 and float(value.std()) == 0:
                value.add_(0.1 * torch.randn(value.shape, generator=generator))


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Random whole numbers."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def real(*shape: int, seed: int = 0) -> Tensor:
    """Random real numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(seed: int = 0, length: int = TOKENS) -> Tensor:
    """Token numbers, without those of the first special ones."""
    return whole(VOCAB - 4, BATCH, length, seed=seed) + 4


def targets(seed: int = 1, length: int = TOKENS) -> Tensor:
    """Labels of tokens, some of which do not count."""
    labels = tokens(seed, length)
    labels[0, 2:4] = -100
    return labels
