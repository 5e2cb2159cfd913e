"""Training on four processes: a small GPT learns some text, sharded over a mesh of 2 x 2.

Run it with ``python examples/training.py``, which starts itself under torchrun. It prints the loss
on the way, next to that of eager PyTorch, what each process holds, and goes on from the saved state
on one device.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import irc
from irc.commands.demo_gpt import GPT, GPTConfig

MESH = "data=2,tensor=2"
STEPS = 12
OPTIMIZER = {"kind": "adamw", "lr": 3e-3, "weight_decay": 0.1, "eps": 1e-6}


def model() -> nn.Module:
    """Return a GPT that gives its loss, the same on every process."""
    torch.manual_seed(0)
    return GPT(GPTConfig(layers=2, hidden=64, heads=4, block=32))


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return bytes of Python's own licence, and the bytes that follow them; [8, 32] each."""
    text = torch.frombuffer(bytearray(str(sys.copyright) * 4, "utf-8"), dtype=torch.uint8).long()
    places = torch.randint(len(text) - 33, (8,), generator=torch.Generator().manual_seed(number))
    rows = text[places[:, None] + torch.arange(33)]
    return rows[:, :-1], rows[:, 1:]


def train(state_file: Path) -> None:
    """Train as one of the processes; the first one says how it goes."""
    mine, theirs = model(), model()
    whole_bytes = sum(p.numel() * p.element_size() for p in mine.parameters())
    step = irc.compile_step(mine, optimizer=OPTIMIZER, mesh=MESH, cluster="demo-gpus")
    options = {name: value for name, value in OPTIMIZER.items() if name != "kind"}
    eager = torch.optim.AdamW(theirs.parameters(), **options)
    first = os.environ["RANK"] == "0"
    for number in range(STEPS):
        loss = step(*batch(number))
        eager.zero_grad()
        expected = theirs(*batch(number))
        expected.backward()
        eager.step()
        if first and number % 4 == 3:
            print(f"step {number + 1:2}  loss {loss.item():.4f}  eager {expected.item():.4f}")
    held = step.memory_bytes()
    state = step.state_dict(everywhere=False)
    if first:
        print(f"whole    {whole_bytes / 1e3:.0f} kB of parameters, twice that of states")
        print(f"a rank   {held['parameters'] / 1e3:.0f} kB of parameters,"
              f" {held['states'] / 1e3:.0f} kB of states")  # fmt: skip
        wanted = theirs.state_dict()
        error = max(float((state["model"][n] - wanted[n]).abs().max()) for n in wanted)
        print(f"error    {error:.1e} at most in a parameter after {STEPS} steps")
        torch.save(state, state_file)


def go_on(state_file: Path) -> None:
    """Load what four processes saved, and make one more step here."""
    step = irc.compile_step(model(), optimizer=OPTIMIZER)
    step.load_state_dict(torch.load(state_file, weights_only=True))
    print(f"step {STEPS + 1:2}  loss {step(*batch(STEPS)).item():.4f}  on one device")


def main() -> None:
    """Start four processes of this file, and go on from what they saved."""
    with tempfile.TemporaryDirectory() as folder:
        state_file = Path(folder, "state.pt")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run(
            [*launcher, "--nproc-per-node", "4", __file__, str(state_file)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        go_on(state_file)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:
        main()
