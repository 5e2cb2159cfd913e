"""Settings of the process decide what ops do that are not told: the default dtype and device."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor

import irc
from irc.calls.compiled import statistics

WHOLE = torch.arange(6).reshape(2, 3)
FRACTIONS = torch.linspace(-1, 1, 6).reshape(2, 3)

MAKE: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "zeros": (lambda x: torch.zeros(3) + x, WHOLE),
    "a quotient": (lambda x: x / 2, WHOLE),
    "a root": (lambda x: x.sqrt(), WHOLE),
    "a float": (lambda x: x * 0.5, WHOLE),
    "a complex number": (lambda x: x * 1j, WHOLE),
    "a bool and a float": (lambda x: (x > 1) * 0.5, WHOLE),
    "two floats": (lambda x: torch.where(x > 1, 0.5, 1.0), WHOLE),
    "a list": (lambda x: x * torch.tensor([0.5]), WHOLE),
    "a float of torch": (lambda x: x * torch.tensor(0.5), WHOLE),
    "steps": (lambda x: x + torch.arange(0, 1, 0.4), WHOLE),
    "beside fractions": (lambda x: torch.linspace(0, 1, 3) + x, FRACTIONS),
    "asked for": (lambda x: x.to(torch.get_default_dtype()), FRACTIONS),
    "asked of another": (lambda x: x + torch.finfo().eps * 1e6, FRACTIONS),
}


@pytest.fixture(autouse=True)
def settings() -> Generator[None]:
    """Put back what tests change."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)


def _alike(got: Tensor, wanted: Tensor) -> None:
    assert (got.dtype, got.device) == (wanted.dtype, wanted.device)
    if wanted.device.type == "cpu":
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", MAKE)
@torch.no_grad()
def test_the_default_dtype_may_change(kind: str) -> None:
    run, x = MAKE[kind]
    fast = irc.compile(run)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        _alike(fast(x), run(x))
    assert statistics(fast).compilations == 2


@torch.no_grad()
def test_what_makes_nothing_does_not_ask() -> None:
    fast = irc.compile(lambda x: torch.relu(x @ x.mT) * 0.5 + 1)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        assert fast(FRACTIONS).dtype is torch.float32
    assert statistics(fast).compilations == 1


@pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")
@pytest.mark.parametrize("way", [irc.compile, "torch.compile"], ids=["irc", "torch"])
@torch.no_grad()
def test_the_default_device_may_change(way: Any) -> None:
    """What makes tensors does so where the user says; kernels keep to where their inputs are."""
    for run in (
        lambda x: torch.zeros(3) + 1,
        lambda x: torch.zeros_like(x) + x,
        lambda x: torch.tensor([1.0]),
        lambda x: x.sort(1)[0] + 1,
    ):
        torch._dynamo.reset()
        fast = torch.compile(run, backend="irc") if isinstance(way, str) else way(run)
        for device in (None, "meta", None, "cpu", "meta"):
            torch.set_default_device(device)
            _alike(fast(WHOLE), run(WHOLE))


@torch.no_grad()
def test_settings_that_code_asks_for() -> None:
    def run(x: Tensor) -> Tensor:
        return x * 2 if torch.are_deterministic_algorithms_enabled() else x + 1

    fast = irc.compile(run)
    for flag in (False, True, False):
        torch.use_deterministic_algorithms(flag)
        _alike(fast(FRACTIONS), run(FRACTIONS))
