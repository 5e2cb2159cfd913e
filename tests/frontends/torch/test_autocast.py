"""Autocast: what it casts as a whole, and the parts of composite ops, without gradients."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
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

RECURRENT = torch.nn.LSTM(4, 4)
ENCODER = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
PADDING = torch.tensor([[False, False, True]])
CAST_INSIDE: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "pinv": (lambda x: torch.linalg.pinv(x * 2), X),
    "pinv, Hermitian": (lambda x: torch.linalg.pinv(x + x.T, hermitian=True), X[:, :3]),
    "LSTM": (RECURRENT, X[None]),
    "encoder layer": (ENCODER, X[None]),
    "encoder layer, mask": (lambda x: ENCODER(x, src_key_padding_mask=PADDING), X[None]),
}
"""What calls that kernels of torch make are cast in, and fake tensors are not."""


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


@pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *product(["pinv", "pinv, Hermitian"], ["inside", "around", "torch.compile", "gradients"]),
        *product(["LSTM"], ["inside", "around"]),
        *product(["encoder layer"], ["inside", "around", "torch.compile"]),
        ("encoder layer, mask", "around"),
    ],
)
def test_what_kernels_cast_inside_has_eagers_dtypes(name: str, way: str) -> None:
    torch._dynamo.reset()
    function, x = CAST_INSIDE[name]

    def inside(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x)

    compiler = partial(torch.compile, backend="irc") if way == "torch.compile" else irc.compile
    compiled = compiler(function if way == "around" else inside)
    x = x.clone().requires_grad_(way == "gradients")
    with torch.set_grad_enabled(way == "gradients"):
        try:
            want = inside(x)
        except RuntimeError as error:
            if "primitive descriptor" not in str(error):
                raise
            pytest.skip("oneDNN has no such layer in bfloat16 on this CPU: eager fails")
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "around"):
            got = compiled(x)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
