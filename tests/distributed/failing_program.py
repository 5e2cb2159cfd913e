"""A rank that does not go on in step 3, run by each process: ``MESH WAY CASE [FOLDER]``."""

# pyright: basic
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc

RANK = int(os.environ["RANK"])
LAST = int(os.environ["WORLD_SIZE"]) - 1


class Regression(nn.Module):
    """Two layers and their loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.down(F.relu(self.up(x))), y)


def trainer(mesh: str, way: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return what trains on a batch, and another thing that all ranks do together."""
    if way == "step":
        options: dict[str, Any] = {"micro_batches": 2} if "pipe" in mesh else {}
        step = irc.compile_step(Regression(), mesh=mesh, **options)
        return step, torch.distributed.barrier
    model = irc.compile(Regression(), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    def run(x: Tensor, y: Tensor) -> None:
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run, torch.distributed.barrier


def main(mesh: str, way: str, case: str) -> None:
    """Train; in step 3 the last rank does something else."""
    run, other = trainer(mesh, way)
    x, y = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)), torch.ones(8, 4)
    for number in range(1, 6):
        if number == 3 and RANK == LAST:
            print("step 3", flush=True)
            if case == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if case == "raises":
                raise ValueError("the data of this rank")
            if case == "ends":
                return
            if case == "diverges":
                other()
        run(x, y)  # the line of the user


if __name__ == "__main__":
    main(*sys.argv[1:4])
