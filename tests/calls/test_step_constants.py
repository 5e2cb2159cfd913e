"""Constants that a trace computes of the size of a batch, in steps for several sizes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.calls.step_plan import LossWarning


class Weighted(nn.Module):
    """Reads constants that a trace lifts out: one of the batch's size, one that is always alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([float(len(x)), 1.0], dtype=x.dtype)
        shift = torch.tensor([0.5, 1.5], dtype=x.dtype)
        return (self.layer(x) * scale + shift).square().mean()


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"mesh": "pipe=1"}])
def test_each_kind_of_batch_has_constants_of_its_own(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Weighted().double()
    step = irc.compile_step(model, optimizer="sgd", **options)
    count = options.get("micro_batches", 1)
    for size in (8, 4, 8, 6):
        batch = torch.randn(size, 4, dtype=torch.float64)
        with torch.no_grad():
            expected = torch.stack([model(own) for own in batch.chunk(count)]).mean()
        with warnings.catch_warnings():
            # That the constant grows with the batch makes the loss neither a mean nor a sum.
            warnings.simplefilter("ignore", LossWarning)
            loss = step(batch, lr=0.0).item()
        assert loss == pytest.approx(expected.item(), rel=1e-13)
