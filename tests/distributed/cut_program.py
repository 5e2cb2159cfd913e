"""One rank of a pipeline whose best cut differs between two kinds of batches."""

from __future__ import annotations

import copy
import json

import torch
from torch import nn

import irc
from tests.programs.models import furthest

OPTIMIZER = {"kind": "sgd", "lr": 0.001}


class Mixed(nn.Module):
    """A wide layer, which costs by its weights, and attention, which costs by samples."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(16, 8192), nn.Linear(8192, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.back(torch.relu(self.wide(x.mean(1))))[:, None] + x
        for layer in self.layers:
            h = h + torch.softmax(layer(h) @ h.transpose(1, 2) / 16, -1) @ h
        return self.head(h).square().mean()


def main() -> None:
    """Train on batches of two sizes, and print how far numbers are from eager training."""
    torch.manual_seed(0)
    model = Mixed().double()
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.001)
    step = irc.compile_step(model, optimizer=OPTIMIZER, mesh="pipe=2", micro_batches=2)
    losses: list[float] = []
    for size in (2, 8, 3, 2):
        batch = torch.randn(size, 64, 16, dtype=torch.float64)
        optimizer.zero_grad()
        loss = eager(batch)
        loss.backward()
        optimizer.step()
        losses.append(abs(step(batch).item() - loss.item()))
    furthest_state = furthest(step.state_dict()["model"], eager.state_dict())
    print(json.dumps({"losses": max(losses), "parameters": furthest_state}))


if __name__ == "__main__":
    main()
