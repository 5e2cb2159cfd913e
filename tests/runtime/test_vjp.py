"""`irc::vjp`: derivatives by torch, and what torch has none of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from irc.errors import IrcError, IrcErrors
from irc.runtime import library, vjp
from irc.train import training_program
from tests.training.models import program_of

BINARY = '[[{"operand": 0}, {"operand": 1}], {}]'
UNARY = '[[{"operand": 0}], {}]'


def call(target: str, count: int, wanted: list[int]) -> list[object]:
    attrs = {"target": target, "arguments": BINARY if count == 2 else UNARY}
    return ["flow.extern", attrs, count, [0], wanted]


def test_gradients_under_inference_mode() -> None:
    x, y, g = torch.randn(3, 5), torch.randn(5), torch.randn(3, 5)
    with torch.inference_mode():
        gradients = vjp.run(
            call("aten::hypot", 2, [1, 0]), [x.clone(), y.clone(), g.clone()], library.run
        )
    leaves = y.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = torch.autograd.grad(torch.hypot(leaves[1], leaves[0]), leaves, g)
    for value, want in zip(gradients, wanted, strict=True):
        assert not value.requires_grad
        torch.testing.assert_close(value, want)


def test_an_operand_that_does_not_matter_gets_zeros() -> None:
    x, y, g = torch.randn(3), torch.randn(3), torch.randn(3)
    (gradient,) = vjp.run(call("aten::nextafter", 2, [1]), [x, y, g], library.run)
    assert not gradient.any()


@pytest.mark.parametrize(
    ("target", "count"), [("aten::floor_divide", 2), ("aten::heaviside", 2), ("aten::signbit", 1)]
)
def test_what_torch_cannot_differentiate(target: str, count: int) -> None:
    values = [torch.rand(4) + 1 for _ in range(count + 1)]
    with pytest.raises(IrcError, match=target) as caught:
        vjp.run(call(target, count, [0]), values, library.run)
    assert caught.value.codes == ("not-differentiable",)


def test_a_training_program_names_all_of_it_at_once() -> None:
    class Stuck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.igamma(self.w, x) + torch.special.zeta(self.w, x)).sum()

    with pytest.raises(IrcErrors) as caught:
        training_program(program_of(Stuck(), torch.rand(5)))
    assert caught.value.codes == ("not-differentiable",)
    assert "aten::igamma" in str(caught.value)
    assert "aten::special_zeta" in str(caught.value)
