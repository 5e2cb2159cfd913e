"""Steps of training held against eager training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import irc


def trains_as_eager(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Hold three steps of a model, its losses and all its state, against eager training.

    Args:
        build: gives a module that gives its loss, alike at each call.
        shape: of the random numbers that the module takes.
        rtol: of the state at the end.
        atol: likewise.
    """
    mine, theirs, x = build(), build(), torch.randn(shape)
    step = irc.compile_step(mine, optimizer="sgd")
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(3):
        loss = theirs(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, lr=0.1), loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        dict(mine.state_dict()), dict(theirs.state_dict()), rtol=rtol, atol=atol
    )
