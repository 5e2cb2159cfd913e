"""Training steps of real sizes, planned on published hardware and never run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.auto_shard import AutoShardPass
from irc.train import add_training
from tests.search.test_judgement import BF16, NODE, Layers, Plan


class Model(nn.Module):
    """A transformer that gives its loss."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=BF16)
        self.body = Layers(layers, width, heads)
        self.norm = nn.RMSNorm(width, eps=1e-5, dtype=BF16)
        self.head = nn.Linear(width, vocabulary, bias=False, dtype=BF16)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        h = self.norm(self.body(self.embed(tokens)))
        return F.cross_entropy(self.head(h).flatten(0, 1).float(), labels.flatten())


def model(*args: Any, **options: Any) -> Model:
    """Return a model without weights."""
    with torch.device("meta"):
        return Model(*args, **options)


def tokens(batch: int, length: int) -> Tensor:
    """Return token numbers without values."""
    return torch.empty(batch, length, dtype=torch.int64, device="meta")


def trained(
    net: nn.Module,
    *args: Tensor,
    mesh: str,
    cluster: str = NODE,
    optimizer: str = "adamw",
    **options: Any,
) -> Plan:
    """Plan one step of training."""
    program = capture(net, args).program
    add_training(program, optimizer=optimizer)
    AutoShardPass(mesh=mesh, cluster=cluster, **options).apply(context(), program.module)
    return Plan(program.module)
