"""Language models whose output layers differ, for schedules with a vocabulary on all ranks."""

# pyright: basic
from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -100
SAMPLES, WORDS, WIDTH = 8, 6, 16
MICRO_BATCHES = 4
OPTIMIZER: Mapping[str, Any] = {"kind": "momentum", "lr": 0.05, "momentum": 0.9, "clip_norm": 1.0}


class Worded(nn.Module):
    """Four layers between an embedding and an output layer.

    Args:
        classes: of the vocabulary.
        bias: whether the output layer has one.
        turned: whether its weight lies the other way round.
        tied: whether it is that of the embedding.
        cast: whether logits are cast to float32 first.
        weighted: whether classes count differently.
        loss: what cross_entropy is given beside logits and targets.
    """

    weights: torch.Tensor | None

    def __init__(
        self,
        classes: int = 37,
        *,
        bias: bool = False,
        turned: bool = False,
        tied: bool = False,
        cast: bool = False,
        weighted: bool = False,
        **loss: Any,
    ) -> None:
        super().__init__()
        self.tok = nn.Embedding(classes, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        shape = (WIDTH, classes) if turned else (classes, WIDTH)
        self.head = self.tok.weight if tied else nn.Parameter(torch.randn(shape) * 0.3)
        self.bias = nn.Parameter(torch.randn(classes)) if bias else None
        self.register_buffer("weights", torch.rand(classes) + 0.5 if weighted else None)
        self.turned, self.cast, self.loss = turned, cast, loss

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what the output layer gives."""
        x = self.tok(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        x = self.norm(x)
        logits = x @ self.head if self.turned else F.linear(x, self.head)
        logits = logits if self.bias is None else logits + self.bias
        return logits.float() if self.cast else logits

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.logits(ids).flatten(0, 1)
        weights = self.weights if self.weights is None else self.weights.to(logits.dtype)
        return F.cross_entropy(logits, targets.flatten(), weight=weights, **self.loss)


class Shifted(Worded):
    """Each word foretells the next one, as in models of Hugging Face."""

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.logits(ids)[:, :-1].reshape(-1, self.head.shape[0])
        return F.cross_entropy(logits, targets[:, 1:].reshape(-1), **self.loss)


def frozen() -> Worded:
    """Return a model whose output layer does not move."""
    model = Worded(bias=True)
    model.head.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Head:
    """A model, and whether some of its targets are ignored."""

    build: Callable[[], Worded]
    ignores: bool = False


HEADS: Mapping[str, Head] = {
    "plain": Head(Worded),
    "bias": Head(lambda: Worded(classes=38, bias=True)),
    "ignored": Head(lambda: Worded(ignore_index=IGNORED), ignores=True),
    "smoothed": Head(lambda: Worded(label_smoothing=0.1)),
    "smoothed bias": Head(
        lambda: Worded(bias=True, label_smoothing=0.2, ignore_index=IGNORED), ignores=True
    ),
    "turned": Head(lambda: Worded(turned=True)),
    "weighted": Head(lambda: Worded(weighted=True)),
    "shifted": Head(Shifted),
    "frozen": Head(frozen),
    "few": Head(lambda: Worded(classes=4, bias=True)),
}


def head_and_batch(
    name: str, dtype: torch.dtype = torch.float64
) -> tuple[Worded, tuple[torch.Tensor, torch.Tensor]]:
    """Return a model with the same weights in every process, and its batch."""
    torch.manual_seed(0)
    model = HEADS[name].build().to(dtype)
    g = torch.Generator().manual_seed(1)
    classes = model.tok.num_embeddings
    ids, targets = (torch.randint(classes, (SAMPLES, WORDS), generator=g) for _ in range(2))
    if HEADS[name].ignores:
        targets[torch.rand(SAMPLES, WORDS, generator=g) < 0.3] = IGNORED
    return model, (ids, targets)


def eager(
    model: nn.Module, batch: tuple[torch.Tensor, ...], steps: int
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and parameters after some steps on the whole batch."""
    model = copy.deepcopy(model)
    moving = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(moving, lr=0.05, momentum=0.9)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(moving, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: p.detach() for n, p in model.named_parameters()}
