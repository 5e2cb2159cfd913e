"""A training script as torchrun starts it again: ``MESH FOLDER KILLED_AT [keep]``.

It saves every third step, and goes on from what is there; with ``keep`` each step is kept in
memory. Before the first restart the last rank is killed behind step KILLED_AT. Rank 0 prints the
number and the loss of each step.
"""

# pyright: basic
from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import irc

STEPS = 11
RANK, LAST = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
IS_FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def main(mesh: str, folder: Path, killed_at: int, *, keeps: bool) -> None:
    """Train with dropout, a scheduler, groups and a sampler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    samples = torch.randn(64, 24, generator=draw), torch.randint(0, 8, (64,), generator=draw)
    data = TensorDataset(*samples)
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[3].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    step = irc.compile_step(
        model, loss=F.cross_entropy, optimizer=optimizer, mesh=mesh, batch="local", seed=3
    )
    sampler = irc.data_sampler(step, data, seed=4)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    more = {"sampler": sampler, "scheduler": scheduler}
    step.load(folder, more=more, missing_ok=True)
    for epoch in range(sampler.epoch, 2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = float(step(x, y))
            scheduler.step()
            if RANK == 0:
                print(step.count, repr(loss), flush=True)
            if keeps:
                step.keep(folder, more=more)
            if step.count % 3 == 0:
                step.save(folder, keep=2, more=more)
            if step.count == killed_at and IS_FIRST and RANK == LAST:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.count == STEPS:
                return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), keeps=sys.argv[4:] == ["keep"])
