"""Declared derivatives hold where autograd records, and wrong declarations are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError
from irc.ops.custom import DECLARED


@torch.library.custom_op("irc_own_gradients::cube", mutates_args=())
def cube(x: Tensor, s: float = 2.0, *, shift: float = 0.0) -> Tensor:
    return x * x * x * s + shift


@cube.register_fake
def _(x: Tensor, s: float = 2.0, *, shift: float = 0.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("irc_own_gradients::both", mutates_args=())
def both(xs: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    return xs[0] * xs[1] * y, y + 1


@both.register_fake
def _(xs: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), torch.empty_like(y)


def gradients_of_both(seeds: Any, xs: list[Tensor], y: Tensor) -> tuple[Tensor, ...]:
    first, second = (torch.zeros_like(y) if g is None else g for g in seeds)
    return first * xs[1] * y, first * xs[0] * y, first * xs[0] * xs[1] + second


class Net(nn.Module):
    """An op of one's own between a linear layer and a relu."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(cube(self.inner(x), 3.0, shift=0.5))


def plain(net: Net, x: Tensor) -> Tensor:
    inner = net.inner(x)
    return torch.relu(inner * inner * inner * 3 + 0.5)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)
    torch._dynamo.reset()


X = torch.linspace(-2, 2, 32).reshape(4, 8)
COMPILERS: tuple[Callable[..., Any], ...] = (
    irc.compile,
    lambda module: torch.compile(module, backend="irc"),
)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("declared", ["derivative", "reference"])
def test_gradients_pass_an_op_that_torch_has_no_formula_for(
    compiler: Callable[..., Any], declared: str
) -> None:
    parts: dict[str, Any] = {
        "derivative": {
            "derivative": lambda g, x, s=2.0, *, shift=0.0: (g[0] * 3 * x * x * s,),
        },
        "reference": {"reference": lambda x, s=2.0, *, shift=0.0: x * x * x * s + shift},
    }
    irc.register_op(cube, **parts[declared])
    net = Net()
    wanted = torch.autograd.grad(plain(net, X).square().sum(), list(net.parameters()))
    gradients = torch.autograd.grad(compiler(net)(X).square().sum(), list(net.parameters()))
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_lists_and_several_results_have_their_gradients() -> None:
    irc.register_op(both, derivative=gradients_of_both)

    def function(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        first, second = both([a, b.sin()], y)
        return (first * second).sum()

    inputs = [torch.randn(3, 5, requires_grad=True) for _ in range(3)]
    a, b, y = inputs
    wanted = torch.autograd.grad((a * b.sin() * y * (y + 1)).sum(), inputs)
    gradients = torch.autograd.grad(irc.compile(function)(*inputs), inputs)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_formula_of_torch_stays() -> None:
    @torch.library.custom_op("irc_own_gradients::own", mutates_args=())
    def own(x: Tensor) -> Tensor:
        return x * 2

    own.register_fake(torch.empty_like)
    own.register_autograd(lambda ctx, g: g * 7)
    irc.register_op(own, derivative=lambda g, x: (g[0] * 2,))
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(irc.compile(lambda x: own(x) + 1)(x).sum(), x)
    assert gradient.tolist() == [7, 7, 7]


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "shape": (lambda g, x, s, **more: (g[0].sum(),), r"shape \[\] for operand 0"),
    "count": (lambda g, x, s, **more: (g[0], g[0]), "gives 2 gradients"),
    "arguments": (lambda g: (g[0],), "TypeError"),
    "raises": (lambda g, x, s, **more: 1 / 0, "ZeroDivisionError"),
    "type": (lambda g, x, s, **more: ("x",), "gives str for operand 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_derivative_is_named_by_a_step_of_training(case: str) -> None:
    derivative, says = WRONG[case]
    irc.register_op(cube, derivative=derivative)
    step = irc.compile_step(Net(), loss=lambda output: output.sum(), optimizer={"kind": "sgd"})
    with pytest.raises(IrcError, match=says) as caught:
        step(X, lr=0.1)
    assert caught.value.code == "not-differentiable"


def test_a_wrong_derivative_is_named_where_autograd_records() -> None:
    irc.register_op(cube, derivative=WRONG["shape"][0])
    with pytest.raises(Exception, match="not-differentiable") as caught:
        irc.compile(Net())(X).sum().backward()
    assert "irc_own_gradients::cube" in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"rule": 3}, "rule"),
        ({"flops": "2 * n"}, "flops"),
        ({"bytes": 8}, "bytes"),
        ({"reference": 3}, "reference"),
        ({"derivative": 3}, "derivative"),
    ],
)
def test_what_is_no_declaration_is_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(
        IrcError, match=f"the {says} declared for irc_own_gradients::cube"
    ) as caught:
        irc.register_op(cube, **parts)
    assert caught.value.code == "op-declaration"
    with pytest.raises(IrcError, match="reference"):
        irc.register_op(cube)(None)  # type: ignore[type-var]  # what the check is for
    with pytest.raises(IrcError, match="no name of the form"):
        irc.register_op("cube")


def test_a_formula_of_work_that_fails_is_named(tmp_path: Path) -> None:
    irc.register_op(cube, rule="(a b) -> (a b)", flops=lambda call: call["z"])
    with pytest.raises(IrcError, match="formula for flops") as caught:
        irc.export_plan(Net(), (X,), out=tmp_path / "plan", mesh="tensor=2")
    assert "sizes are a, b" in caught.value.render()
