"""Models as chains of layers, which both irc and torch.distributed.pipelining can cut."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, TOKENS = 512, 64


class Chain(nn.Module):
    """Layers, each of which takes what the one before gives."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *values: Any) -> Any:
        for layer in self.layers:
            values = layer(*values)
            values = values if isinstance(values, tuple) else (values,)
        return values[0]


class Embedding(nn.Module):
    """Tokens and their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tok(ids) + self.pos.weight[: ids.shape[1]]


class Head(nn.Module):
    """Logits of each token."""

    def __init__(self, width: int, tied: nn.Embedding | None = None) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied is not None:
            self.out.weight = tied.weight

    def forward(self, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x)).flatten(0, 1)


class Attention(nn.Module):
    """Self-attention, or that of one sequence to another."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        b, t, d = x.shape
        other = x if memory is None else memory

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(b, -1, self.heads, d // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(other)), split(self.v(other))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(seen.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    """A layer of a GPT, or with ``gated`` of a Llama."""

    def __init__(self, width: int, *, gated: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, 4, causal=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, 4 * width) if gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        hidden = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(hidden)


class Encoder(nn.Module):
    """A layer of the encoder of a T5; hands the decoder's input on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(width), Attention(width, 4, causal=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory = memory + self.attention(self.norm(memory))
        return x, memory + self.down(torch.relu(self.up(memory)))


class Decoder(nn.Module):
    """A layer of the decoder of a T5, which reads the encoder's result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.own = Attention(width, 4, causal=True)
        self.other = Attention(width, 4, causal=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.own(self.first(x))
        x = x + self.other(self.second(x), memory)
        return x + self.down(torch.relu(self.up(x))), memory


class Twice(nn.Module):
    """The embedding of a T5: of both sequences, here the same tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(width)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(ids)
        return x, x.clone()


class Residual(nn.Module):
    """Two convolutions with batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.na, self.nb = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.na(self.a(x)))
        return torch.relu(x + self.nb(self.b(y)))


class Experts(nn.Module):
    """A feed-forward layer of which each token takes the best two of four."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(4, 2 * width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        weights = self.gate(y).softmax(-1)
        best = weights.topk(2, -1).values[..., -1:]
        kept = torch.where(weights >= best, weights, 0.0)
        hidden = torch.einsum("btd,edf->btef", y, self.up).relu()
        return x + torch.einsum("btef,efd,bte->btd", hidden, self.down, kept)


def _gpt(width: int, *, tied: bool = False, gated: bool = False) -> Chain:
    first = Embedding(width)
    layers = [Layer(width, gated=gated) for _ in range(6)]
    return Chain([first, *layers, Head(width, first.tok if tied else None)])


def _t5(width: int) -> Chain:
    encoder, decoder = (Encoder(width) for _ in range(3)), (Decoder(width) for _ in range(3))
    return Chain([Twice(width), *encoder, *decoder, Head(width)])


def _resnet(width: int) -> Chain:
    stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return Chain([stem, *(Residual(width) for _ in range(6)), head])


def _experts(width: int) -> Chain:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [Layer(width), Experts(width)]
    return Chain([Embedding(width), *layers, Head(width)])


MODELS: dict[str, Callable[[], Chain]] = {
    "gpt": lambda: _gpt(128),
    "gpt-tied": lambda: _gpt(128, tied=True),
    "llama": lambda: _gpt(128, gated=True),
    "t5": lambda: _t5(128),
    "resnet": lambda: _resnet(32),
    "experts": lambda: _experts(128),
}


def batch(name: str, samples: int, *, small: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch and its targets, the same in every process; ``small``: of a quarter's size."""
    g = torch.Generator().manual_seed(0)
    if name == "resnet":
        side = 8 if small else 16
        images = torch.randn(samples, 3, side, side, generator=g)
        return images, torch.randint(10, (samples,), generator=g)
    tokens = TOKENS // 4 if small else TOKENS
    return (
        torch.randint(VOCABULARY, (samples, tokens), generator=g),
        torch.randint(VOCABULARY, (samples, tokens), generator=g),
    )


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of logits."""
    return F.cross_entropy(output, target.flatten())


def model(name: str, dtype: torch.dtype = torch.float32) -> Chain:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def cuts(count: int, stages: int) -> list[range]:
    """Return the layers of each stage, as even as can be."""
    bounds = [round(i * count / stages) for i in range(stages + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]
