"""`stream-cross-entropy`: which losses lose their logits, which keep them and why, same numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import entry
from irc.dialects.flow import ExternOp, FlowOp, tensor
from irc.dialects.text import context, dump, load
from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, random_inputs
from irc.ops.linear_loss import LOSS, STREAMED
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.stream_cross_entropy import StreamCrossEntropyPass

B, T, D, V = 2, 150, 6, 11
Head = Callable[[nn.Linear, Tensor, Tensor], Any]


class Model(nn.Module):
    """A head and its loss, of hidden rows."""

    def __init__(self, loss: Head, *, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(D, V, bias=bias)
        self.loss = loss

    def forward(self, h: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.head, h, labels)


def flat(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).view(-1, V), labels.view(-1))


def shifted(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    logits = head(h)[..., :-1, :].contiguous().float()
    return F.cross_entropy(logits.view(-1, V), labels[..., 1:].reshape(-1), reduction="sum")


def across(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).transpose(1, 2), labels, reduction="none")


def turned(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    logits = torch.einsum("dv,btd->vtb", head.weight.T.contiguous(), h)
    return F.cross_entropy(logits.permute(2, 1, 0).reshape(-1, V), labels.reshape(-1))


def by_parts(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    log = torch.log_softmax(head(h), -1)
    return -log.gather(-1, labels.clamp(0)[..., None]).mean()


def weighted(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    weight = torch.linspace(0.1, 1.0, V)
    return F.cross_entropy(head(h).view(-1, V), labels.view(-1), weight)


def returned(head: nn.Linear, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(h)
    return F.cross_entropy(logits.view(-1, V), labels.view(-1)), logits


def smoothed(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).view(-1, V), labels.view(-1), label_smoothing=0.1)


def chances(head: nn.Linear, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    log = torch.log_softmax(head(h), -1)
    return log.gather(-1, labels.clamp(0)[..., None]).mean(), log.exp().square().sum()


def squashed(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(torch.tanh(head(h)).view(-1, V), labels.view(-1))


def joined(head: nn.Linear, h: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(h).reshape(B, -1), labels[:, 0])


def captured(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[ModuleOp, list[Tensor]]:
    """A simplified program, and its inputs in order."""
    h = torch.randn(B, T, D, generator=torch.Generator().manual_seed(1)).to(dtype)
    labels = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(2))
    labels[0, 3:7] = -100
    program = capture(model.to(dtype), (h, labels)).program
    CanonicalizePass().apply(context(), program.module)
    names = dict(zip(program.input_names, (h, labels), strict=True))
    return program.module, program.bind(names)


def streamed(module: ModuleOp, min_bytes: int = 0) -> list[str]:
    """Run the pass; returns the targets of library ops."""
    StreamCrossEntropyPass(min_bytes=min_bytes).apply(context(), module)
    module.verify()
    assert load(dump(module)).is_structurally_equivalent(module)
    return [op.target for op in module.walk() if isinstance(op, ExternOp)]


def no_logits(module: ModuleOp) -> bool:
    sizes = [
        prod(tensor(value).static_shape())
        for op in entry(module).body.block.ops
        if isinstance(op, FlowOp)
        for value in op.outputs
    ]
    return max(sizes) < B * (T - 1) * V


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", [flat, shifted, across, turned, by_parts, weighted, smoothed])
def test_the_logits_are_gone_and_the_loss_is_the_same(loss: Head, bias: bool) -> None:
    module, inputs = captured(Model(loss, bias=bias))
    want = run_function(module, inputs, dtype=torch.float64)
    assert streamed(module) == [LOSS]
    assert no_logits(module)
    got = run_function(module, inputs, dtype=torch.float64)
    assert difference(got[0], want[0]) < 1e-12


def test_an_upcast_of_half_types_goes_inside() -> None:
    module, inputs = captured(Model(shifted), torch.bfloat16)
    want = run_function(module, inputs)
    assert streamed(module) == [LOSS]
    assert difference(run_function(module, inputs)[0], want[0]) < 1e-6


@pytest.mark.parametrize(
    ("loss", "because"),
    [
        (returned, "others read its logits too"),
        (chances, "log-probabilities are read by others"),
        (squashed, "but flow.pointwise"),
        (joined, "its classes are joined with other dims"),
    ],
)
def test_it_says_why_logits_stay(loss: Head, because: str) -> None:
    module, _ = captured(Model(loss))
    assert streamed(module) == []
    assert because in str(module.attributes[STREAMED])


def test_few_logits_stay() -> None:
    module, _ = captured(Model(flat))
    assert streamed(module, 64 << 20) == []
    assert "300 x 11 logits, 0.0 MiB: made at once" in str(module.attributes[STREAMED])
    assert random_inputs(module)
