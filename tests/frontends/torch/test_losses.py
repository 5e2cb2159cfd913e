"""Cross-entropy: every form is flow ops, and its gradient is torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.passes.differentiate import DifferentiatePass
from irc.pipeline import run_passes


class Loss(nn.Module):
    """A loss of logits that are a parameter."""

    def __init__(self, logits: Tensor, options: dict[str, Any], function: Any) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.options, self.function = options, function

    def forward(self, target: Tensor) -> Tensor:
        """Return one number, also where the loss is not reduced."""
        loss = self.function(self.logits, target, **self.options)
        return (loss * loss).sum()


def check(shape: tuple[int, ...], target: Tensor, options: dict[str, Any], function: Any) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    module = Loss(logits, options, function)
    captured = capture(module, (target,))
    assert not captured.externs
    run_passes(captured.program.module, [DifferentiatePass()])
    values = captured.program.bind({"target": target})
    loss, gradient = run_function(captured.program.module, values)
    wanted = module(target)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, module.logits.grad, rtol=1e-10, atol=1e-10)


WEIGHT = torch.rand(7, generator=torch.Generator().manual_seed(1)).double() + 0.1
SHAPES = [((5, 7), (5,)), ((2, 7, 3), (2, 3)), ((2, 7, 3, 2), (2, 3, 2)), ((7,), ())]


def classes(shape: tuple[int, ...]) -> Tensor:
    labels = torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(2))
    if labels.ndim:
        labels.view(-1)[1] = -100
    return labels


@pytest.mark.parametrize(("logits", "target"), SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_of_classes(
    logits: tuple[int, ...],
    target: tuple[int, ...],
    reduction: str,
    weight: Tensor | None,
    smoothing: float,
) -> None:
    options = {"reduction": reduction, "weight": weight, "label_smoothing": smoothing}
    check(logits, classes(target), options, F.cross_entropy)


@pytest.mark.parametrize(
    ("shape", "reduction"), [((5, 7), "mean"), ((2, 7, 3), "sum"), ((7,), "mean"), ((5, 7), "none")]
)
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_of_probabilities(
    shape: tuple[int, ...], reduction: str, weight: Tensor | None, smoothing: float
) -> None:
    target = torch.rand(shape, generator=torch.Generator().manual_seed(3)).double()
    options = {"reduction": reduction, "weight": weight, "label_smoothing": smoothing}
    check(shape, target, options, F.cross_entropy)


@pytest.mark.parametrize(("logits", "target"), SHAPES)
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_negative_log_likelihood(
    logits: tuple[int, ...], target: tuple[int, ...], weight: Tensor | None
) -> None:
    check(logits, classes(target), {"weight": weight, "ignore_index": 3}, _likelihood)


def _likelihood(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    target = torch.where(target == -100, 3, target)
    return F.nll_loss(F.log_softmax(logits, 1 if logits.ndim > 1 else 0), target, **options)


def test_of_half_precision_is_computed_in_float32() -> None:
    logits = torch.randn(5, 7).to(torch.bfloat16)
    target = classes((5,))
    captured = capture(lambda x, y: F.cross_entropy(x, y), (logits, target))
    (loss,) = run_function(captured.program.module, [logits, target])
    wanted = F.cross_entropy(logits.float(), target).to(torch.bfloat16)
    torch.testing.assert_close(loss, wanted)
