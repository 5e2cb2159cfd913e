"""The models of published training runs, on the meta device: GPT as Megatron-LM has it, and Llama.

A model is cut to a few layers where its block is priced (`tests.benchmarks.published_predict`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """What a model is.

    Attributes:
        hidden, heads, kv_heads, ffn, vocab, seq: as usual.
        is_llama: RMS norms, gated units and rotary positions, without biases; otherwise GPT.
        is_flash: attention is one kernel; otherwise scores are stored, as before mid 2022.
        is_tied: the head has the weights of the embedding.
    """

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    is_llama: bool = False
    is_flash: bool = True
    is_tied: bool = False

    @property
    def width(self) -> int:
        """Features of a head."""
        return self.hidden // self.heads


class Attention(nn.Module):
    """Causal self-attention; a head's q, k and v lie together in the fused weight."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        groups = s.heads // s.kv_heads + 2
        self.qkv = nn.Linear(s.hidden, s.kv_heads * groups * s.width, bias=not s.is_llama)
        self.out = nn.Linear(s.hidden, s.hidden, bias=not s.is_llama)

    def forward(self, x: Tensor, turn: Tensor | None) -> Tensor:
        s, (batch, rows, _) = self.s, x.shape
        groups = s.heads // s.kv_heads
        parts = self.qkv(x).view(batch, rows, s.kv_heads, groups + 2, s.width)
        q = parts[:, :, :, :groups].reshape(batch, rows, s.heads, s.width).transpose(1, 2)
        k, v = parts[:, :, :, groups].transpose(1, 2), parts[:, :, :, groups + 1].transpose(1, 2)
        if turn is not None:
            q, k = rotated(q, turn), rotated(k, turn)
        if s.is_flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups > 1)
        else:
            mask = torch.ones(rows, rows, dtype=torch.bool, device=x.device).tril()
            scores = (q @ k.transpose(-1, -2)) * s.width**-0.5
            y = scores.masked_fill(~mask, -1e4).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, rows, s.hidden))


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Return x, (batch, heads, rows, width), turned by angles of (2, rows, width)."""
    low, high = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-high, low], -1) * turn[1]


class Block(nn.Module):
    """A layer of GPT or of Llama."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.norm1, self.norm2 = norm_of(s), norm_of(s)
        self.attention = Attention(s)
        self.up = nn.Linear(s.hidden, s.ffn, bias=not s.is_llama)
        self.gate = nn.Linear(s.hidden, s.ffn, bias=False) if s.is_llama else None
        self.down = nn.Linear(s.ffn, s.hidden, bias=not s.is_llama)

    def forward(self, x: Tensor, turn: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), turn)
        y = self.norm2(x)
        if self.gate is None:
            return x + self.down(F.gelu(self.up(y), approximate="tanh"))
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def norm_of(s: Sizes) -> nn.Module:
    """Return a layer's normalisation."""
    return nn.RMSNorm(s.hidden) if s.is_llama else nn.LayerNorm(s.hidden)


class LanguageModel(nn.Module):
    """``forward(ids, labels)``, int64 of (batch, rows): the mean loss of the tokens."""

    def __init__(self, s: Sizes, layers: int) -> None:
        super().__init__()
        self.s = s
        self.embedding = nn.Embedding(s.vocab, s.hidden)
        self.positions = None if s.is_llama else nn.Embedding(s.seq, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(layers))
        self.norm = norm_of(s)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        if s.is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, turn = self.embedding(ids), None
        if self.positions is not None:
            x = x + self.positions.weight
        else:
            turn = self.angles(ids.device, x.dtype)
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x)).float().view(-1, self.s.vocab)
        # Written out, so that logits are stored, as by the systems that ran these models: a
        # cross-entropy of torch would be computed in blocks of rows, its logits twice.
        picked = logits.gather(1, labels.view(-1, 1))
        return (logits.exp().sum(1).log() - picked[:, 0]).mean()

    def angles(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return cosines and sines of rotary positions, (2, rows, width)."""
        half = torch.arange(0, self.s.width, 2, device=device, dtype=torch.float32)
        turns = torch.arange(self.s.seq, device=device, dtype=torch.float32)[:, None]
        angle = (turns * 5e5 ** (-half / self.s.width)).repeat(1, 2)
        return torch.stack([angle.cos(), angle.sin()]).to(dtype)


def model_of(s: Sizes, layers: int, dtype: torch.dtype) -> LanguageModel:
    """Return a model on the meta device."""
    with torch.device("meta"):
        return LanguageModel(s, layers).to(dtype).train()
