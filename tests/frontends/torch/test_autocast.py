"""Autocast: what it casts as a whole, and the parts of composite ops, without gradients."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import irc

X, H = torch.randn(3, 4), torch.randn(3, 4)
HALF = torch.randn(5, 5).bfloat16()
POSITIVE = (HALF.float() @ HALF.float().T + 5 * torch.eye(5)).bfloat16()

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "RNN cell": (torch.nn.RNNCell(4, 4), (X, H)),
    "GRU cell": (torch.nn.GRUCell(4, 4), (X, H)),
    "GRU cell, half state": (torch.nn.GRUCell(4, 4), (X, H.bfloat16())),
    "LSTM cell": (torch.nn.LSTMCell(4, 4), (X, (H, H))),
    "cholesky": (torch.linalg.cholesky, (POSITIVE,)),
    "qr": (torch.linalg.qr, (HALF,)),
    "polar": (torch.polar, (HALF, HALF)),
    "loss": (torch.nn.functional.mse_loss, (HALF, HALF + 0.01)),
    "vecdot": (torch.linalg.vecdot, (X, H)),
}


@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
@pytest.mark.parametrize("name", CALLS)
def test_computes_in_eagers_dtypes(name: str, around: bool) -> None:
    function, args = CALLS[name]

    def inside(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*args)

    compiled = irc.compile(function if around else inside)
    with torch.no_grad():
        want = inside(*args)
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            got = compiled(*args)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
