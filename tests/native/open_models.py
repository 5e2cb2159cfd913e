"""Small modules whose programs leave sizes open."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Encoder(nn.Module):
    """Look-ups, causal attention, matmuls, a table of positions: indices, scratch memory, views.

    Takes ids [batch, tokens] and scale [tokens, 24], as open as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 24)
        self.position = nn.Parameter(torch.randn(300, 24))
        self.qkv = nn.Linear(24, 72)
        self.norm = nn.LayerNorm(24)
        self.out = nn.Linear(24, 17)

    def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        h = self.table(ids) + self.position[: ids.shape[1]]
        batch, tokens, _ = h.shape
        q, k, v = (
            x.view(batch, tokens, 3, 8).transpose(1, 2) for x in self.qkv(h).chunk(3, dim=-1)
        )
        a = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        y = self.out(self.norm(h + a.reshape(batch, tokens, 24)) * scale)
        return torch.softmax(y, -1), y.transpose(1, 2)


class Pictures(nn.Module):
    """Convolutions over [batch, 3, 9, 11], dense and depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 20, 3, padding=1)
        self.depthwise = nn.Conv2d(20, 20, 3, groups=20)
        self.out = nn.Linear(20, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.depthwise(torch.relu(self.conv(x)))
        return self.out(h.mean((2, 3))), h.transpose(2, 3)


class Counter(nn.Module):
    """Keeps a running sum of the rows that it is given, [rows, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.add_(x.sum(0))
        return self.seen * 2, x.T


class Sorted(nn.Module):
    """A kernel that is made for each size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values + 1


class Factored(nn.Module):
    """An op that torch runs, between kernels."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, r = torch.linalg.qr(x.exp())
        return q.relu() + 1, r
