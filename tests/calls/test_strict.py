"""``strict=True``: what torch or Python would run is an error that names the line."""

# pyright: basic
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls.trial import is_tried
from irc.errors import IrcError
from irc.pipeline import Options


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def op(x: Tensor) -> Tensor:
    return torch.linalg.qr(x).R


def region(x: Tensor) -> Tensor:
    return x.to_sparse().to_dense() + 1


def broken(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", [op, region, broken])
def test_nothing_is_left_to_torch(function: Callable[[Tensor], Tensor], gradients: bool) -> None:
    line = f"{Path(__file__).name}:{inspect.getsourcelines(function)[1] + 1}"
    x = torch.eye(3, requires_grad=gradients)
    with pytest.raises(IrcError) as caught:
        irc.compile(function, strict=True)(x)
    assert line in f"{caught.value}"
    assert caught.value.code in ("left-to-torch", "capture-failed", "op-unsupported")


def test_what_irc_compiles_runs() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    x = torch.randn(2, 4)
    fast = irc.compile(net, strict=True)
    torch.testing.assert_close(fast(x), net(x))
    fast(x).sum().backward()
    assert irc.explain(fast).fallbacks == ()


def test_calls_that_would_run_eagerly_are_refused() -> None:
    fast = irc.compile(lambda x, y: x.add_(y), strict=True)
    memory = torch.ones(4)
    with pytest.raises(IrcError, match="left-to-torch") as caught:
        fast(memory[:3], memory[1:])
    assert "shares memory" in f"{caught.value}"


def test_calls_are_not_timed_against_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IRC_FIRST_TIMING")
    assert is_tried(Options()) and not is_tried(Options(strict=True))


def test_it_is_an_option_of_the_backend() -> None:
    with pytest.raises(Exception, match="strict=True forbids"):
        torch.compile(op, backend="irc", options={"strict": True})(torch.eye(3))


@pytest.mark.parametrize("dynamic", [None, True])
def test_every_call_is_refused_not_the_first_alone(dynamic: bool | None) -> None:
    fast = irc.compile(op, strict=True, dynamic=dynamic)
    with torch.no_grad():
        for size in (3, 3, 5, 5):
            with pytest.raises(IrcError, match="left-to-torch"):
                fast(torch.eye(size))
