"""Gelu as people write it becomes one op; what only looks like it does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import irc
from irc.dialects.builder import entry
from irc.dialects.flow import FlowOp
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.rewrite import RewritePass

Function = Callable[[Tensor], Tensor]
ROOT, SLOPE = math.sqrt(0.5), math.sqrt(2 / math.pi)

EXACT: dict[str, Function] = {
    "divided": lambda x: x * (torch.erf(x / math.sqrt(2)) + 1) * 0.5,
    "scaled": lambda x: 0.5 * x * (1 + torch.erf(x * ROOT)),
    "halved": lambda x: x * (0.5 * (1 + torch.erf(ROOT * x))),
}
BY_TANH: dict[str, Function] = {
    "power": lambda x: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.044715 * torch.pow(x, 3)))),
    "cube": lambda x: x * (torch.tanh((x + x * x * x * 0.044715) * SLOPE) + 1) * 0.5,
}
OTHERS: dict[str, Function] = {
    "slope": lambda x: x * (torch.erf(x / 1.5) + 1) * 0.5,
    "operand": lambda x: x * (torch.erf(-x / math.sqrt(2)) + 1) * 0.5,
    "half": lambda x: x * (torch.erf(x / math.sqrt(2)) + 1) * 0.25,
    "term": lambda x: x * (torch.erf(x / math.sqrt(2)) + 2) * 0.5,
    "cube": lambda x: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.05 * torch.pow(x, 3)))),
    "square": lambda x: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.044715 * torch.pow(x, 2)))),
}


def functions(function: Function, x: Tensor) -> list[str]:
    """Return the pointwise functions that are left."""
    program = capture(function, (x,)).program
    CanonicalizePass().apply(context(), program.module)
    RewritePass().apply(context(), program.module)
    program.module.verify()
    ops = entry(program.module).body.block.ops
    return [op.plain["fn"] for op in ops if isinstance(op, FlowOp) and op.name == "flow.pointwise"]


def is_right(function: Function, x: Tensor) -> None:
    expected = function(x.double())
    torch.testing.assert_close(irc.compile(function)(x).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_gelu(name: str) -> None:
    x = torch.randn(7, 33) * 3
    assert functions(EXACT[name], x) == ["gelu"]
    is_right(EXACT[name], x)


@pytest.mark.parametrize("name", BY_TANH)
def test_gelu_by_tanh(name: str) -> None:
    x = torch.randn(7, 33) * 3
    assert functions(BY_TANH[name], x) == ["gelu_tanh"]
    is_right(BY_TANH[name], x)


@pytest.mark.parametrize("name", OTHERS)
def test_what_looks_like_it(name: str) -> None:
    x = torch.randn(7, 33)
    assert not {"gelu", "gelu_tanh"} & {*functions(OTHERS[name], x)}
    is_right(OTHERS[name], x)


def test_half_types_round_at_each_step() -> None:
    assert "gelu" not in functions(EXACT["scaled"], torch.randn(33, dtype=torch.bfloat16))


def test_a_part_that_is_read_elsewhere_stays() -> None:
    def both(x: Tensor) -> Tensor:
        grown = 1 + torch.erf(x * ROOT)
        return torch.cat((0.5 * x * grown, grown))

    x = torch.randn(7, 33)
    assert "erf" in functions(both, x)
    is_right(both, x)
