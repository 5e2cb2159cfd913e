"""A step of a model on the meta device: the numbers of its initialisers, whatever the mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError

X, Y = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3


class Net(nn.Module):
    """Tied weights, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(5, 7), nn.BatchNorm1d(7)
        self.again, self.head = nn.Linear(7, 7), nn.Linear(7, 3)
        self.other = nn.Linear(7, 7)
        self.other.weight = self.again.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.other(F.relu(self.again(self.norm(self.up(x))))))


def on_meta(make: Any = Net) -> nn.Module:
    with torch.device("meta"):
        return make().train()


def initialised(seed: int, make: Any = Net) -> nn.Module:
    """As one process initialises it."""
    model = on_meta(make).to_empty(device="cpu")
    if isinstance(model, Net):
        model.other.weight = model.again.weight  # to_empty parts what was tied
    torch.manual_seed(seed)
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return model


def step_of(model: nn.Module, **options: Any) -> Any:
    return irc.compile_step(model, loss=F.cross_entropy, seed=5, **options)


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}])
def test_it_trains_as_one_with_these_values(options: dict[str, Any]) -> None:
    torch.manual_seed(99)
    drawn = torch.rand(3)
    torch.manual_seed(99)
    mine, theirs = step_of(on_meta(), **options), step_of(initialised(5), **options)
    torch.manual_seed(99)
    for _ in range(3):
        assert float(mine(X, Y)) == float(theirs(X, Y))
    assert torch.equal(torch.rand(3), drawn)  # the user's own generator is as it was
    wanted = theirs.state_dict()["model"]
    assert all(torch.equal(t, wanted[n]) for n, t in mine.state_dict()["model"].items())
    assert not any(p.is_meta for p in mine.module.parameters())
    assert mine.module.other.weight is mine.module.again.weight


def test_by_a_function() -> None:
    def fill(layer: nn.Module) -> None:
        for value in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
            value.fill_(1)

    step = step_of(on_meta(), init=fill)
    step.prepare(X, Y)
    assert all((t == 1).all() for t in step.state_dict()["model"].values())


def test_from_a_checkpoint(tmp_path: Path) -> None:
    before = step_of(initialised(1))
    before(X, Y)
    before.save(tmp_path)
    step = step_of(on_meta())
    step.load(tmp_path)
    assert [float(step(X, Y)) for _ in range(2)] == [float(before(X, Y)) for _ in range(2)]


class Bare(nn.Module):
    """A parameter that nothing initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.layer = nn.Parameter(torch.ones(5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.layer(x * self.gain)


def test_what_nothing_initialises_is_named() -> None:
    step = step_of(on_meta(Bare))
    with pytest.raises(IrcError, match="'gain' has no value: Bare") as caught:
        step(X, Y)
    assert caught.value.code == "weights-missing"
    with pytest.raises(IrcError, match="weights-missing"):
        step_of(on_meta()).state_dict()
