"""Stubs of repeated layers: the graph is the one that plain tracing gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.text import dump
from irc.frontends.torch import export, repeat
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function
from tests.models import cnn, gpt, hugging_face

X = torch.randn(3, 5)
SMALL = gpt.GPTConfig(layers=5, hidden=32, heads=2, vocab=97, block=16)
IDS = torch.randint(0, 97, (2, 9))


class Layer(nn.Module):
    """A layer that knows its index, as those of transformers do."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.inner = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5)

    def forward(
        self, x: Tensor, scale: Tensor | None = None, *, flag: bool = False
    ) -> tuple[Tensor, None]:
        """Return a tuple, as those of transformers do."""
        y = F.gelu(self.inner(self.norm(x)))
        return x + (y if scale is None else y * scale) * (2 if flag else 1), None


class Indexed(Layer):
    """A layer whose result depends on its index."""

    def forward(
        self, x: Tensor, scale: Tensor | None = None, *, flag: bool = False
    ) -> tuple[Tensor, None]:
        """Scale by the index."""
        return super().forward(x)[0] * self.index, None


class Counting(Layer):
    """A layer that writes to an attribute."""

    def forward(
        self, x: Tensor, scale: Tensor | None = None, *, flag: bool = False
    ) -> tuple[Tensor, None]:
        """Keep what it saw."""
        self.seen = x.shape
        return super().forward(x)


class Stack(nn.Module):
    """Layers called with a shared tensor, one of them otherwise."""

    def __init__(self, kind: type[Layer] = Layer, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(i) for i in range(count))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Apply them all."""
        for i, layer in enumerate(self.layers):
            x, _ = layer(x, scale, flag=i == 3)
        return x


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layers that were traced, not stubbed."""
    seen: list[str] = []
    real = repeat._watched

    def note(layer: nn.Module, differing: Any) -> Any:
        seen.append(type(layer).__name__)
        return real(layer, differing)

    monkeypatch.setattr(repeat, "_watched", note)
    return seen


@contextlib.contextmanager
def without_stubs(_: nn.Module) -> Iterator[bool]:
    yield False


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]]] = {
    "gpt": lambda: (gpt.GPT(SMALL), (IDS,), {}, 1),
    "llama": lambda: (hugging_face.llama(5), (IDS,), {"use_cache": False}, 1),
    "other arguments": lambda: (Stack(), (X, X[:, :1]), {}, 2),
    "index": lambda: (Stack(Indexed), (X, X), {}, 6),
    "attribute": lambda: (Stack(Counting), (X, X), {}, 6),
    "few": lambda: (Stack(count=3), (X, X), {}, 0),
    "batch norm": lambda: (cnn.CNN(blocks=4).eval(), (torch.randn(2, 3, 23, 29),), {}, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_is_that_of_plain_tracing(
    name: str, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, args, kwargs, count = MODELS[name]()
    model.eval()
    stubbed = dump(capture(model, args, kwargs).program.module)
    assert len(traced) == count
    monkeypatch.setattr(export, "stubbed", without_stubs)
    assert dump(capture(model, args, kwargs).program.module) == stubbed


class Cast(Stack):
    """Layers that autocast is on around, and off again around one of them."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Apply them all."""
        with torch.autocast("cpu", torch.bfloat16):
            x = super().forward(x, scale)
            with torch.autocast("cpu", enabled=False):
                return self.layers[0](x, scale)[0]


def test_layers_under_autocast(traced: list[str], check: Callable[..., Captured]) -> None:
    """Their copies have their own parameters; the casts do not depend on where the program runs."""
    check(Cast(), X, X[:, :1], tolerance=2e-2)
    assert len(traced) == 3  # one is given a flag, one has no casts
    model = Stack()
    with torch.autocast("cpu", torch.bfloat16):
        captured = capture(model, (X, X[:, :1]))
        wanted = model(X, X[:, :1])
    assert not captured.externs
    program = captured.program
    inputs = dict(zip(program.input_names, (X, X[:, :1]), strict=True))
    (output,) = run_function(program.module, program.bind(inputs))
    torch.testing.assert_close(output, wanted, atol=2e-2, rtol=2e-2)


def test_stubs_leave_no_trace_on_the_module(check: Callable[..., Captured]) -> None:
    model = Stack()
    before = [dict(vars(child)) for child in model.modules()]
    check(model, X, X[:, :1])
    assert [dict(vars(child)) for child in model.modules()] == before
    assert all(type(layer) is Layer for layer in model.layers)


def test_shared_parameters_stay_shared(check: Callable[..., Captured]) -> None:
    model = Stack()
    for layer in model.layers:
        layer.inner.weight = model.layers[0].inner.weight
    captured = check(model, X, X)
    assert [name for name in captured.program.tensors if name.endswith("inner.weight")] == [
        "layers.0.inner.weight"
    ]


def test_named_sizes_pass_through() -> None:
    captured = capture(Stack(), (X, X[:, :1]), dynamic_shapes={"x": {0: "B"}, "scale": {0: "B"}})
    assert "!flow.tensor<[B, 5], f32>" in dump(captured.program.module)
    assert not captured.externs


def test_layers_that_write_in_place(check: Callable[..., Captured]) -> None:
    class Writing(Layer):
        def forward(
            self, x: Tensor, scale: Tensor | None = None, *, flag: bool = False
        ) -> tuple[Tensor, None]:
            y = self.inner(x)
            y.add_(x).mul_(2)
            return y, None

    check(Stack(Writing), X, X)


def test_random_layers_draw_different_numbers() -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Identity(), nn.Dropout(0.5)) for _ in range(4))
    ).train()
    text = dump(capture(model, (X,)).program.module)
    assert (
        len(
            {
                line.partition("stream = ")[2][:2]
                for line in text.splitlines()
                if "flow.random" in line
            }
        )
        == 4
    )
