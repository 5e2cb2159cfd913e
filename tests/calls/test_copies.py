"""Compiled modules are stored and copied: what comes back is compiled, and has its own state."""

# pyright: basic
from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.calls.compiled import statistics


def _saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "save": _saved,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_compiled(way: str) -> None:
    net = irc.compile(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
    x = torch.randn(3, 4)
    with torch.no_grad():
        wanted = net(x)
        other = COPIES[way](net)
        torch.testing.assert_close(other(x), wanted)
        assert isinstance(other, nn.Sequential) and statistics(other).compilations == 1
        torch.testing.assert_close(COPIES[way](other)(x), wanted)
        if way != "copy":
            other[0].weight.zero_()
            torch.testing.assert_close(net(x), wanted)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return twice a tensor."""
    return x * 2


@irc.compile
def tripled(x: torch.Tensor) -> torch.Tensor:
    """Return three times a tensor."""
    return x * 3


class Holding:
    """Has a compiled method."""

    factor = 4

    @irc.compile
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return some times a tensor."""
        return x * self.factor


@pytest.mark.parametrize("way", COPIES)
def test_functions_are_stored_under_any_name(way: str) -> None:
    other_name, x = irc.compile(doubled), torch.randn(3)
    with torch.no_grad():
        copies = [COPIES[way](each) for each in (other_name, tripled, Holding.scaled)]
        assert copies[1:] == [tripled, Holding.scaled]  # as a function that is named is
        assert copies[0] is not other_name and irc.original(copies[0]) is doubled
        assert torch.equal(copies[0](x), x * 2) and statistics(copies[0]).compilations == 1
        assert torch.equal(COPIES[way](Holding().scaled)(x), x * 4)
    assert copies[0].__name__ == "doubled" and copies[0].__doc__ == doubled.__doc__
