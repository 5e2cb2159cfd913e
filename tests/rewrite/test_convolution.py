"""Batch normalisation goes into the weights of a convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import irc
from irc.dialects.builder import entry
from irc.dialects.flow import FlowOp
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.rewrite import RewritePass


def normalised(*, dims: int, bias: bool, groups: int = 1) -> nn.Module:
    """Return a convolution and a batch normalisation with numbers as after training."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    convolution = (nn.Conv1d, nn.Conv2d)[dims - 1](4, 6 if groups == 1 else 4, 3, bias=bias,
                                                   groups=groups)  # fmt: skip
    norm = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](convolution.out_channels)
    for value in norm.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
    return nn.Sequential(convolution, norm, nn.ReLU()).eval()


def products(module: nn.Module, x: torch.Tensor) -> list[int]:
    """Return the rank of each product that is left."""
    with torch.no_grad():
        program = capture(module, (x,)).program
    CanonicalizePass().apply(context(), program.module)
    RewritePass().apply(context(), program.module)
    program.module.verify()
    ops = [op for op in entry(program.module).body.block.ops if isinstance(op, FlowOp)]
    muls = [op for op in ops if op.plain.get("fn") == "mul"]
    return [len(op.outputs[0].type.shape) for op in muls if x.shape[0] in op.outputs[0].type.shape]  # pyright: ignore


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_the_scale_goes_into_the_weight(dims: int, bias: bool, groups: int) -> None:
    module = normalised(dims=dims, bias=bias, groups=groups)
    x = torch.randn(11, 4, *([9] * dims))
    assert products(module, x) == []
    with torch.no_grad():
        torch.testing.assert_close(irc.compile(module)(x), module(x), atol=1e-5, rtol=1e-5)


def test_half_types_keep_their_scale() -> None:
    module = normalised(dims=2, bias=True).to(torch.bfloat16)
    assert products(module, torch.randn(11, 4, 9, 9, dtype=torch.bfloat16)) == [4]


def test_a_scale_from_the_input_stays() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(4, 6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(x) * x.mean((2, 3), keepdim=True)[:1, :1].expand(1, 6, 1, 1)

    assert products(Scaled().eval(), torch.randn(11, 4, 9, 9)) == [4]


def test_a_changed_weight_is_seen() -> None:
    """The product of weight and scale is made again."""
    module = normalised(dims=2, bias=True)
    x = torch.randn(3, 4, 9, 9)
    with torch.no_grad():
        compiled = irc.compile(module)
        compiled(x)
        module[1].weight.mul_(2)  # pyright: ignore
        torch.testing.assert_close(compiled(x), module(x), atol=1e-5, rtol=1e-5)
