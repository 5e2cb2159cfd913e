"""What torch computes for a plan reads its operands right in whatever strides a plan lays them."""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import irc
from irc.runtime import attention, library


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def last_dim_apart(x: Tensor) -> Tensor:
    """Return equal numbers whose last dim has not stride 1, between NaN."""
    wide = torch.full((*x.shape, 2), torch.nan, dtype=x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_flash_attention(position: int, causal: bool, dtype: torch.dtype) -> None:
    """Forward and backward: torch's kernel takes the last stride for granted."""
    plain = [draw(2, 3, 9, 8, seed=i, dtype=dtype) for i in range(3)]
    strided = list(plain)
    strided[position] = last_dim_apart(plain[position])
    options: Any = None, None, None, None, causal, 0.5, True
    wanted = attention.attention(*plain, *options)
    for one, other in zip(attention.attention(*strided, *options), wanted, strict=True):
        assert torch.equal(one, other)
    g, y = draw(2, 3, 9, 8, seed=5, dtype=dtype), wanted[0]
    rest: Any = None, None, None, None, None, causal, 0.5
    want = attention.backward(g, *plain, y, wanted[1], *rest)
    back = attention.backward(last_dim_apart(g), *strided, last_dim_apart(y), wanted[1], *rest)
    for one, other in zip(back, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("target", "inputs", "more"),
    [
        ("aten::_pdist_forward", [draw(5, 3)], []),
        ("aten::_cdist_forward", [draw(5, 3), draw(4, 3, seed=1)], [2.0, None]),
    ],
)
def test_private_ops(target: str, inputs: Sequence[Tensor], more: Sequence[Any]) -> None:
    """Torch's own callers of these make operands contiguous first."""
    positional = [*({"operand": i} for i in range(len(inputs))), *more]
    attrs = {"target": target, "arguments": json.dumps([positional, {}])}
    wanted = library.run("flow.extern", attrs, inputs, [])
    apart = library.run("flow.extern", attrs, [last_dim_apart(x) for x in inputs], [])
    assert all(torch.equal(a, b) for a, b in zip(apart, wanted, strict=True))


def test_an_op_of_a_package() -> None:
    """An op over plain memory, as C++ ones are, of a result that lies channels last."""
    seen: list[bool] = []

    @torch.library.custom_op("irc_test_strides::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        seen.append(x.is_contiguous())
        return x * 2

    doubled.register_fake(torch.empty_like)
    x, w = draw(2, 3, 8, 8, dtype=torch.float32), draw(3, 3, 3, 3, dtype=torch.float32)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return doubled(F.conv2d(x, w)) + 1

    wanted = f(x, w)
    seen.clear()
    torch.testing.assert_close(irc.compile(f)(x, w), wanted)
    assert seen
    assert all(seen)


def _convolved(place: int) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        operands = [q, k, v]
        if place < 3:
            operands[place] = F.conv2d(operands[place], w)
        attended = F.scaled_dot_product_attention(*operands)
        return F.conv2d(attended, w) if place == 3 else attended

    return run


@pytest.mark.parametrize("place", range(4), ids=["q", "k", "v", "result"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("entry", [irc.compile, lambda f: torch.compile(f, backend="irc")])
def test_attention_of_a_convolution(place: int, dtype: torch.dtype, entry: Any) -> None:
    """A convolution's result lies channels last, as does a gradient for one."""
    torch._dynamo.reset()
    shapes = [(2, 2, 5, 8), (2, 2, 17, 8), (2, 2, 17, 8), (2, 2, 1, 1)]
    inputs = [draw(*s, seed=i, dtype=dtype) for i, s in enumerate(shapes)]
    f = _convolved(place)
    fast = entry(f)
    results: list[list[Tensor]] = []
    for run in (f, fast, fast):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = run(*leaves)
        results.append([output, *torch.autograd.grad((output * output).sum(), leaves)])
    for values in results[1:]:
        torch.testing.assert_close(values, results[0])
