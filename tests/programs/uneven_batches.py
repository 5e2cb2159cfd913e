"""Batches of any number of samples for models of pipelines, and torch's own training on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import nn

from tests.programs.models import CASES, IGNORED, MICRO_BATCHES

Batch: TypeAlias = tuple[torch.Tensor, ...]


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name].build().double()


def batch_of(name: str, size: int, seed: int = 1) -> Batch:
    """Return a batch of any number of samples."""
    draw = torch.Generator().manual_seed(seed)
    twice = zip(CASES[name].batch(draw), CASES[name].batch(draw), strict=True)
    whole = (torch.cat(own)[:size] for own in twice)
    return tuple(x.double() if x.is_floating_point() else x for x in whole)


def trained_eagerly(
    name: str, batches: Sequence[Batch], count: int = MICRO_BATCHES
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and the state after torch's SGD, micro-batches counted by their samples."""
    model = model_of(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    for batch in batches:
        optimizer.zero_grad()
        total = 0.0
        for own in zip(*(x.tensor_split(count) for x in batch), strict=True):
            share = len(own[0]) / len(batch[0])
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
