"""What a call changes besides its results is changed once, as in eager: a trace leaves no mark."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc

X = torch.linspace(-1, 2, 12).reshape(4, 3)
Scene = tuple[Callable[[Tensor], Tensor], Callable[[], Any]]
"""What is called, and what says how its surroundings are then."""


class Bag:
    """Holds what is put there."""

    count = 0


def _norm(hold: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> Scene:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    return hold(norm), lambda: (int(norm.num_batches_tracked), norm.running_mean.tolist())


def _listed(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    layers = [layer]
    return lambda x: layers[0](x)


def a_norm_in_a_closure() -> Scene:
    return _norm(lambda norm: lambda x: norm(x) * 2)


def a_norm_in_a_list() -> Scene:
    return _norm(_listed)


def a_counter() -> Scene:
    bag = Bag()

    def run(x: Tensor) -> Tensor:
        bag.count += 1
        return x * bag.count

    return run, lambda: bag.count


def a_variable() -> Scene:
    count = 0

    def run(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * 2

    return run, lambda: count


def a_list() -> Scene:
    calls: list[int] = []

    def run(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    return run, lambda: len(calls)


def a_cache() -> Scene:
    bag = Bag()

    def run(x: Tensor) -> Tensor:
        if not hasattr(bag, "cache"):
            bag.cache = x * 1
        return x + bag.cache

    return run, lambda: bag.cache.tolist()


def whole_numbers() -> Scene:
    total = torch.zeros(4, 3, dtype=torch.int64)

    def run(x: Tensor) -> Tensor:
        total[0].add_(1)
        return total + x

    return run, total.tolist


def fractions() -> Scene:
    total = torch.zeros(4, 3)

    def run(x: Tensor) -> Tensor:
        total[1:] += x[1:]
        return total * 2

    return run, total.tolist


def one_number() -> Scene:
    total = torch.zeros((), dtype=torch.int64)

    def run(x: Tensor) -> Tensor:
        torch.add(total, 1, out=total)
        return x

    return run, total.tolist


def a_kept_argument() -> Scene:
    bag: dict[str, Tensor] = {}

    def run(x: Tensor) -> Tensor:
        bag["last"] = x
        return x * 2

    return run, lambda: bag["last"].tolist()


class Sum(nn.Module):
    """Adds up what it is called with; each call makes another tensor of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.mean(0)
        return x - self.total


def an_assigned_buffer() -> Scene:
    module = Sum()
    return module, module.total.tolist  # of the first tensor, which stays as it is


def an_assigned_buffer_in_a_closure() -> Scene:
    module = Sum()
    return lambda x: module(x) * 2, lambda: module.total.tolist()


class Clamped(nn.Module):
    """Writes to its own parameters in each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.weight.clamp_(-0.3, 0.3)
            self.layer.bias.mul_(0.5)
        return self.layer(x)


def written_parameters() -> Scene:
    module = Clamped()
    return module, lambda: [*module.layer.bias.tolist(), *module.layer.weight[0].tolist()]


def written_parameters_in_a_closure() -> Scene:
    module = Clamped()
    return lambda x: module(x) * 2, lambda: module.layer.bias.tolist()


SCENES = (a_norm_in_a_closure, a_norm_in_a_list, a_counter, a_variable, a_list, a_cache,
          whole_numbers, fractions, one_number, a_kept_argument, an_assigned_buffer,
          an_assigned_buffer_in_a_closure, written_parameters,
          written_parameters_in_a_closure)  # fmt: skip


def _dynamo(run: Any) -> Any:
    return torch.compile(run, backend="irc")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", SCENES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("way", [irc.compile, _dynamo], ids=["irc.compile", "torch.compile"])
def test_effects_happen_once(way: Callable[[Any], Any], grad: bool, make: Any) -> None:
    torch._dynamo.reset()
    run, shown = make()
    mine, mine_shown = make()
    fast = way(mine)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            torch.testing.assert_close(fast(X), run(X))
            torch.testing.assert_close(_tensor(mine_shown()), _tensor(shown()))


def appends(x: torch.Tensor, items: list[Any], named: dict[str, Any]) -> torch.Tensor:
    items.append(items[0] * 2)
    return x + items[-1]


def replaces(x: torch.Tensor, items: list[Any], named: dict[str, Any]) -> torch.Tensor:
    items[0] = items[0] * 2
    return x + items[0]


def counts(x: torch.Tensor, items: list[Any], named: dict[str, Any]) -> torch.Tensor:
    named["calls"] += 1
    return x * named["calls"]


def renames(x: torch.Tensor, items: list[Any], named: dict[str, Any]) -> torch.Tensor:
    named["b"] = named.pop("a", items[0]) + 1
    return x + named["b"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [appends, replaces, counts, renames])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_lists_and_dictionaries_that_are_given_change_once(
    grad: bool, dynamic: bool | None, change: Callable[..., torch.Tensor]
) -> None:
    def story(run: Callable[..., torch.Tensor]) -> list[Any]:
        items: list[Any] = [torch.ones(3), torch.ones(1)]
        named: dict[str, Any] = {"a": torch.ones(2, 3), "calls": 1}
        told: list[Any] = []
        for _ in range(3):
            told += [
                run(torch.arange(3.0), items, named),
                len(items),
                items[0].clone(),
                len(named),
                "a" in named,
            ]
        return [*told, named["calls"]]

    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(story(irc.compile(change, dynamic=dynamic)), story(change))


def _tensor(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_tensor, value))
    return torch.tensor(value)


def test_a_mask_from_outside_is_read_and_not_written() -> None:
    """``~mask`` makes a new tensor, whatever its method is called."""
    mask = torch.ones(5, 7, dtype=torch.bool)
    run = irc.compile(lambda x: x.masked_fill(~mask, -1.0))
    with torch.no_grad():
        assert run(torch.zeros(5, 7)).abs().sum() == 0
        mask[0] = False
        assert run(torch.zeros(5, 7)).sum() == -7
