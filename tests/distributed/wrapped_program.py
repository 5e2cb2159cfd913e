"""What torch's own wrappers make of a module that irc compiles for one device: ``CASE [CASE ..]``.

Each rank trains on its own samples, once under plain DDP and once with irc inside. It prints, as
JSON for each case, how far losses and parameters are from each other.
"""

# pyright: basic
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import irc
from irc.runtime.processes import place_of, start_processes
from irc.torch_backend.counts import counters

STEPS = 5


class Net(nn.Module):
    """Two layers, in a class of the user's own: Dynamo skips calls of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.down(F.gelu(self.up(x)))


def net() -> nn.Module:
    """Return the same module on every rank."""
    torch.manual_seed(0)
    return Net()


def batches() -> list[tuple[Tensor, Tensor]]:
    """Return this rank's samples and labels."""
    draw = torch.Generator().manual_seed(7 + dist.get_rank())
    return [
        (torch.randn(8, 24, generator=draw), torch.randint(0, 12, (8,), generator=draw))
        for _ in range(STEPS)
    ]


def trained(module: Any) -> tuple[list[float], list[Tensor]]:
    """Return the losses of some steps and the parameters after them."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for x, y in batches():
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [irc.whole(p).detach() for p in module.parameters()]


def sharded(module: nn.Module) -> Any:
    """Return a module of which each rank has a part."""
    return fully_shard(module)


WRAPPED: dict[str, Callable[[], Any]] = {
    "ddp_of_compiled": lambda: DistributedDataParallel(irc.compile(net())),
    "compiled_ddp": lambda: torch.compile(DistributedDataParallel(net()), backend="irc"),
    "fsdp_of_compiled": lambda: sharded(irc.compile(net())),
}


def compared(name: str) -> dict[str, float]:
    """Train both ways."""
    torch.compiler.reset()
    counters.clear()
    losses, parameters = trained(WRAPPED[name]())
    compiled = {kind: counters[kind] for kind in ("forward", "backward")}
    wanted, plain = trained(DistributedDataParallel(net()))
    return {
        **compiled,
        "losses": max(abs(a - b) for a, b in zip(losses, wanted, strict=True)),
        "parameters": max(
            float((a - b).abs().max()) for a, b in zip(parameters, plain, strict=True)
        ),
    }


if __name__ == "__main__":
    start_processes(*place_of(os.environ))
    reports = {name: compared(name) for name in sys.argv[1:]}
    print(json.dumps(reports))
    dist.destroy_process_group()
