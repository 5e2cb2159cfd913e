"""A training script that loses a rank of four for good: ``CASE FOLDER``; alone without torchrun.

Each step is kept in memory, the second one is saved. Behind the third the last rank ends with its
launcher. Rank 0 prints what the run goes on from, then the number and the loss of each step.
"""

# pyright: basic
from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import irc

STEPS, LOST_BEHIND = 5, 3
RANK, RANKS = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
BEFORE: dict[str, dict[str, Any]] = {
    "tensor": {"mesh": "data=2,tensor=2", "pins": '"0.weight" = [tensor = S(0)]'},
    "zero": {"mesh": "data=4", "pins": "* = [data = B]; optimizer.*.0.* = [data = S(0)]"},
    "pipe": {"mesh": "pipe=2,data=2"},
    "eager": {"mesh": "data=2,tensor=2", "pins": '"0.weight" = [tensor = S(0)]'},
}
AFTER: dict[str, dict[str, Any]] = {
    "tensor": {"mesh": "tensor=3", "pins": '"0.weight" = [tensor = S(1)]'},
    "zero": {"mesh": "data=3"},
    "pipe": {"mesh": "data=3"},
    "eager": {"mesh": "tensor=3", "pins": '"2.weight" = [tensor = S(0)]'},
}


def main(case: str, folder: Path) -> None:
    """Train with dropout and a scheduler."""
    torch.manual_seed(0)
    dropped = 0.0 if case == "pipe" else 0.2  # micro-batches draw numbers of their own
    model = nn.Sequential(nn.Linear(12, 24), nn.Dropout(dropped), nn.Linear(24, 6)).double()
    kind = torch.optim.RAdam if case == "eager" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    how = {0: {}, 4: BEFORE[case], 3: AFTER[case]}[RANKS]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = irc.compile_step(
            model, loss=F.cross_entropy, optimizer=optimizer, seed=3, **{"mesh": None, **how}
        )
        more = {"scheduler": scheduler}
        resumed = step.load(folder, more=more, missing_ok=True)
    lost = [f"{each.message}" for each in said if each.category.__name__ == "StateLostWarning"]
    if RANK == 0:
        print("#", resumed, *lost, sep="\n# ", flush=True)
    draw = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(12, 12, generator=draw).double(), torch.randint(0, 6, (12,), generator=draw))
        for _ in range(STEPS)
    ]
    while step.count < STEPS:
        loss = float(step(*batches[step.count]))
        scheduler.step()
        if RANK == 0:
            print(step.count, repr(loss), flush=True)
        step.keep(folder, more=more)
        if step.count == 2:
            step.save(folder, more=more)
        if step.count == LOST_BEHIND and RANK == 3:
            for process in (os.getppid(), os.getpid()):
                os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
