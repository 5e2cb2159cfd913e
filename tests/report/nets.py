"""Small modules whose plans are explained and exported."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """An MLP with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96)
        self.down = nn.Linear(96, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the product to the residual."""
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Three equal blocks and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Odd(nn.Module):
    """A product, and an op that no rule can split."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Multiply, then exponentiate the matrix."""
        return torch.linalg.matrix_exp(x @ y)


class Layer(nn.Module):
    """A transformer's layer with its attention written for any number of heads."""

    def __init__(self, hidden: int = 32, head: int = 8) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention and MLP to the residual."""
        h = self.norm1(x)
        q, k, v = (
            part.unflatten(2, (-1, self.head)).transpose(1, 2)
            for part in (self.q(h), self.k(h), self.v(h))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(52, 32)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 52, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)


def net() -> tuple[nn.Module, torch.Tensor]:
    """Return three blocks and an input."""
    torch.manual_seed(7)
    return Net(), torch.randn(6, 5, 48)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Return a transformer and tokens."""
    torch.manual_seed(8)
    return Transformer(), torch.randint(0, 52, (3, 12))
