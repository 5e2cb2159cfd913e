"""Steps refuse to write to what the backward pass needs, where eager raises; and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import irc
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.frontends.torch.own_backward import as_differentiated
from tests.calls.trained import trains_as_eager


class Net(nn.Module):
    """A layer, and what is done to its result."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.then, self.calls = nn.Linear(3, 3), then, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.then(self.layer(x)).square().mean()


def a_factor(h: Tensor) -> Tensor:
    y = h * h
    with torch.no_grad():
        h.mul_(2)
    return y


def a_detached_factor(h: Tensor) -> Tensor:
    y = h * h
    h.detach().mul_(2)
    return y


def a_result(h: Tensor) -> Tensor:
    y = h.sigmoid()
    with torch.no_grad():
        y.mul_(2)
    return y


def a_result_by_a_mask(h: Tensor) -> Tensor:
    y = h.softmax(-1)
    with torch.no_grad():
        y[y < 0.3] = 0
    return y


def beside_it(h: Tensor) -> Tensor:
    y = h[0].exp() * h[1]
    with torch.no_grad():
        h[2].zero_()
    return y


def a_constant(h: Tensor) -> Tensor:
    weight = torch.ones(3, 2)
    y = h @ weight
    weight.mul_(2)
    return y


def an_index(h: Tensor) -> Tensor:
    places = torch.tensor([0, 1])
    y = h[places]
    places.add_(1)
    return y


def with_gradients(h: Tensor) -> Tensor:
    return h.exp().add_(h) + h.exp().mul_(2)


REFUSED = [
    a_factor, a_detached_factor, a_result, a_result_by_a_mask, beside_it, a_constant, an_index,
    with_gradients,
]  # fmt: skip


@pytest.mark.parametrize("then", REFUSED)
def test_what_eager_raises_for_is_refused(then: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        Net(then)(x).backward()
    model = Net(then)
    step = irc.compile_step(model, optimizer="sgd")
    with pytest.raises(IrcError, match=r"written to after it was read") as caught:
        step(x, lr=0.1)
    assert caught.value.code == "not-differentiable"
    assert "test_stale_values.py:" in str(caught.value)
    assert model.calls == 0


def test_what_eager_does_not_count_is_refused() -> None:
    def its_data(h: Tensor) -> Tensor:
        y = h * h
        h.data.mul_(2)
        return y

    step = irc.compile_step(Net(its_data), optimizer="sgd")
    with pytest.raises(IrcError, match=r"written to after it was read"):
        step(torch.randn(4, 3), lr=0.1)


def a_sum(h: Tensor) -> Tensor:
    y = h + h
    with torch.no_grad():
        h.mul_(2)
    return y


def before(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.mul_(2)
    return h * h


def a_copy(h: Tensor) -> Tensor:
    y = h.clone() ** 2
    with torch.no_grad():
        h.mul_(2)
    return y


def what_no_gradient_needs(h: Tensor) -> Tensor:
    y = h * h
    with torch.no_grad():
        h.mul_(2)
    return h + y.detach()


def in_place_with_gradients(h: Tensor) -> Tensor:
    return h.mul_(2).add_(1).relu_()


class Two(nn.Module):
    """Gives a loss, and a tensor of one number beside it, of which one is written to too late."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.layer, self.writes = nn.Linear(3, 3), writes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        beside, y = self.layer(x).exp(), self.layer(x).sigmoid()
        loss = (y * y).mean()
        with torch.no_grad():
            (y if self.writes else beside).mul_(2)
        return beside.sum().reshape(1), loss


@pytest.mark.parametrize("writes", [False, True])
def test_the_values_of_what_is_trained_alone_are_looked_at(writes: bool) -> None:
    mine, theirs, x = Two(writes=writes), Two(writes=writes), torch.randn(2, 3)
    step = irc.compile_step(mine, optimizer="sgd")
    if not writes:
        theirs(x)[1].backward()
        step(x, lr=0.1)
        return
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        theirs(x)[1].backward()
    with pytest.raises(IrcError, match=r"written to after it was read"):
        step(x, lr=0.1)


class Named(nn.Module):
    """Gives two numbers by name; what the first one needs is written to too late."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.layer(x).sigmoid()
        aux, loss = (y * y).sum(), self.layer(x).square().mean()
        with torch.no_grad():
            y.mul_(2)
        return {"aux": aux, "loss": loss}


def test_a_loss_that_is_named_is_looked_at_alone() -> None:
    torch.manual_seed(0)
    mine, theirs, x = Named(), Named(), torch.randn(2, 3)
    theirs.load_state_dict(mine.state_dict())
    irc.compile_step(mine, loss="loss", optimizer="sgd")(x, lr=0.5)
    theirs(x)["loss"].backward()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight -= 0.5 * weight.grad
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(IrcError, match=r"written to after it was read"):
        irc.compile_step(Named(), loss="aux", optimizer="sgd")(x, lr=0.5)


@pytest.mark.parametrize("writes", [False, True])
def test_every_result_counts_where_each_may_be_trained(writes: bool) -> None:
    x = torch.randn(2, 3)
    with (
        pytest.raises(IrcError, match=r"written to after it was read"),
        torch.no_grad(),
        as_differentiated(from_all=True),
    ):
        capture(Two(writes=writes), (x,), hooks=False)


class WithWeight(nn.Module):
    """Gives a parameter beside what it computes, and writes to what nothing needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x).exp()
        z = (y + 1).sum()
        y.detach().mul_(2)
        return z, self.layer.weight


def test_a_parameter_may_be_among_the_results() -> None:
    with (
        pytest.raises(IrcError, match=r"written to after it was read"),
        torch.no_grad(),
        as_differentiated(from_all=True),
    ):
        capture(WithWeight(), (torch.randn(2, 3),), hooks=False)


TRAINED = [a_sum, before, a_copy, what_no_gradient_needs, in_place_with_gradients]


@pytest.mark.parametrize("then", TRAINED)
def test_what_eager_trains_is_trained(then: Callable[[Tensor], Tensor]) -> None:
    trains_as_eager(lambda: Net(then), (4, 3))


def test_the_look_at_old_values_leaves_nothing_in_the_model() -> None:
    """The module runs once more for it, on tensors without numbers."""
    net = Net(in_place_with_gradients)
    net.seen = {"lists": [[]]}

    def noted(h: Tensor) -> Tensor:
        net.seen["lists"][0].append(h.detach())
        return h.mul_(2).add_(1).relu_()

    net.then = noted
    seen, inner = net.seen, net.seen["lists"][0]
    with contextlib.suppress(IrcError):  # what a step does with such a list is not asked here
        irc.compile_step(net, optimizer="sgd")(torch.randn(4, 3), lr=0.1)
    assert net.seen is seen and seen["lists"][0] is inner
    assert not any(isinstance(each, FakeTensor) for each in inner)
