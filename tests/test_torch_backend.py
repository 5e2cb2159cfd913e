"""``torch.compile(backend="irc")``: inference, training, graph breaks, open sizes, mutation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from irc import torch_backend
from irc.errors import IrcError
from irc.torch_backend import counters


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(target: Any, **options: Any) -> Any:
    return torch.compile(target, backend=torch_backend.compile_fx, **options)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 3))


def test_the_backend_has_a_name() -> None:
    assert "irc" in torch._dynamo.list_backends()


def test_inference_traces_once_and_sees_new_weights() -> None:
    model, x = small(), torch.randn(5, 7)
    with torch.no_grad():
        run = compiled(model)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
        model[0].weight.add_(1)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert counters == {"graphs": 1, "forward": 1}


def test_modules_of_one_form_share_a_graph() -> None:
    first, second, x = small(), small(), torch.randn(5, 7)
    with torch.no_grad():
        second[0].weight.mul_(2)
        run = compiled(lambda module, x: module(x))
        for module in (first, second, first, second):
            torch.testing.assert_close(run(module, x), module(x), rtol=1e-5, atol=1e-5)
    assert counters["forward"] == counters["rebound"] == 1


def test_training_takes_the_same_steps() -> None:
    mine, x = small(), torch.randn(5, 7)
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (mine, theirs)]
    for _ in range(2):
        for optimizer, forward in zip(optimizers, (run, theirs), strict=True):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert counters["backward"] == 1
    assert not counters["backward run by torch"]


def test_a_backward_that_does_not_compile_is_counted_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(graph: Any, held: Any, source: str, **options: Any) -> Any:
        if source == "aot backward":
            raise IrcError("op-unsupported", "an operation of another planet")
        return real(graph, held, source, **options)

    real = torch_backend.flat_program
    monkeypatch.setattr(torch_backend, "flat_program", refuse)
    mine, x = small(), torch.randn(5, 7)
    theirs = copy.deepcopy(mine)
    with pytest.warns(UserWarning, match="another planet"):
        compiled(mine)(x).sum().backward()
    theirs(x).sum().backward()
    torch.testing.assert_close(mine[0].weight.grad, theirs[0].weight.grad, rtol=1e-5, atol=1e-5)
    assert counters["backward run by torch"] == 1


def test_batch_statistics_move() -> None:
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    theirs, x = copy.deepcopy(mine), torch.randn(2, 3, 7, 9)
    torch.testing.assert_close(compiled(mine)(x), theirs(x), rtol=1e-5, atol=1e-5)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_graph_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum() > 100:
            y = y + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(5)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert counters["graphs"] >= 2


@pytest.mark.parametrize("grad", [False, True])
def test_open_sizes_are_specialised(grad: bool) -> None:
    weight = torch.randn(4, 3, requires_grad=grad)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.relu(x @ w).sum(0) * x.shape[0], x.shape[0] + 1

    run = compiled(function, dynamic=True)
    for rows in (8, 5, 8):
        x = torch.randn(rows, 4)
        (a, n), (b, m) = run(x, weight), function(x, weight)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert n == m
    assert counters["specialised"] == 2


def test_writes_to_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = y.clone()
        y[0] = 5
        return x * y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    other = x.clone()
    torch.testing.assert_close(compiled(function)(x, y), function(other, y))
    torch.testing.assert_close(x, other)


def test_outputs_that_are_inputs_constants_or_the_same() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        return x, y, y, 3, None

    x = torch.randn(3)
    a, b, c, d, e = compiled(function)(x)
    assert a is x
    torch.testing.assert_close(b, x + 1)
    torch.testing.assert_close(c, x + 1)
    assert (d, e) == (3, None)


def test_unknown_options() -> None:
    with pytest.raises(Exception, match=r"no option 'trget'.*\n.*did you mean 'target'"):
        compiled(lambda x: x + 1, options={"trget": "cpu"})(torch.randn(3))
