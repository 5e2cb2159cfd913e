"""An op of a user that is declared by a formula is in irc's kernels, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import irc
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.ops.custom import DECLARED


@torch.library.custom_op("irc_formula_test::squareplus", mutates_args=())
def squareplus(x: torch.Tensor, b: float) -> torch.Tensor:
    return 0.5 * (x + (x * x + b).sqrt())


@squareplus.register_fake
def _(x: torch.Tensor, b: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("irc_formula_test::chosen", mutates_args=())
def chosen(mask: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, x * y, torch.erfc(x) - y)


@chosen.register_fake
def _(mask: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty(torch.broadcast_shapes(mask.shape, x.shape, y.shape), dtype=x.dtype)


@torch.library.custom_op("irc_formula_test::above", mutates_args=())
def above(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x > y


@above.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty(torch.broadcast_shapes(x.shape, y.shape), dtype=torch.bool)


@torch.library.custom_op("irc_formula_test::thirds", mutates_args=())
def thirds(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).floor().long()


@thirds.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.int64)


@torch.library.custom_op("irc_formula_test::narrowed", mutates_args=())
def narrowed(x: torch.Tensor) -> torch.Tensor:
    return (x * x - 1).float()


@narrowed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _declared() -> Any:
    irc.register_op(squareplus, formula=lambda x, b: 0.5 * (x + (x * x + b).of("sqrt")))
    irc.register_op(chosen, formula=lambda m, x, y: (x * y).where(m, x.of("erfc") - y))
    irc.register_op(above, formula=lambda x, y: x.of("gt", y))
    irc.register_op(thirds, formula=lambda x: (x * 3).of("floor"))
    irc.register_op(narrowed, formula=lambda x: x * x - 1)
    torch._dynamo.reset()
    yield
    for name in ("squareplus", "chosen", "above", "thirds", "narrowed"):
        DECLARED.pop(f"irc_formula_test::{name}", None)


def exact(x: torch.Tensor, b: float) -> torch.Tensor:
    return 0.5 * (x + (x * x + b).sqrt())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_values_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(5, 17, dtype=dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    fast = irc.compile(lambda x: squareplus(x, 4.0).tanh(), fullgraph=True)
    got, wanted = fast(x), exact(wide, 4.0).tanh()
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
    mine = torch.autograd.grad(got.sum(), x)[0].double()
    theirs = torch.autograd.grad(wanted.sum(), wide)[0]
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_half_types_are_rounded_once() -> None:
    x = torch.randn(999).bfloat16()
    with torch.no_grad():
        got = irc.compile(lambda x: squareplus(x, 4.0), fullgraph=True)(x)
    assert torch.equal(got, exact(x.float(), 4.0).bfloat16())


class Net(torch.nn.Module):
    """A layer, and the op behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squareplus(self.layer(x), 2.0)


def test_nothing_is_left_to_a_library() -> None:
    assert not capture(Net(), (torch.randn(4, 6),)).externs
    DECLARED.pop("irc_formula_test::squareplus")
    assert capture(Net(), (torch.randn(4, 6),)).externs


def test_operands_broadcast_and_masks_stay_masks() -> None:
    mask, x, y = torch.rand(4, 1) > 0.5, torch.randn(3), torch.randn(4, 3)
    fast = irc.compile(lambda m, x, y: chosen(m, x, y) + 1, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(fast(mask, x, y), chosen(mask, x, y) + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_what_is_read_keeps_its_fractions_where_the_result_has_none(dtype: torch.dtype) -> None:
    """Operands were made what the result is: 1.5 > 1.25 compared two truth values."""
    x, y = torch.tensor([1.5, 0.25, -2.0]).to(dtype), torch.tensor([1.25, 0.75, -2.5]).to(dtype)
    with torch.no_grad():
        got = irc.compile(lambda x, y: (above(x, y), thirds(x)), fullgraph=True)(x, y)
    torch.testing.assert_close(got, (x > y, (x * 3).floor().long()))


def test_a_narrow_result_is_rounded_at_the_end() -> None:
    x = torch.tensor([1 + 1e-9], dtype=torch.float64)
    with torch.no_grad():
        got = irc.compile(lambda x: narrowed(x), fullgraph=True)(x)
    torch.testing.assert_close(got, (x * x - 1).float())


@pytest.mark.parametrize(
    ("formula", "because"),
    [
        (lambda x: x * 0.5, "0.5 beside values of i64"),
        (lambda x: x.of("gt", 0) * 2, "2 beside values of i1"),
    ],
)
def test_numbers_that_a_dtype_would_cut_are_refused(
    formula: Callable[..., Any], because: str
) -> None:
    irc.register_op(thirds, formula=formula)
    fast = irc.compile(lambda x: thirds(x), fullgraph=True)
    with pytest.raises(IrcError, match="the formula of irc_formula_test::thirds") as caught:
        fast(torch.arange(4))
    assert because in str(caught.value)


def test_a_step_trains_through_it() -> None:
    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(8, 6), torch.randn(8, 3)
    eager = Net()
    eager.load_state_dict(net.state_dict())
    step = irc.compile_step(net, loss=torch.nn.MSELoss(), optimizer={"kind": "sgd"})
    step(x, y, lr=0.1)
    torch.nn.functional.mse_loss(exact(eager.layer(x), 2.0), y).backward()
    for mine, theirs in zip(net.parameters(), eager.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.detach(), theirs.detach() - 0.1 * theirs.grad)


# fmt: off
WRONG: list[tuple[Callable[..., Any], str]] = [
    (lambda x, b: x.of("sqroot"),     "did you mean 'sqrt'"),
    (lambda x, b: torch.sqrt(x),      "must be Tensor"),
    (lambda x, b: b,                  "it gives a float"),
    (lambda x: x,                     "takes 1 positional argument"),
    (lambda x, b: x if x > 0 else b,  "'>' not supported"),
]
# fmt: on


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("formula", "because"), WRONG)
def test_a_formula_that_fails_is_told(
    formula: Callable[..., Any], because: str, recorded: bool
) -> None:
    irc.register_op(squareplus, formula=formula)
    fast = irc.compile(lambda x: squareplus(x, 4.0), fullgraph=True)
    with pytest.raises(IrcError, match="the formula of irc_formula_test::squareplus") as caught:
        fast(torch.randn(4, requires_grad=recorded)).sum().backward()
    assert because in str(caught.value)


def test_sizes_that_are_not_those_of_the_op_are_told() -> None:
    irc.register_op(chosen, formula=lambda m, x, y: x * 2)
    fast = irc.compile(lambda m, x, y: chosen(m, x, y), fullgraph=True)
    with pytest.raises(IrcError, match="gives other sizes than the op"), torch.no_grad():
        fast(torch.rand(4, 1) > 0.5, torch.randn(3), torch.randn(4, 3))


def test_what_is_no_formula_is_refused_at_once() -> None:
    with pytest.raises(IrcError, match="is int 3"):
        irc.register_op("irc_formula_test::squareplus", formula=3)  # type: ignore[arg-type]
    with pytest.raises(IrcError, match="with a formula and a derivative"):
        irc.register_op(squareplus, formula=lambda x, b: x, derivative=lambda g, x, b: g)
