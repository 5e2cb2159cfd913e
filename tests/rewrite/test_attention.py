"""Attention as people write it becomes one op; what only looks like it does not."""

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
from irc.interpret.flow import run_function
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.rewrite import RewritePass

Form = Callable[[Tensor, Tensor, Tensor], Tensor]

MASK = torch.randn(2, 1, 5, 7).masked_fill(torch.rand(2, 1, 5, 7) < 0.3, -math.inf)
MASK[..., 0] = 0
KEEP = torch.rand(5, 7) < 0.7
KEEP[:, 0] = True


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.25, -1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q, k.mT) / math.sqrt(q.shape[-1]), -1) @ v


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((0.5 * q) @ (k * 0.3).mT, -1) @ v


def in_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(MASK.to(q.dtype) + q @ k.mT * 0.25, -1) @ v


def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT / 4).masked_fill(~KEEP, -math.inf), -1) @ v


def chosen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(KEEP, q @ k.mT, -math.inf).softmax(-1) @ v


def in_float(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.25, -1, dtype=torch.float32).to(q.dtype) @ v


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def spread(x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, 7, -1)

    return torch.softmax(q @ spread(k[:, :2]).mT * 0.5, -1) @ spread(v[:, 2:])


FORMS: list[Form] = [
    plain, scaled, divided, scaled_before, in_einsum, masked, kept, chosen, in_float, written_out,
    grouped,
]  # fmt: skip


def other_dim(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q @ k.mT).softmax(-1) @ v


def finite(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~KEEP, -1e4).softmax(-1) @ v


def weighed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.sum()


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ q + 0 * v.sum()


def negative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = (scores.amax(-1, keepdim=True) - scores).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


OTHERS: list[Form] = [other_dim, capped, finite, weighed, turned, negative]


class Written(torch.nn.Module):
    """A form as a module."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.form(q, k, v)


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 6))
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def count(form: Form, dtype: torch.dtype) -> int:
    """Return how many attention ops the program has, after checking what it computes."""
    qkv = operands(dtype)
    program = capture(Written(form), qkv).program
    inputs = program.bind(dict(zip(program.input_names, qkv, strict=True)))
    CanonicalizePass().apply(context(), program.module)
    before = run_function(program.module, inputs)
    RewritePass().apply(context(), program.module)
    program.module.verify()
    after = run_function(program.module, inputs)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(after[0], before[0], atol=tolerance, rtol=tolerance)
    ops = [op for op in entry(program.module).body.block.ops if isinstance(op, FlowOp)]
    if form is grouped:
        (op,) = [op for op in ops if op.name == "flow.attention"]
        assert op.inputs[1].type.shape[1] == 2  # pyright: ignore
    return sum(op.name == "flow.attention" for op in ops)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_attention_is_found(form: Form) -> None:
    assert count(form, torch.float32) == 1


@pytest.mark.parametrize("form", [scaled, masked, in_float], ids=lambda f: f.__name__)
def test_attention_of_half_types_is_found(form: Form) -> None:
    assert count(form, torch.bfloat16) == 1


@pytest.mark.parametrize("form", OTHERS, ids=lambda f: f.__name__)
def test_what_is_no_attention_stays(form: Form) -> None:
    assert count(form, torch.float32) == 0


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_compiled_attention_equals_eager(form: Form) -> None:
    qkv = operands(torch.float32)
    compiled = irc.compile(Written(form))
    torch.testing.assert_close(compiled(*qkv), form(*qkv), atol=2e-6, rtol=1e-5)
