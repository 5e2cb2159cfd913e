"""Hooks on a compiled module, on its layers and on all modules: each runs once, as in eager."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module

import irc
from irc.calls.compiled import statistics
from irc.calls.recompiles import RecompileWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning"),
    # Dynamo leaves layers with backward hooks to Python.
    pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning"),
]

LOG: list[Any] = []

of_all: Any = module


class Net(nn.Module):
    """Two layers and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return what the layers make of it, scaled."""
        return self.b(torch.relu(self.a(x))) * scale


def after(_: nn.Module, args: Any, output: Tensor) -> Tensor:
    """Scale what comes out."""
    LOG.append(("after", len(args), tuple(output.shape)))
    return output * 2


def after_with(_: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    """Scale what comes out by a keyword."""
    LOG.append(("after", len(args), sorted(kwargs)))
    return output * kwargs.get("scale", 3.0)


def before(_: nn.Module, args: Any) -> Any:
    """Move what goes in."""
    LOG.append(("before", len(args)))
    return (args[0] + 1, *args[1:])


def before_with(_: nn.Module, args: Any, kwargs: Any) -> Any:
    """Move what goes in and double a keyword."""
    LOG.append(("before", len(args), sorted(kwargs)))
    return (args[0] + 1, *args[1:]), {name: value * 2 for name, value in kwargs.items()}


def backward(_: nn.Module, input_gradients: Any, gradients: Any) -> Any:
    """Double gradients."""
    LOG.append(("backward", tuple(gradients[0].shape)))
    return tuple(None if g is None else g * 2 for g in input_gradients)


def before_backward(_: nn.Module, gradients: Any) -> Any:
    """Triple gradients."""
    LOG.append(("before backward", len(gradients)))
    return tuple(g * 3 for g in gradients)


def of_weight(gradient: Tensor) -> Tensor:
    """Double one gradient."""
    LOG.append("of a weight")
    return gradient * 2


HOOKS: dict[str, Callable[[Any], Any]] = {
    "after": lambda m: m.register_forward_hook(after),
    "after with keywords": lambda m: m.register_forward_hook(after_with, with_kwargs=True),
    "after, always": lambda m: m.register_forward_hook(after, always_call=True),
    "before": lambda m: m.register_forward_pre_hook(before),
    "before with keywords": lambda m: m.register_forward_pre_hook(before_with, with_kwargs=True),
    "backward": lambda m: m.register_full_backward_hook(backward),
    "before backward": lambda m: m.register_full_backward_pre_hook(before_backward),
    "layer after": lambda m: m.a.register_forward_hook(after),
    "layer before": lambda m: m.b.register_forward_pre_hook(before),
    "layer backward": lambda m: m.a.register_full_backward_hook(backward),
    "layer before backward": lambda m: m.b.register_full_backward_pre_hook(before_backward),
    "all after": lambda m: of_all.register_module_forward_hook(after),
    "all before": lambda m: of_all.register_module_forward_pre_hook(before),
    "all backward": lambda m: of_all.register_module_full_backward_hook(backward),
    "weight": lambda m: m.a.weight.register_hook(of_weight),
    "weight after": lambda m: m.a.weight.register_post_accumulate_grad_hook(
        lambda p: LOG.append("accumulated")
    ),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MADE: dict[str, Callable[[], nn.Module]] = {
    "eager": Net,
    "instance": lambda: irc.compile(Net()),
    "class": lambda: irc.compile(Net)(),
}


def called(net: nn.Module, grad: bool) -> tuple[list[Any], list[Tensor]]:
    """Return what hooks noted during a call, and results and gradients."""
    LOG.clear()
    net.zero_grad()
    with torch.set_grad_enabled(grad):
        x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(grad)
        y = net(x, scale=1.5)
        if grad:
            y.sum().backward()
    gradients = [p.grad.clone() for p in (x, *net.parameters()) if p.grad is not None]
    return [*LOG], [y.detach(), *gradients]


def history(way: str, hook: str, when: str, grad: bool) -> list[Any]:
    """Return what calls do with a hook that is there before, or comes and goes between calls."""
    torch.manual_seed(0)
    net = MADE[way]()
    seen: list[Any] = []
    if when == "later":
        seen.append(called(net, grad))
    handle = HOOKS[hook](net)
    try:
        seen += [called(net, grad), called(net, grad)]
    finally:
        handle.remove()
    return [*seen, called(net, grad), called(net, grad)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_runs_as_in_eager(hook: str, when: str, grad: bool) -> None:
    wanted = history("eager", hook, when, grad)
    way = "class" if when == "first" else "instance"
    for (noted, values), (notes, expected) in zip(
        history(way, hook, when, grad), wanted, strict=True
    ):
        assert noted == notes
        torch.testing.assert_close(values, expected)


def test_calls_are_compiled_again_when_a_layers_hook_is_gone() -> None:
    net, x = irc.compile(Net()), torch.randn(2, 4)
    with torch.no_grad():
        handle = net.a.register_forward_hook(after)
        net(x)
        assert statistics(net).compilations == 0
        handle.remove()
        net(x)
        handle = net.a.register_forward_hook(after)
        net(x)
        handle.remove()
        net(x)
    assert statistics(net).compilations == 1


def test_a_hook_on_a_layer_that_came_later_runs() -> None:
    net, x = irc.compile(Net()), torch.randn(2, 4)
    with torch.no_grad():
        net(x)
        net.a = nn.Linear(4, 5)
        net.a.register_forward_hook(after)
        LOG.clear()
        for _ in range(2):
            torch.testing.assert_close(net(x), irc.original(net)(x))
    assert len(LOG) == 4


@pytest.mark.filterwarnings("default::irc.calls.recompiles.RecompileWarning")
def test_hooks_on_all_modules_are_warned_of_once() -> None:
    net, x = irc.compile(Net()), torch.randn(2, 4)
    handle = of_all.register_module_forward_hook(after)
    try:
        with torch.no_grad(), pytest.warns(RecompileWarning, match="hooks on all modules") as seen:
            assert all(net(x) is not None for _ in range(2))
    finally:
        handle.remove()
    assert len(seen) == 1
    assert statistics(net).eager_calls == 2


def test_a_trace_for_others_has_the_modules_own_hooks() -> None:
    net = Net()
    net.register_forward_hook(after)
    LOG.clear()
    outer = irc.compile(nn.Sequential(irc.compile(net), nn.ReLU()))
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(outer(x), torch.relu(net(x)))


def test_an_exception_reaches_a_hook_that_is_always_called() -> None:
    net: Any = irc.compile(nn.Linear(4, 3))
    seen: list[Any] = []
    net.register_forward_hook(lambda m, args, output: seen.append(output), always_call=True)
    with torch.no_grad(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        net(torch.randn(2, 5))
    assert seen == [None]
