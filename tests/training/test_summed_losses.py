"""Losses that are sums over samples: a step of micro-batches makes the loss of the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.calls import step_plan

Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "sum": lambda o, y: F.cross_entropy(o, y, reduction="sum"),
    # A constant of the user's, which is the number of samples of some micro-batches, or not.
    "half a sum": lambda o, y: o[:, 0].square().sum() / 2,
    "by seven": lambda o, y: F.cross_entropy(o, y, reduction="none").mul(3).sum().div(7),
    "by rows": lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(y),
    "sum and mean": lambda o, y: F.cross_entropy(o, y) + 0.01 * o.square().sum() - 3 * o.mean(),
    "mean of sums": lambda o, y: o.square().sum(0).mean(),
    "sum of means": lambda o, y: o.square().mean(0).sum(),
    # Means that are written otherwise.
    "sum of parts": lambda o, y: (F.cross_entropy(o, y, reduction="none") / len(y)).sum(),
    "masked": lambda o, y: (o[:, 0] * (y > 0) / (y > 0).sum().clamp(min=1)).sum(),
    "shares": lambda o, y: (o[:, 0] * (y + 1.0) / (y + 1.0).sum()).sum(),
    "by a tensor": lambda o, y: o.square().sum() / torch.tensor(float(len(y))),
    "by ones": lambda o, y: 0.5 * (o.square().sum() / torch.ones_like(y).sum()),
    "filled": lambda o, y: torch.dot(o[:, 0], torch.full((len(y),), 1 / len(y), dtype=o.dtype)),
    # Sums that are.
    "dot": lambda o, y: torch.dot(o[:, 0], (y + 1).to(o.dtype)),
    "stacked": lambda o, y: torch.stack([o.sum(), o.square().sum()]).sum(),
    "one sum twice": lambda o, y: (s := o.square().sum()) + s / len(y),
    "stack of both": lambda o, y: torch.stack([F.cross_entropy(o, y), o.square().sum()]).sum(),
    "weighed stack": lambda o, y: (
        torch.stack([o.mean(), o.square().sum()]) * torch.tensor([1.0, 0.1], dtype=o.dtype)
    ).sum(),
    "finite": lambda o, y: torch.where(
        torch.isfinite(s := o.square().sum()), s, torch.zeros_like(s)
    ),
    # What weighs a term is prepared before sums over the batch read it.
    "weighed tokens": lambda o, y: (
        torch.stack([F.cross_entropy(o, y), o.square().mean()])
        * torch.tensor([0.7, 0.1], dtype=o.dtype)
    ).sum(),
    "norm of all": lambda o, y: F.mse_loss(o, torch.zeros_like(o), reduction="sum") * 0.5,
}


@pytest.mark.parametrize("rows", [12, 10])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_that_of_the_batch(name: str, rows: int) -> None:
    """Of equal micro-batches of three, and of 3, 3, 2 and 2 samples."""
    torch.manual_seed(0)
    theirs = nn.Linear(5, 4).double()
    mine = copy.deepcopy(theirs)
    x, y = torch.randn(rows, 5, dtype=torch.float64), torch.randint(4, (rows,))
    loss, optimizer = LOSSES[name], torch.optim.SGD(theirs.parameters(), lr=1e-2)
    own = torch.optim.SGD(mine.parameters(), lr=1e-2)
    step = irc.compile_step(mine, loss=loss, optimizer=own, micro_batches=4)
    for _ in range(2):
        wanted = loss(theirs(x), y)
        wanted.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(step(x, y), wanted.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(mine.weight, theirs.weight, rtol=1e-12, atol=1e-14)


class Reads(nn.Module):
    """Attention within each sample, which torch computes by other ops where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x)
        return self.out(((h @ h.transpose(-1, -2)).softmax(-1) @ h).mean(1))


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_of_one_sample(name: str) -> None:
    """The terms of their loss are known from larger ones; rows of 4, and of 2, 2, 1."""
    torch.manual_seed(0)
    # A weighted mean of one sample has other ops than one of two: refused, a limit of 5 in 3.
    for rows, parts in [(4, 4)] + [(5, 3)] * (name not in ("masked", "shares")):
        theirs = Reads().double()
        mine = copy.deepcopy(theirs)
        x, y = torch.randn(rows, 3, 5, dtype=torch.float64), torch.randint(4, (rows,))
        wanted = LOSSES[name](theirs(x), y)
        wanted.backward()
        own = torch.optim.SGD(mine.parameters(), lr=1.0)
        before = mine.inside.weight.detach().clone()
        step = irc.compile_step(mine, loss=LOSSES[name], optimizer=own, micro_batches=parts)
        torch.testing.assert_close(step(x, y), wanted.detach(), rtol=1e-12, atol=0)
        grad = before - mine.inside.weight.detach()
        torch.testing.assert_close(grad, theirs.inside.weight.grad, rtol=1e-10, atol=1e-13)


def captures(loss: Loss, rows: int) -> int:
    """Return how often a step of two micro-batches is captured."""
    with mock.patch.object(step_plan, "capture", wraps=step_plan.capture) as each:
        step = irc.compile_step(nn.Linear(5, 40), loss=loss, optimizer="sgd", micro_batches=2)
        step(torch.randn(rows, 5), torch.randint(4, (rows,)))
    return each.call_count


def test_a_mean_over_tokens_is_captured_once() -> None:
    """It is seen by what divides it."""
    assert captures(F.cross_entropy, 8) == 1
    assert captures(LOSSES["sum"], 8) == 2


class Layer(nn.Module):
    """Gives a sum over samples beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.line(x))
        return h, h.square().sum()


class Regular(nn.Module):
    """Equal layers, which are captured once, and what each adds to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        more = torch.zeros((), dtype=x.dtype)
        for layer in self.layers:
            x, each = layer(x)
            more = more + each
        return (x[:, 0] - y).square().mean() + 0.01 * more


class Weighed(nn.Linear):
    """Divides a sum over samples by weights that are not of samples."""

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:  # type: ignore[override]
        return torch.where(y[:, None] > 0, super().forward(x).square(), 0.0).sum() / w.sum()


@pytest.mark.parametrize("rows", [8, 10])
@pytest.mark.parametrize("make", [Regular, lambda: Weighed(5, 4)], ids=["layers", "weighed"])
def test_sums_inside_a_module(make: Callable[[], nn.Module], rows: int) -> None:
    torch.manual_seed(0)
    theirs = make().double()
    mine = copy.deepcopy(theirs)
    x, y, w = (torch.rand(*s, dtype=torch.float64) for s in ((rows, 5), (rows,), (3,)))
    batch = (x, y - 0.5, w)[: 2 + isinstance(theirs, Weighed)]
    wanted = theirs(*batch)
    wanted.backward()
    step = irc.compile_step(
        mine, optimizer=torch.optim.SGD(mine.parameters(), lr=1.0), micro_batches=4
    )
    before = [p.detach().clone() for p in mine.parameters()]
    torch.testing.assert_close(step(*batch), wanted.detach(), rtol=1e-12, atol=0)
    for p, was, own in zip(mine.parameters(), before, theirs.parameters(), strict=True):
        torch.testing.assert_close(was - p.detach(), own.grad, rtol=1e-10, atol=1e-13)


UNKNOWN: dict[str, Loss] = {
    "norm": lambda o, y: o.square().sum().sqrt(),
    "by squares": lambda o, y: o.abs().sum() / len(y) ** 2,
    "classes": lambda o, y: torch.zeros(4, dtype=o.dtype).index_add(0, y, o[:, 0]).sum(),
    "either": lambda o, y: torch.where(o.sum() > 0, o.square().sum(), o.mean()),
    "contrasts": lambda o, y: F.cross_entropy(o @ o.T, torch.arange(len(o))),
    "no nan": lambda o, y: torch.nan_to_num(o.square().sum()),
    "of all": lambda o, y: o.logsumexp(0).sum(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_neither_a_sum_nor_a_mean_is_warned_of(name: str) -> None:
    """It counts as a mean."""
    step = irc.compile_step(
        nn.Linear(5, 4).double(), loss=UNKNOWN[name], optimizer="sgd", micro_batches=2
    )
    with pytest.warns(step_plan.LossWarning, match="neither a mean nor a sum"):
        step(torch.randn(8, 5, dtype=torch.float64), torch.randint(4, (8,)))


class Table(nn.Module):
    """Takes so many samples at once, and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(5, 4)
        self.register_buffer("table", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.line(x) * self.table).square().mean()


def test_a_module_of_one_size_is_warned_of() -> None:
    """Where no other micro-batch can be captured, the loss is what it was: the mean."""
    torch.manual_seed(0)
    model, x = Table(), torch.randn(8, 5)
    wanted = model.line(x).square().mean().item()
    step = irc.compile_step(model, optimizer="sgd", micro_batches=2)
    with pytest.warns(step_plan.LossWarning, match="taken for a mean over samples"):
        assert step(x).item() == pytest.approx(wanted, rel=1e-6)


class Unrolled(nn.Linear):
    """Has an op for each of its samples."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        rows = [super(Unrolled, self).forward(row).square().mean() for row in input]
        return torch.stack(rows).mean()


def test_a_module_of_other_ops_is_warned_of() -> None:
    """Its captures cannot be compared."""
    step = irc.compile_step(Unrolled(5, 4), optimizer="sgd", micro_batches=2)
    with pytest.warns(step_plan.LossWarning, match="computed by other ops"):
        step(torch.randn(4, 5))
