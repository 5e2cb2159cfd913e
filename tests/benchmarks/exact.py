"""A model in float64, integer weights as the numbers that they stand for: what errors refer to."""

# pyright: basic
from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

import irc
from irc.weight_only import QuantizedLinear


def float64_of(module: nn.Module) -> nn.Module:
    """Return a copy in float64; layers of integer weights become plain ones."""
    wide = deepcopy(module)
    for name, layer in list(wide.named_modules()):
        if isinstance(layer, QuantizedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            plain.weight.data = layer.dequantized()[:, : layer.in_features].double()
            if layer.bias is not None:
                plain.bias.data = layer.bias.data
            parent, _, own = name.rpartition(".")
            setattr(wide.get_submodule(parent), own, plain)
    return wide.double()


def rounded(contender: str, module: nn.Module) -> nn.Module:
    """Return the module whose weights a contender computes with."""
    for bits in (4, 8):
        if f"int{bits} weights" in contender:
            return irc.quantize(deepcopy(module), bits=bits)
    return module


def first_output(module: nn.Module, inputs: tuple[Any, ...]) -> torch.Tensor:
    """Run a module in float64 and return its first result."""
    wide = [v.double() if torch.is_tensor(v) and v.is_floating_point() else v for v in inputs]
    with torch.no_grad():
        output = float64_of(module)(*wide)
    return output[0] if isinstance(output, tuple) else output


def error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((output.double() - expected).abs().max() / expected.abs().max())
