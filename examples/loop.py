"""The training loop that you have, on four processes: one line is another.

Run it with ``python examples/loop.py``, which starts itself under torchrun twice: as it is, where
every process trains the whole model, and with ``irc.compile``, where samples are divided over two
processes and what is stored and computed over the other two. The losses are the same.
"""

import os
import subprocess
import sys

import torch
from torch import Tensor, nn

import irc
from irc.commands.demo_gpt import GPT, GPTConfig

STEPS = 12


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return bytes of Python's own licence, and the bytes that follow them; [8, 32] each."""
    text = torch.frombuffer(bytearray(str(sys.copyright) * 4, "utf-8"), dtype=torch.uint8).long()
    places = torch.randint(len(text) - 33, (8,), generator=torch.Generator().manual_seed(number))
    rows = text[places[:, None] + torch.arange(33)]
    return rows[:, :-1], rows[:, 1:]


def train(with_irc: bool) -> None:
    """Train as one of the processes; the first one says how it goes."""
    torch.manual_seed(0)
    model: nn.Module = GPT(GPTConfig(layers=2, hidden=64, heads=4, block=32))
    if with_irc:
        model = irc.compile(model, mesh="data=2,tensor=2", layout="fsdp+tp")  # the one line
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1, eps=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for number in range(STEPS):
        loss = model(*batch(number))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if os.environ["RANK"] == "0" and number % 4 == 3:
            print(f"step {number + 1:2}  loss {loss.item():.4f}")
    parts = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    if os.environ["RANK"] == "0":
        print(f"a rank holds {sum(p.numel() for p in parts)} parameters")


def main() -> None:
    """Start four processes of this file, without irc and with it."""
    for word in ("torch", "irc"):
        print(word, flush=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run(
            [*launcher, "--nproc-per-node", "4", __file__, word],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(with_irc=sys.argv[1] == "irc")
    else:
        main()
