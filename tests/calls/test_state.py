"""What a module and a function are when they are called: their state counts, as in eager mode."""

# pyright: basic
from __future__ import annotations

import copy
import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import irc
from irc.calls.compiled import statistics
from tests.calls.trained import trains_as_eager

pytestmark = [
    pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning"),
    pytest.mark.filterwarnings("ignore:.*graph-break:irc.calls.left.LeftToTorchWarning"),
]


class Colour(enum.Enum):
    """Something to choose."""

    RED = 1
    BLUE = 2


@dataclass
class Choices:
    """Options of a module."""

    scale: float = 2.0
    parts: list[int] = field(default_factory=lambda: [1, 2])


SCALE = 2.0


def scaled(own: Any, x: Tensor) -> Tensor:
    """Read a global."""
    return x * SCALE


def counted(own: Any, x: Tensor) -> Tensor:
    """Count calls."""
    own.value += 1
    return x * own.value


def listed(own: Any, x: Tensor) -> Tensor:
    """Note calls in a list."""
    own.value.append(1)
    return x * len(own.value)


def filled(own: Any, x: Tensor) -> Tensor:
    """Fill an attribute once."""
    if own.value is None:
        own.value = 3.0
    return x * own.value


def extended(own: Any, x: Tensor) -> Tensor:
    """Read what may not be there."""
    y = x * 2 if hasattr(own, "more") else x
    return y + own.extra if "extra" in own._buffers else y


Change = Callable[[Any], Any]


def rescale(_: Any) -> None:
    """Change the global."""
    global SCALE
    SCALE = 7.0


def _set(value: Any) -> Change:
    return lambda m: setattr(m, "value", value)


CASES: dict[str, tuple[Callable[[Any, Tensor], Tensor], Any, list[Change]]] = {
    "tuple": (lambda s, x: x * s.value[0], (2, 3), [_set((5, 3))]),
    "list": (lambda s, x: x * s.value[0], [2, 3], [lambda m: m.value.__setitem__(0, 7)]),
    "shorter list": (lambda s, x: x * len(s.value), [2, 3], [lambda m: m.value.pop()]),
    "dict": (lambda s, x: x * s.value["a"], {"a": 2}, [lambda m: m.value.update(a=7)]),
    "longer dict": (lambda s, x: x * len(s.value), {"a": 2}, [lambda m: m.value.update(b=7)]),
    "nested": (lambda s, x: x * s.value[0][1], [[1, 2]], [lambda m: m.value[0].reverse()]),
    "dtype": (lambda s, x: x.to(s.value), torch.float64, [_set(torch.bfloat16)]),
    "function": (lambda s, x: s.value(x), torch.relu, [_set(torch.tanh), _set(F.silu)]),
    "namespace": (
        lambda s, x: x * s.value.a,
        types.SimpleNamespace(a=2),
        [lambda m: setattr(m.value, "a", 7), _set(types.SimpleNamespace(a=9))],
    ),
    "dataclass": (
        lambda s, x: x * s.value.scale + s.value.parts[0],
        Choices(),
        [
            lambda m: setattr(m.value, "scale", 5.0),
            lambda m: m.value.parts.__setitem__(0, 9),
        ],
    ),
    "enum": (
        lambda s, x: x * (2 if s.value is Colour.RED else 3),
        Colour.RED,
        [_set(Colour.BLUE)],
    ),
    "whole or not": (lambda s, x: x.long() * s.value, 1, [_set(1.0), _set(True)]),
    "tensor": (
        lambda s, x: x * s.value,
        torch.full((4,), 2.0),
        [lambda m: m.value.mul_(2), _set(torch.ones(4))],
    ),
    "tensors": (
        lambda s, x: x * s.value[0],
        [torch.full((4,), 2.0)],
        [lambda m: m.value[0].mul_(2), lambda m: m.value.__setitem__(0, torch.ones(4))],
    ),
    "modules": (
        lambda s, x: s.value[0](x),
        [nn.Linear(4, 4)],
        [
            lambda m: nn.init.ones_(m.value[0].weight),
            lambda m: setattr(m.value[0], "weight", nn.Parameter(torch.full((4, 4), 0.5))),
            lambda m: m.value.__setitem__(0, nn.ReLU()),
        ],
    ),
    "global": (scaled, None, [rescale]),
    "counted": (counted, 0, [lambda m: None, lambda m: None]),
    "listed": (listed, [], [lambda m: None, lambda m: None]),
    "filled": (filled, None, [lambda m: None, _set(4.0)]),
    "added": (
        extended,
        None,
        [
            lambda m: setattr(m, "more", 1),
            lambda m: m.register_buffer("extra", torch.ones(4)),
            lambda m: delattr(m, "extra"),
            lambda m: delattr(m, "more"),
        ],
    ),
}

LAYERS: dict[str, tuple[Callable[[], nn.Module], Change, tuple[int, ...]]] = {
    "eps": (lambda: nn.LayerNorm(4), lambda m: setattr(m, "eps", 1.0), (2, 4)),
    "slope": (nn.LeakyReLU, lambda m: setattr(m, "negative_slope", 1.0), (2, 4)),
    "dim": (lambda: nn.Softmax(1), lambda m: setattr(m, "dim", 0), (2, 4)),
    "approximate": (nn.GELU, lambda m: setattr(m, "approximate", "tanh"), (2, 4)),
    "stride": (lambda: nn.Conv2d(1, 1, 3), lambda m: setattr(m, "stride", (2, 2)), (1, 1, 8, 8)),
    "kernel": (lambda: nn.MaxPool2d(2), lambda m: setattr(m, "kernel_size", 3), (1, 1, 8, 8)),
    "factor": (
        lambda: nn.Upsample(scale_factor=2),
        lambda m: setattr(m, "scale_factor", 3.0),
        (1, 1, 4, 4),
    ),
    "bias": (
        lambda: nn.Linear(4, 4, bias=False),
        lambda m: setattr(m, "bias", nn.Parameter(torch.ones(4))),
        (2, 4),
    ),
    "append": (lambda: nn.Sequential(nn.Tanh()), lambda m: m.append(nn.Sigmoid()), (2, 4)),
    "inner append": (
        lambda: nn.Sequential(nn.Tanh(), nn.Sequential(nn.ReLU())),
        lambda m: m[1].append(nn.Sigmoid()),
        (2, 4),
    ),
    "pop": (lambda: nn.Sequential(nn.Tanh(), nn.Sigmoid()), lambda m: m.pop(1), (2, 4)),
    "p": (lambda: nn.Dropout(0.0), lambda m: setattr(m, "p", 1.0), (2, 4)),
    "momentum": (
        lambda: nn.BatchNorm1d(4),
        lambda m: (setattr(m, "momentum", 1.0), setattr(m, "eps", 2.0)),
        (2, 4),
    ),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    global SCALE
    SCALE = 2.0
    torch._dynamo.reset()
    yield
    torch.set_default_dtype(torch.float32)


def module_of(forward: Any, value: Any) -> nn.Module:
    """Return a module with an attribute."""
    cls = type("Own", (nn.Module,), {"forward": forward})
    module = cls()
    module.value = copy.deepcopy(value)
    return module


def history(net: nn.Module, run: Any, changes: list[Change], x: Tensor) -> list[Any]:
    """Return results of calls between changes, and what is left of the module's state."""
    results = [run(x).detach().clone(), run(x).detach().clone()]
    for change in changes:
        with torch.no_grad():
            change(net)
        results += [run(x).detach().clone() for _ in range(2)]
    return [*results, [b.clone() for b in net.buffers()]]


WAYS: dict[str, Callable[[Any], Any]] = {
    "compile": irc.compile,
    "backend": lambda m: torch.compile(m, backend="irc"),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_what_a_module_reads_counts(name: str, way: str, grad: bool) -> None:
    global SCALE
    forward, value, changes = CASES[name]
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(grad)
    nets = [module_of(forward, value) for _ in range(2)]
    with torch.set_grad_enabled(grad):
        wanted = history(nets[0], nets[0], changes, x)
        SCALE = 2.0
        got = history(nets[1], WAYS[way](nets[1]), changes, x)
    torch.testing.assert_close(got, wanted)
    assert repr(vars(nets[1])["value"]) == repr(vars(nets[0])["value"])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_options_of_layers_count(name: str, grad: bool) -> None:
    make, change, shape = LAYERS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape).requires_grad_(grad)
    other = copy.deepcopy(net)
    with torch.set_grad_enabled(grad):
        wanted = history(net, net, [change], x)
        got = history(other, irc.compile(other), [change], x)
    torch.testing.assert_close(got, wanted)


def test_a_module_that_fills_an_attribute_once_is_compiled_then() -> None:
    net, x = irc.compile(module_of(filled, None)), torch.randn(2, 4)
    with torch.no_grad():
        net(x)
        assert statistics(net).compilations == 0
        net(x)
    assert statistics(net).compilations == 1


def test_equal_values_do_not_compile_again() -> None:
    net: Any = irc.compile(module_of(lambda s, x: x * s.value[0], [1000, (2.5, "a")]))
    x = torch.randn(2, 4)
    with torch.no_grad():
        net(x)
        net.value[0] = int("1000")
        net.value[1] = (float("2.5"), "a")
        net(x)
    assert statistics(net).compilations == 1


def test_a_trace_leaves_the_callers_lists_and_dictionaries() -> None:
    value = {"a": [1.0]}
    net = nn.Sequential(module_of(lambda s, x: x * s.value["a"][0], None))
    net[0].value = value
    run, x = irc.compile(net), torch.ones(2)
    with torch.no_grad():
        run(x)
        value["a"][0] = 3.0
        assert run(x).tolist() == [3.0, 3.0]
    assert net[0].value is value


def both(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Switch recording on and off."""
    with torch.no_grad():
        off = x * weight
    with torch.enable_grad():
        on = x * weight
    return off, on


def switched(x: Tensor, weight: Tensor) -> Tensor:
    """Leave recording on."""
    torch.set_grad_enabled(True)
    return x * weight


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [both, switched])
def test_a_call_switches_recording(function: Any, way: str) -> None:
    x, weight = torch.randn(3), torch.randn(3, requires_grad=True)
    told: list[Any] = []
    for run in (function, WAYS[way](function)):
        with torch.no_grad():
            results = pytree.tree_leaves(run(x, weight))
            told.append(([each.requires_grad for each in results], torch.is_grad_enabled()))
    assert told[1] == told[0]


class Negated(Tensor):
    """Sums are negated."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return -result if func in (torch.add, F.linear) else result


class Odd(nn.Module):
    """A buffer that is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.register_buffer("sparse", torch.eye(4).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return self.l(torch.sparse.mm(self.sparse, x.t()).t())


def negated() -> nn.Module:
    """Return a layer with a weight of a class of its own."""
    net = nn.Linear(4, 3)
    weight = net.weight.detach().as_subclass(Negated)  # type: ignore[arg-type]
    net.weight = nn.Parameter(weight)
    return net


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [Odd, negated])
def test_odd_tensors_that_a_module_holds(make: Callable[[], nn.Module], grad: bool) -> None:
    net, x = make(), torch.randn(2, 4)
    with torch.set_grad_enabled(grad):
        wanted = net(x)
        got = irc.compile(net)(x)
    # Dynamo loses the class in some functions, with any backend.
    assert type(got) is type(torch.compile(net, backend="eager")(x))
    torch.testing.assert_close(got.detach(), wanted.detach())


class Noted(nn.Module):
    """Keeps what it computed last, which it never reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 1)
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.line(x).square().mean()
        self.get_buffer("last").copy_(loss.detach())
        self.get_buffer("calls").add_(1)
        return loss


def test_a_buffer_that_is_written_and_not_read() -> None:
    x = torch.randn(8, 4)
    plain, module, trained = Noted(), Noted(), Noted()
    with torch.no_grad():
        torch.testing.assert_close(irc.compile(module)(x), plain(x))
    torch.testing.assert_close(dict(module.state_dict()), dict(plain.state_dict()))
    step = irc.compile_step(trained, optimizer="sgd")
    for count in (1, 2):
        loss = step(x, lr=0.1)
        torch.testing.assert_close(trained.get_buffer("last"), loss)
        assert trained.get_buffer("calls") == count


@pytest.mark.parametrize(
    "normed", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_step_of_what_is_normed_by_its_spectrum(normed: Any) -> None:
    """Of the two vectors that a power iteration keeps, one is never read."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line = normed(nn.Linear(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.line(x).square().mean()

    trains_as_eager(Model, (8, 4), rtol=1e-3, atol=1e-4)


def test_a_step_does_not_train_through_what_is_written_without_gradients() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("low", torch.tensor(0.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.line(x)
            with torch.no_grad():
                self.get_buffer("mean").mul_(0.9).add_(y.mean(0), alpha=0.1)
                low = torch.minimum(y.min(), torch.tensor(-0.1))
                torch.mul(low, 2, out=self.get_buffer("low"))
            return ((y - self.get_buffer("mean")) * self.get_buffer("low")).square().mean()

    trains_as_eager(Model, (8, 4), rtol=1e-3, atol=1e-4)
