"""Models and batches that pipelines are tried on, and eager training to hold them against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -100
MICRO_BATCHES = 4
SAMPLES = 8


class Block(nn.Module):
    """A layer of a small GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        split = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT, its embedding tied to its head or not; targets may be ignored."""

    def __init__(self, layers: int = 4, width: int = 32, *, tied: bool = False) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(64, width), nn.Embedding(12, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 64, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)


class ConvNet(nn.Module):
    """Residual convolutions with batch norm, whose statistics move with each micro-batch."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(4)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), target)


class Skips(nn.Module):
    """An encoder whose result every decoder layer reads: it crosses several cuts."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, width)
        self.query = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.key = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        memory, h = torch.tanh(self.encoder(x)), x
        for query, key in zip(self.query, self.key, strict=True):
            scores = query(h) @ key(memory).transpose(-1, -2)
            h = h + scores.masked_fill(~mask, -1e9).softmax(-1) @ memory
        return self.head(h).square().mean()


class Frozen(nn.Module):
    """Layers of which some, the first too, do not move."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        for number in (0, 1, 4):
            self.layers[number].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Dropped(nn.Module):
    """Layers with dropout between them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(torch.relu(layer(x)) + x)
        return x.square().mean()


class Experts(nn.Module):
    """A mixture of experts between two layers: each token is computed by the two that it likes."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 1)
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        weights, chosen = self.gate(h).softmax(-1).topk(2, -1)
        hidden = torch.einsum("nd,edf->nef", h, self.up).relu()
        every = torch.einsum("nef,efd->ned", hidden, self.down)
        picked = every.gather(1, chosen[..., None].expand(-1, -1, h.shape[-1]))
        return self.last(h + (weights[..., None] * picked).sum(1)).square().mean()


def _tokens(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(64, (SAMPLES, 12), generator=g)
    targets = torch.randint(64, (SAMPLES, 12), generator=g)
    # Micro-batches have different numbers of tokens that count.
    targets[torch.rand(SAMPLES, 12, generator=g) < 0.3] = IGNORED
    targets[:2, 2:] = IGNORED
    return ids, targets


def _images(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    return torch.randn(SAMPLES, 3, 6, 6, generator=g), torch.randint(5, (SAMPLES,), generator=g)


def _sequences(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(SAMPLES, 5, 16, generator=g),
        torch.rand(SAMPLES, 5, 5, generator=g) > 0.3,
    )


def _rows(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    return (torch.randn(SAMPLES, 16, generator=g),)


@dataclass(frozen=True)
class Case:
    """A model to be trained.

    Attributes:
        build: the model.
        batch: its batch.
        counts: whether its loss is a mean over the targets that count, of the whole batch.
        draws: whether its numbers are random: only irc's own repeat them.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[torch.Tensor, ...]]
    counts: bool = False
    draws: bool = False


CASES: Mapping[str, Case] = {
    "gpt": Case(GPT, _tokens, counts=True),
    "tied": Case(lambda: GPT(tied=True), _tokens, counts=True),
    "conv": Case(ConvNet, _images),
    "skips": Case(Skips, _sequences),
    "frozen": Case(Frozen, _rows),
    "dropped": Case(Dropped, _rows, draws=True),
    "experts": Case(Experts, _rows),
}


def model_and_batch(
    name: str, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model with the same weights in every process, and its batch."""
    torch.manual_seed(0)
    model = CASES[name].build().to(dtype)
    batch = CASES[name].batch(torch.Generator().manual_seed(1))
    return model, tuple(x.to(dtype) if x.is_floating_point() else x for x in batch)


OPTIMIZER: Mapping[str, Any] = {"kind": "momentum", "lr": 0.05, "momentum": 0.9, "clip_norm": 1.0}


def trained_eagerly(name: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and the state after some steps of torch's own SGD on the whole batch."""
    model, batch = model_and_batch(name)
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    parts = [x.chunk(MICRO_BATCHES) for x in batch]
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for own in zip(*parts, strict=True):
            share = 1 / MICRO_BATCHES
            if CASES[name].counts:
                counted = [(x != IGNORED).sum().item() for x in (own[1], batch[1])]
                share = counted[0] / counted[1]
            loss = model(*own) * share
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return losses, model.state_dict()


def furthest(state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference between two states of a model."""
    assert set(state) == set(expected)
    return max((state[n].double() - t.double()).abs().max().item() for n, t in expected.items())
