"""A user's program under torchrun, on two ranks: what goes wrong on rank 1 is its first word."""

# pyright: basic

import os
import signal
import sys
import threading
import time

import torch
from torch import nn

import irc

CALLS = 400


class Net(nn.Module):
    """A layer, and another one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


class Other(Net):
    """The same parameters, and another function of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).sigmoid())


def later(number: int) -> None:
    """Send this process a signal when it has been running for a while."""
    threading.Timer(1.0, lambda: os.kill(os.getpid(), number)).start()


def main() -> None:
    what, is_other = sys.argv[1], os.environ["RANK"] == "1"
    torch.manual_seed(0)
    changed = is_other and what in ("source", "width")
    model = (Other if changed and what == "source" else Net)(24 if changed else 16)
    pins = "* = [data = B]" if is_other and what == "options" else ""
    run = irc.compile(model.eval(), mesh="data=2", pins=pins)
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    print("begins", time.time(), flush=True)
    with torch.no_grad():
        run(x)
        print("first call", flush=True)
        if is_other and what in ("stop", "kill"):
            print("begins", time.time(), flush=True)
            later(signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        for _ in range(CALLS if what in ("stop", "kill") else 1):
            run(x)
            time.sleep(0.05)
    print("done", flush=True)


if __name__ == "__main__":
    main()
