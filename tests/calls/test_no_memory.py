"""Tensors with a shape and no elements are refused, whichever way in: a kernel would crash."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import irc
from irc.errors import IrcError


def x() -> Tensor:
    return torch.ones(2, 4)


def resized(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(2, 4)


class Offset(nn.Module):
    """Adds a buffer that has no values."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.empty(4, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


def refused(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(IrcError) as raised:
        call(*args)
    assert raised.value.code == "no-memory"
    return str(raised.value)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True])
def test_weights_on_meta(dynamic: bool | None) -> None:
    """Never had values, or lost them after a call."""
    module = nn.Linear(4, 3)
    compiled = irc.compile(module, dynamic=dynamic)
    compiled(x())
    module.to("meta")
    assert "step.state_dict()" in refused(compiled, x())
    refused(irc.compile(nn.Linear(4, 3).to("meta"), dynamic=dynamic), x())
    refused(irc.compile(Offset(), dynamic=dynamic), x())
    module.to_empty(device="cpu").load_state_dict(nn.Linear(4, 3).state_dict())
    torch.testing.assert_close(compiled(x()), module(x()))


@pytest.mark.parametrize("grad", [False, True])
def test_weights_whose_storage_is_gone(grad: bool) -> None:
    module = nn.Linear(4, 3)
    compiled = irc.compile(module)
    with torch.set_grad_enabled(grad):
        compiled(x())
        resized(module.weight)
        refused(compiled, x())


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [lambda: resized(x()), fake], ids=["resized", "fake"])
def test_inputs_without_elements(make: Callable[[], Tensor], grad: bool) -> None:
    """By the short way, which looks at nothing but addresses, and by the others."""
    module = nn.Linear(4, 3)
    compiled = irc.compile(module)
    in_place = irc.compile(lambda x: x.add_(1))
    with torch.set_grad_enabled(grad):
        want = compiled(x())
        if not (grad and make is fake):  # torch.compile refuses to mix fake tensors and real ones
            refused(compiled, make())
        torch.testing.assert_close(compiled(x()), want)
    with torch.no_grad():
        in_place(x())
        refused(in_place, make())
        assert in_place(x()).sum() == 16


def test_inputs_of_a_plan(tmp_path: Path) -> None:
    irc.export_plan(nn.Linear(4, 3), (x(),), out=str(tmp_path / "plan"))
    run = irc.load(tmp_path / "plan")
    run(x())
    refused(run, resized(x()))


@torch.no_grad()
def test_a_storage_that_is_too_short_for_a_weight() -> None:
    module = nn.Linear(64, 64)
    module.weight.untyped_storage().resize_(64)
    assert "64 bytes" in refused(irc.compile(module), torch.ones(2, 64))


@torch.no_grad()
def test_empty_tensors_have_no_address_and_run() -> None:
    compiled = irc.compile(lambda x, y: (x * 2, y + 1))
    inputs = torch.empty(0, 3), torch.ones(2)
    for mine, want in zip(compiled(*inputs), (inputs[0], inputs[1] + 1), strict=True):
        torch.testing.assert_close(mine, want)


def test_a_step_does_not_go_on_from_nothing() -> None:
    """On one device the parameters are the module's own."""
    module = nn.Linear(4, 3)
    step = irc.compile_step(module, loss=F.mse_loss)
    batch = x(), torch.ones(2, 3)
    step(*batch)
    resized(module.weight)
    refused(step, *batch)
    module.to("meta")
    with pytest.raises(IrcError, match="'weight' is on meta"):
        step(*batch)
