"""What ``irc.explain`` says of a compiled module: graphs, kernels, what is left to torch."""

# pyright: basic
from __future__ import annotations

import copy
import inspect
import json
import pickle
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls.noted import call_kind
from irc.calls.trial import tried
from irc.errors import IrcError
from irc.record import Cached

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def line_of(function: Any, text: str) -> str:
    """Return the end of a location: this file, and the line of a function that has a text."""
    lines, start = inspect.getsourcelines(function)
    return f"{HERE}:{start + next(i for i, line in enumerate(lines) if text in line)}"


class Net(nn.Module):
    """A product, what is fused with it, and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.nn.functional.gelu(self.inner(x))
        return hidden.softmax(-1)


class Around(nn.Module):
    """A wrapper, as many programs have around a library's model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


LIBRARY = """from torch import nn

class Tiny(nn.Module):
    def forward(self, x):
        return x.exp() + 1
"""


class Broken(nn.Module):
    """Has a branch on values."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x.cos() + 1
        return x.sin() + 2


def test_what_was_never_called_says_so() -> None:
    for target in (irc.compile(Net()), irc.compile(lambda x: x + 1)):
        report = irc.explain(target)
        assert "not called yet" in f"{report}" and "not called yet" in report._repr_html_()
        assert report.calls == () and json.loads(report.json())["calls"] == []


def test_a_call_has_its_kind_its_kernels_and_the_lines_that_they_fuse() -> None:
    fast = irc.compile(Net().eval())
    with torch.no_grad():
        fast(torch.randn(2, 8))
    (call,) = irc.explain(fast).calls
    assert call.kind is not None and call.kind.arguments == ("x: float32[2, 8]",)
    assert call.kind.training is False and call.kind.gradients is False
    (graph,) = call.graphs
    assert graph.what == "whole call" and graph.seconds > 0
    ops = {op.what.split()[0]: op.line for kernel in graph.kernels for op in kernel.ops}
    assert any(line.endswith(line_of(Net.forward, "gelu")) for line in ops.values())
    assert any(line.endswith(line_of(Net.forward, "softmax")) for line in ops.values())
    assert call.fallbacks == () and "nothing" in f"{irc.explain(fast)}"


def test_gradients_and_dtypes_are_kinds_of_their_own() -> None:
    fast, x = irc.compile(Net()), torch.randn(2, 8)
    fast(x).sum().backward()
    with torch.no_grad():
        fast(x)
        fast(x[:1])
    report = irc.explain(fast)
    whats = [[graph.what for graph in call.graphs] for call in report.calls]
    assert whats[0] == ["forward pass", "backward pass"] and whats[1] == ["whole call"]
    assert [call.kind and call.kind.gradients for call in report.calls] == [True, False, False]
    assert report.calls[0].kind and report.calls[0].kind.training is True
    assert "has shape [1, 8], compiled for [2, 8]" in report.calls[2].recompiles[0].reason


def test_a_break_has_the_line_of_the_model_not_of_its_wrapper() -> None:
    fast = irc.compile(Around(Broken()))
    with pytest.warns(match="graph-break"), torch.no_grad():
        fast(torch.ones(3))
    report = irc.explain(fast)
    (left,) = [each for each in report.fallbacks if each.kind == "break"]
    assert left.line.endswith(line_of(Broken.forward, "if x.sum()"))
    assert "values of a tensor" in left.reason
    assert len(report.graphs) == 2
    assert left.line in f"{report}" and "break" in report._repr_html_()


def test_ops_of_a_wrapped_library_have_lines_of_its_forward(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "nets"
    folder.mkdir(parents=True)
    (folder / "tiny.py").write_text(LIBRARY)
    namespace = runpy.run_path(str(folder / "tiny.py"))
    fast = irc.compile(Around(namespace["Tiny"]()))
    with torch.no_grad():
        fast(torch.ones(3))
    lines = [op.line for kernel in irc.explain(fast).kernels for op in kernel.ops]
    assert lines and all(line.endswith("nets/tiny.py:5") for line in lines)


def test_dynamos_guard_that_changed_is_named() -> None:
    @irc.compile
    def function(x: Tensor) -> Tensor:
        return x.exp()

    function(torch.ones(3, requires_grad=True))
    function(torch.ones(3, requires_grad=True, dtype=torch.float64))
    first, second = irc.explain(function).calls
    assert not first.recompiles and "dtype" in second.recompiles[0].reason


def test_an_op_without_a_form_is_left_to_torch_with_its_line() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.qr(x + 1).R

    fast = irc.compile(function)
    fast(torch.eye(3))
    (left,) = irc.explain(fast).fallbacks
    assert left.kind == "op" and "qr" in left.what
    assert left.line.endswith(line_of(function, "qr"))


def test_a_region_of_a_graph_is_left_with_its_line() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        return torch.cond(y.sum() > 0, lambda v: v.sin() + 1, lambda v: v.cos(), (y,)) * 3

    fast = irc.compile(function)
    fast(torch.ones(3))
    report = irc.explain(fast)
    left = [each for each in report.fallbacks if each.kind == "region"]
    assert [each.line.endswith(line_of(function, "torch.cond")) for each in left] == [True]
    assert "branch of control flow" in [graph.what for graph in report.graphs]


def test_a_first_timing_says_what_it_has_measured() -> None:
    told: list[str] = []

    def slow(x: Tensor) -> Tensor:
        for _ in range(200):
            x = x + 1
        return x

    tried(slow, lambda x: x, copies=False, told=told.append)(torch.ones(3))
    assert len(told) == 1 and told[0].startswith("the first timing: torch takes ")


def test_what_a_later_call_finds_ready_is_noted_once() -> None:
    fast, x = irc.compile(Around(Broken())), torch.ones(3)
    with pytest.warns(match="graph-break"), torch.no_grad():
        fast(x)
    before = irc.explain(fast).json()
    with torch.no_grad():
        for _ in range(3):
            fast(x)
    assert irc.explain(fast).json() == before


def test_a_method_and_a_copy() -> None:
    class Holder:
        @irc.compile
        def double(self, x: Tensor) -> Tensor:
            return x * 2

    holder = Holder()
    holder.double(torch.ones(2))
    assert len(irc.explain(holder.double).graphs) == 1
    fast = irc.compile(Net())
    with torch.no_grad():
        fast(torch.ones(2, 8))
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert "not called yet" in f"{irc.explain(other)}"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_without_names_or_shapes_are_told_too() -> None:
    fast = irc.compile(torch.sin)
    fast(torch.ones(2))
    (call,) = irc.explain(fast).calls
    assert call.kind is not None and call.kind.arguments == ("0: float32[2]",)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    kind = call_kind(lambda x, y: x, (nested, object()), {})
    assert kind.arguments == ("x: float32 nested", "y: object")


def test_modules_of_one_class_share_what_dynamo_has_compiled() -> None:
    first, second = irc.compile(Net()), irc.compile(Net())
    for fast in (first, second):
        fast(torch.randn(2, 8)).sum().backward()
    assert len(irc.explain(first).graphs) == 2 and not irc.explain(second).graphs
    assert "for another module of its class" in f"{irc.explain(second)}"


def test_dynamic_sizes_are_one_graph() -> None:
    fast = irc.compile(Net(), dynamic=True)
    with torch.no_grad():
        for rows in (4, 5, 6):
            fast(torch.randn(rows, 8))
    report = irc.explain(fast)
    assert [graph.what for graph in report.graphs] == ["whole call, sizes left open"]
    assert report.kernels and report.kernels[0].ops


def test_where_the_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))

    def function(x: Tensor) -> Tensor:
        return x * 0.123456 + 7.654321

    fast = irc.compile(function)
    fast(torch.ones(17))
    (call,) = irc.explain(fast).calls
    assert call.cached and all(isinstance(each, Cached) for each in call.cached)
    assert all(Path(each.path).is_file() and not each.is_read for each in call.cached)


@pytest.mark.parametrize("target", [3, None, nn.Linear(2, 2), torch.relu, b"model", nn.Linear])
def test_what_irc_has_not_compiled_is_refused(target: Any) -> None:
    with pytest.raises(IrcError, match=r"which irc has not compiled") as caught:
        irc.explain(target)
    assert caught.value.code == "input-mismatch" and "irc.compile(model)" in caught.value.help


def test_a_class_is_refused_by_name() -> None:
    with pytest.raises(IrcError, match="'Net' is a class"):
        irc.explain(irc.compile(Net))


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_each_kind_of_call_has_its_own_fall_back(dynamic: bool | None) -> None:
    fast = irc.compile(lambda x: torch.linalg.qr(x + 1).R, dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 3, 4, 4):
            fast(torch.rand(rows, 3))
    calls = irc.explain(fast).calls
    assert [bool(call.fallbacks) for call in calls] == [True] * len(calls)
    assert len(calls) == (1 if dynamic else 2)


def test_a_call_whose_arguments_share_memory_is_told_apart() -> None:
    fast, memory = irc.compile(lambda x, y: (x.add_(1), y + 1)[1]), torch.ones(5)
    fast(torch.ones(3), torch.ones(3))
    with pytest.warns(match="share memory"):
        fast(memory[:4], memory[1:])
    fast(torch.ones(3), torch.ones(3))
    first, second = irc.explain(fast).calls
    assert not first.fallbacks and first.kind and "[3]" in first.kind.arguments[0]
    assert second.fallbacks and second.kind and "[4]" in second.kind.arguments[0]
