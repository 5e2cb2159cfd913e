"""The transformer layer of Korthikanti et al. 2022 (arXiv:2205.05198): attention in its parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Norm, attention and a residual; norm, a GELU network and a residual; dropout in each."""

    def __init__(self, hidden: int, heads: int, rate: float = 0.1) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def drop(self, x: Tensor) -> Tensor:
        """Drop some and scale up the others."""
        return F.dropout(x, self.rate, self.training)

    def attend(self, x: Tensor) -> Tensor:
        """Attend to all tokens."""
        b, s, h = x.shape
        q, k, v = (
            project(x).view(b, s, self.heads, h // self.heads).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(h // self.heads)
        chances = self.drop(torch.softmax(scores, -1))
        return self.out((chances @ v).transpose(1, 2).reshape(b, s, h))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result, [b, s, h]."""
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Stack(nn.Module):
    """Layers, and the mean square of the last as a loss."""

    def __init__(self, hidden: int, heads: int, layers: int, rate: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden, heads, rate) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        for layer in self.layers:
            x = layer(x)
        return (x.float() ** 2).mean()
