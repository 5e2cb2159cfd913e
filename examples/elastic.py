"""A job of four processes that loses one, then another: it goes on with those that are left.

Run it with ``python examples/elastic.py``. It starts four launchers, as four machines would
(``torchrun --nnodes 1:4``); two of them die on the way. Torchrun then starts the others again: the
step is planned for as many ranks as there are, and goes on behind the last step, from what those
that are left kept in memory; where that is not all, from the last checkpoint. The losses are those
of one process that nothing happened to.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import irc

BATCH = 12  # of all ranks: four, three and two of them share it equally
STEPS = 12
LOST = {(5, 4), (8, 3)}  # behind the fifth step, of four ranks, one is lost; then of three


def train(folder: Path) -> dict[int, float]:
    """Train as one of however many processes there are, and return the loss of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    step = irc.compile_step(
        model, loss=F.cross_entropy, optimizer=optimizer, mesh="data=auto", batch="local"
    )
    data = TensorDataset(torch.randn(64, 24), torch.randint(8, (64,)))
    sampler = irc.data_sampler(step, data, batch_size=BATCH)
    loader = DataLoader(data, batch_size=sampler.batch_size, sampler=sampler, drop_last=True)
    more = {"sampler": sampler, "schedule": schedule}
    resumed = step.load(folder, more=more, missing_ok=True)
    rank, ranks = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
    if rank == 0 and ranks:
        print(f"{ranks} ranks: {resumed}", flush=True)
    losses: dict[int, float] = {}
    for epoch in range(sampler.epoch, STEPS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            losses[step.count] = float(step(x, y))
            schedule.step()
            if rank == 0 and ranks:
                print(f"step {step.count:2}  {ranks} ranks  loss {losses[step.count]:.8f}")
                sys.stdout.flush()
            if step.count == STEPS:
                return losses
            step.keep(folder, more=more)
            if step.count % 4 == 0:
                step.save(folder, keep=2, more=more)
            if (step.count, ranks) in LOST and rank == ranks - 1:
                lose_machine()
    return losses


def lose_machine() -> None:
    """End this process and its launcher, as a machine does that fails."""
    for process in (os.getppid(), os.getpid()):
        os.kill(process, signal.SIGKILL)


def main() -> None:
    """Start four launchers of this file, and hold the losses against those of one process."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    # By default a machine is missed after 15 s, and others are waited for another 30 s.
    waits = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=6"
    with tempfile.TemporaryDirectory() as name, Path(name, "errors").open("w+") as errors:
        launchers = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4",
                 "--nproc-per-node", "1", "--max-restarts", "4", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic",
                 "--rdzv-conf", f"{waits},is_host={int(number == 0)}", __file__, f"{name}/ranks"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,  # of each start that was broken off, each rank says by which one
                text=True,
            )
            for number in range(4)
        ]  # fmt: skip
        said = [launcher.communicate()[0] for launcher in launchers]
        ended = [launcher.returncode for launcher in launchers]
        if ended.count(0) != 2:
            sys.exit(Path(name, "errors").read_text())
        print(said[0], end="")
        print(f"launchers {ended.count(0)} of 4 went on to the end")
        alone = train(Path(name, "alone"))
    lines = [line.split() for line in "".join(said).splitlines() if line.startswith("step")]
    far = max(abs(float(words[-1]) - alone[int(words[1])]) for words in lines)
    print(f"error     {far:.1e} at most in a loss, against one process")


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:
        main()
