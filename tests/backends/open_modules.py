"""Modules that are compiled once for all sizes, and the sizes that they are called at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 32, 2
Call = tuple[torch.Tensor, ...]


class Block(nn.Module):
    """A norm, attention, and a layer: each class of kernels that takes sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, WIDTH] of the same."""
        batch, tokens, _ = x.shape
        heads = self.qkv(self.norm(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, tokens, WIDTH)
        return x + self.down(F.gelu(self.up(x)))


class Scores(nn.Module):
    """Products and a softmax whose rows are as long as the input says."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return [n, m] of [n, 24] and [m, 24], each row divided by how many there are."""
        return (x @ y.T).softmax(-1) / x.shape[0] + x.mean(0).sum()


def modules() -> Mapping[str, tuple[nn.Module, Sequence[Call]]]:
    """Return modules and calls: the first one, those of other sizes, then 1 and 0 of something."""
    torch.manual_seed(0)
    blocks = [(torch.randn(*size, WIDTH),) for size in ((2, 13), (3, 17), (2, 70), (5, 40))]
    scores = [(torch.randn(n, 24), torch.randn(m, 24)) for n, m in ((13, 17), (40, 30), (14, 300))]
    return {"block": (Block().eval(), blocks), "scores": (Scores().eval(), scores)}


def edges() -> Mapping[str, tuple[nn.Module, Sequence[Call]]]:
    """Return calls of sizes 1 and 0, which have plans of their own."""
    usual = modules()
    torch.manual_seed(1)
    blocks = [(torch.randn(*size, WIDTH),) for size in ((1, 9), (3, 1), (0, 5))]
    return {"block": (usual["block"][0], [usual["block"][1][0], *blocks])}
