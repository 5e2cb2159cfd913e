"""Activations by the names that ``irc::experts`` knows them by (`irc.runtime.experts`)."""

from __future__ import annotations

from typing import Any

from torch import nn


def activation(function: Any) -> str:
    """Return the name of an activation; empty where ``irc::experts`` does not know it."""
    kind = type(function).__name__
    if isinstance(function, nn.GELU):
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    if kind == "GELUTanh":
        return "gelu_tanh"
    names = {"SiLU": "silu", "SiLUActivation": "silu", "ReLU": "relu", "GELUActivation": "gelu"}
    return names.get(kind, "")
