"""What a model detaches, or computes without gradients, is not trained by a step."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc


class Encoded(nn.Module):
    """An encoder that is not trained, and a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of samples [b, 4]."""
        with torch.no_grad():
            h = torch.tanh(self.a(x))
        return self.b(h).square().mean()


class Detached(Encoded):
    """The same by ``detach``."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)).detach()).square().mean()


class Decorated(Encoded):
    """The same by a decorator."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Return features."""
        return torch.tanh(self.a(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.encode(x)).square().mean()


class StraightThrough(Encoded):
    """Rounds, and lets gradients pass (van den Oord et al., arXiv:1711.00937, section 3.2)."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(h + (h.round() - h).detach()).square().mean()


class Target(Encoded):
    """A loss against a target of its own that stands still, and gradients inside of none."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.a(x)
            with torch.enable_grad():
                more = self.a(x * 2)
        with torch.set_grad_enabled(False):
            still = self.b(torch.tanh(h))
        return (self.b(h + more) - still).square().mean()


class Stacked(Encoded):
    """Enters a switch by a stack of contexts."""

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            h = torch.tanh(self.a(x))
        return self.b(h).square().mean()


class Written(Encoded):
    """Counts in a buffer without gradients, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        return self.b(h - self.mean).square().mean()


MODELS = (Encoded, Detached, Decorated, StraightThrough, Target, Stacked, Written)


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"mesh": "pipe=1"}], ids=str)
@pytest.mark.parametrize("make", MODELS)
def test_steps_train_what_eager_trains(make: type[Encoded], options: dict[str, Any]) -> None:
    if make is Written and options:
        pytest.skip("the mean of a buffer follows each micro-batch")
    torch.manual_seed(0)
    theirs = make().double()
    mine = copy.deepcopy(theirs)
    own = torch.optim.AdamW(mine.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)
    eager = torch.optim.AdamW(theirs.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)
    step = irc.compile_step(mine, optimizer=own, **options)
    for number in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number)).double()
        wanted = theirs(x)
        wanted.backward()
        eager.step()
        eager.zero_grad()
        torch.testing.assert_close(step(x), wanted.detach(), rtol=1e-12, atol=1e-14)
    trained, state = step.state_dict()["model"], theirs.state_dict()
    for name in state:
        torch.testing.assert_close(trained[name], state[name], rtol=1e-10, atol=1e-13)
