"""Steps train past what is written without being recorded, as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.errors import IrcError
from irc.frontends.torch.detached_writes import WRITTEN
from irc.frontends.torch.export import export
from irc.frontends.torch.own_backward import as_differentiated
from tests.calls.trained import trains_as_eager

functional: Any = nn.functional


class Net(nn.Module):
    """Two layers, and what is done between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(4, 3), nn.Linear(3, 2), between

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        more = self.between(h)
        return (self.last(h) * (1 + more)).square().mean()


def scaled(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.mul_(torch.tensor([2.0, 0.0, -1.0]))
    return h.mean()


def through_a_view(h: Tensor) -> Tensor:
    before = h[0]
    with torch.no_grad():
        h[:, 1].mul_(3)
        h.t().diagonal().add_(1)
    return before.sum()


def by_a_mask(h: Tensor) -> Tensor:
    with torch.no_grad():
        h[h > 0] = 0.5
        h /= h.norm()
    return h.sum()


def again_and_again(h: Tensor) -> Tensor:
    with torch.no_grad():
        for _ in range(2):
            h.mul_(0.9).add_(0.1)
        torch._foreach_mul_([h], 2.0)
    return torch.zeros(())


def by_options(h: Tensor) -> Tensor:
    doubled, mean, var = torch.empty_like(h), torch.zeros(3), torch.ones(3)
    with torch.no_grad():
        functional.relu(h, inplace=True)
        torch.mul(h, 2.0, out=doubled)
        functional.batch_norm(h, mean, var, training=True)
    return doubled.mean() + mean.sum()


def of_a_detached_one(h: Tensor) -> Tensor:
    detached = h.detach()
    detached.mul_(2)
    return detached.mean()


def of_its_data(h: Tensor) -> Tensor:
    data = h.data
    data[0] = 0
    h.data.clamp_(-0.2, 0.2)
    return data.mean()


def of_a_part(h: Tensor) -> Tensor:
    one, rest = h.detach().split([1, 2], 1)
    rest.mul_(3)
    return one.mean() + rest.sum()


def read_by_a_write(h: Tensor) -> Tensor:
    other = h * 1.5
    half = other * 2
    other.add_(h.detach())
    return (other + half).mean()


def through_views_of_what_was_written(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.index_add_(0, torch.tensor([0, 2]), torch.ones(2, 3))
        h.t()[0].fill_(3.0)
    return h.mean()


def outside_of_inference(h: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        h.index_add_(0, torch.tensor([0, 2]), torch.ones(2, 3))
        h.t()[0].fill_(3.0)
    return h.mean()


def with_gradients_on(h: Tensor) -> Tensor:
    with torch.no_grad(), torch.enable_grad():
        return h.square().mean()


def through_nested_views(h: Tensor) -> Tensor:
    h.detach()[0].detach()[1:] += 1
    with torch.no_grad():
        h.detach()[1].detach()[1:].mul_(2)
    return h.mean()


WAYS = [
    scaled, through_a_view, by_a_mask, again_and_again, by_options, of_a_detached_one, of_its_data,
    of_a_part, read_by_a_write, through_views_of_what_was_written, outside_of_inference,
    with_gradients_on, through_nested_views,
]  # fmt: skip


@pytest.mark.parametrize("between", WAYS)
def test_gradients_go_to_what_was_there_before(between: Callable[[Tensor], Tensor]) -> None:
    trains_as_eager(lambda: Net(between), (5, 4))


def test_a_loss_below_enable_grad_is_trained() -> None:
    class Enabled(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return super().forward(x)

    mine, theirs, x = Enabled(scaled), Net(scaled), torch.randn(5, 4)
    loss = irc.compile_step(mine, optimizer="sgd")(x, lr=0.1)
    expected = theirs(x)
    expected.backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("between", WAYS)
@torch.no_grad()
def test_calls_give_what_was_written(between: Callable[[Tensor], Tensor]) -> None:
    model, x = Net(between), torch.randn(5, 4)
    torch.testing.assert_close(irc.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_other_data_is_refused() -> None:
    def exchanged(h: Tensor) -> Tensor:
        h.data = h.data * 2
        return h.sum()

    step = irc.compile_step(Net(exchanged), optimizer="sgd")
    with pytest.raises(IrcError, match=r"the \.data of a tensor is set"):
        step(torch.randn(5, 4), lr=0.1)


def test_each_write_counts_once_however_deep_its_view() -> None:
    def written(depth: int) -> int:
        def nested(h: Tensor) -> Tensor:
            view = h
            for _ in range(depth):
                view = view.detach()[:4]
            view.add_(1)
            return h.mean()

        with as_differentiated():
            program = export(Net(nested), (torch.randn(5, 4),), {}, None)
        return sum(node.target is WRITTEN for node in program.graph.nodes)

    assert written(1) == written(5) == 1
