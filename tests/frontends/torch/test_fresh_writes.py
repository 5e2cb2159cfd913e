"""In-place ops on a graph's own values: made functional where nobody can tell, else left alone."""

# pyright: basic
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.frontends.torch import export as exporting
from irc.frontends.torch.fresh_writes import renew


def _residual(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    y.relu_()
    return y


def _views_made_later(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    v = y.view(-1)
    v.mul_(3)
    return v + 1


def _read_before(x: Tensor) -> Tensor:
    y = x * 2
    z = y.sum()
    y.add_(z)
    return y


def _two_operands(x: Tensor) -> Tensor:
    y = x * 2
    y.mul_(y)
    y.clamp_(min=-1, max=4)
    return y.masked_fill_(y > 3, -1.0)


def _a_view_is_read(x: Tensor) -> Tensor:
    y = x * 2
    v = y.view(-1)
    y.add_(1)
    return v * 2


def _the_base_is_read(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:].mul_(5)
    return y + 1


def _the_base_is_viewed_again(x: Tensor) -> Tensor:
    y = x * 2
    y[0].mul_(5)
    return y.t()


def _a_row_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[0]
    y.neg_()
    return row, y


def _an_alias_by_chance(x: Tensor) -> Tensor:
    y = x * 2
    z = torch.nn.functional.dropout(y, training=False).contiguous().to(torch.float32)
    z.add_(1)
    return y + z


def _half(x: Tensor) -> Tensor:
    y = x.half()
    y += x
    return y


def _input(x: Tensor) -> Tensor:
    x.view(-1).add_(1)
    return x * 2


RENEWED = (_residual, _views_made_later, _read_before, _two_operands)
LEFT = (
    _a_view_is_read, _the_base_is_read, _the_base_is_viewed_again, _a_row_is_returned,
    _an_alias_by_chance, _half, _input,
)  # fmt: skip


def _traced(target: Callable[..., Any], *args: Any) -> tuple[torch.fx.Graph, int]:
    """Return a graph after the pass, and how many ops in it still write."""
    module = exporting.as_module(target)
    with torch.no_grad():
        program = torch.export.export(module, args, strict=False)
    renew(program.graph)
    program.graph.lint()
    targets: list[Any] = [node.target for node in program.graph.nodes]
    left = sum(isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable for t in targets)
    return program.graph, left


@pytest.mark.parametrize("function", [*RENEWED, *LEFT], ids=lambda f: f.__name__[1:])
def test_results_are_eagers(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 5)
    mine, theirs = x.clone(), x.clone()
    with torch.no_grad():
        results = irc.compile(function)(mine)
        torch.testing.assert_close(results, function(theirs))
    torch.testing.assert_close(mine, theirs)


def _outputs_in_one_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.add_(1)
    return y, y.view(-1)


def _turned(x: Tensor) -> Tensor:
    y = (x * 2).t()
    y += x.t().contiguous()
    return y


# AOTAutograd takes dropout that is off for a copy, so of a graph that it has made functional what
# _an_alias_by_chance returns is wrong with every backend.
UNDER_DYNAMO = [*RENEWED, *LEFT, _outputs_in_one_memory, _turned]
UNDER_DYNAMO.remove(_an_alias_by_chance)


@pytest.mark.parametrize("function", UNDER_DYNAMO, ids=lambda f: f.__name__[1:])
def test_under_dynamo_results_lie_as_eagers(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 5)
    mine, theirs = x.clone(), x.clone()
    torch.compiler.reset()
    with torch.no_grad():
        results = torch.compile(function, backend="irc")(mine)
        wanted = function(theirs)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(results, wanted, check_stride=True)
    if function is _outputs_in_one_memory:
        results[0].zero_()
        assert results[1].abs().max() == 0


@pytest.mark.parametrize("function", RENEWED, ids=lambda f: f.__name__[1:])
def test_writes_that_nobody_sees_are_renewed(function: Callable[..., Any]) -> None:
    assert _traced(function, torch.randn(3, 5))[1] == 0


@pytest.mark.parametrize("function", LEFT, ids=lambda f: f.__name__[1:])
def test_writes_that_are_seen_are_left(function: Callable[..., Any]) -> None:
    assert _traced(function, torch.randn(3, 5))[1] == 1


class Residual(nn.Module):
    """A layer that adds in place: to its own value, or to its argument, which others read."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        """Add to one or the other."""
        if self.own:
            y = self.up(x)
            y += x
            return y
        x += self.up(x)
        return x


class Returned(nn.Module):
    """A layer that returns its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Nothing happens in eval mode."""
        return self.drop(x)


class Stack(nn.Module):
    """Equal layers, of which one is traced; writes inside them, or to what they return."""

    def __init__(self, layer: Callable[[], nn.Module], *, write: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(5))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        """Sum what the layers are given."""
        h, total = x * 1, x * 0
        for layer in self.layers:
            total = total + h
            y = layer(h)
            if self.write:
                y.mul_(0.5)
            total = total + h
            h = y
        return total + h


CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "own": (lambda: Residual(own=True), False),
    "own, and what is returned": (lambda: Residual(own=True), True),
    "argument": (lambda: Residual(own=False), False),
    "argument that is returned": (Returned, True),
}


@pytest.mark.parametrize("case", CASES)
def test_repeated_layers(case: str) -> None:
    layer, write = CASES[case]
    torch.manual_seed(0)
    model = Stack(layer, write=write).eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        wanted = copy.deepcopy(model)(x.clone())
        torch.testing.assert_close(irc.compile(model)(x), wanted)


def test_layers_that_write_to_their_own_values_are_traced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces: list[int] = []
    right: Callable[..., Any] = exporting._exported
    monkeypatch.setattr(exporting, "_exported", lambda *a: traces.append(1) or right(*a))
    with torch.no_grad():
        irc.compile(Stack(lambda: Residual(own=True), write=False).eval())(torch.randn(3, 8))
    assert len(traces) == 1
