"""What eager mode runs, irc runs: as one graph, in parts, or through torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import irc
from irc.calls.left import LeftToTorchWarning
from irc.errors import IrcError
from tests.calls.left import containers, functions, targets, values
from tests.calls.left.case import cases_of

CASES = cases_of(values, containers, functions, targets)

TOO_DEEP_FOR_DYNAMO = "nested_150_deep"
"""torch.compile fails on it before any backend is asked; irc.compile lets it go deeper."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def leaves(value: Any) -> list[Any]:
    """Return what a result holds, objects taken apart."""
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value), *leaves([getattr(value, f.name) for f in fields(value)])]
    if isinstance(value, containers.Holder):
        return [type(value), *leaves(value.value)]
    if isinstance(value, dict):
        return [*value, *leaves(list(value.values()))]
    if isinstance(value, list | tuple) or hasattr(value, "__next__"):
        return [type(value).__name__, *(leaf for item in value for leaf in leaves(item))]
    return [value]


def assert_same(results: Any, wanted: Any) -> None:
    mine, theirs = leaves(results), leaves(wanted)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, Tensor):
            assert type(a) is type(b)
            assert a == pytest.approx(b, rel=1e-5) if isinstance(b, float) else a == b
            continue
        assert type(a) is type(b) or {type(a), type(b)} <= {Tensor, torch.nn.Parameter}
        assert a.requires_grad is b.requires_grad
        if b.is_nested:
            assert_same(list(a.unbind()), list(b.unbind()))
        elif b.is_meta:
            assert a.is_meta and a.shape == b.shape
        else:
            torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-4, atol=1e-5)


def differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided


def run(name: str, way: str, gradients: bool) -> tuple[list[Any], list[Tensor | None]]:
    """Return what two calls give, and the gradients of the arguments."""
    target, args, kwargs = CASES[name]()
    arguments = [x for x in pytree.tree_leaves((args, kwargs)) if differentiable(x)]
    arguments = [x for x in arguments if not x.is_nested and not x.is_meta]
    inner = list(target.parameters()) if isinstance(target, torch.nn.Module) else []
    if gradients:
        for x in arguments:
            x.requires_grad_()
    if way == "irc":
        target = irc.compile(target)
    else:
        target = target.module() if isinstance(target, ExportedProgram) else target
        target = torch.compile(target, backend="irc") if way == "torch" else target
    returned: list[Any] = []
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            result = target(*args, **kwargs)
            returned.append(list(result) if hasattr(result, "__next__") else result)
    results = [x for x in leaves(returned) if isinstance(x, Tensor) and x.requires_grad]
    results = [x for x in results if x.grad_fn is not None and not x.is_nested]
    if results:
        sum(x.to_dense().sum() for x in results).backward()
    return returned, [x.grad for x in (*arguments, *inner)]


def same_as_eager(name: str, way: str, gradients: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = run(name, "eager", gradients)
        except Exception as error:
            with pytest.raises(type(error)):
                run(name, way, gradients)
            return
        warnings.filterwarnings("error", message=r"warning\[internal\]")
        results = run(name, way, gradients)
    assert_same(results, wanted)


@pytest.mark.parametrize("name", CASES)
def test_calls_without_gradients_are_those_of_eager(name: str) -> None:
    same_as_eager(name, "irc", gradients=False)


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name != TOO_DEEP_FOR_DYNAMO])
def test_calls_through_torch_compile_are_those_of_eager(name: str, gradients: bool) -> None:
    same_as_eager(name, "torch", gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_calls_with_gradients_are_those_of_eager(name: str) -> None:
    same_as_eager(name, "irc", gradients=True)


jit: Any = torch.jit


def scripted_modules() -> dict[str, Any]:
    """Return modules that torch.jit has compiled, in its different ways."""
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval(), torch.ones(1, 3)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):

        class Scripted(jit.ScriptModule):
            """A class whose modules torch.jit compiles."""

            @jit.script_method
            def forward(self, x: Tensor) -> Tensor:
                return x * 2

        scripted = jit.script(net)
        frozen, traced = jit.freeze(scripted), jit.trace(net, x)
        return {"scripted": scripted, "traced": traced, "frozen": frozen, "of a class": Scripted()}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["scripted", "traced", "frozen", "of a class"])
@pytest.mark.parametrize("gradients", [False, True])
def test_modules_of_torch_jit_run_as_they_are(name: str, gradients: bool) -> None:
    module, x = scripted_modules()[name], torch.ones(1, 3)
    with pytest.warns(LeftToTorchWarning, match="a module of torch.jit") as seen:
        run = irc.compile(module)
    assert [each.filename for each in seen] == [__file__]
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            torch.testing.assert_close(run(x), module(x))
    if name == "of a class":
        with pytest.warns(LeftToTorchWarning, match="'Scripted'"):
            assert irc.compile(type(module)) is type(module)


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"strict": True}, {"mesh": "data=2"}])
def test_modules_of_torch_jit_are_refused_where_a_program_is_whole(options: Any) -> None:
    with pytest.raises(IrcError, match=r"op-unsupported[\s\S]*scripted or traced"):
        irc.compile(scripted_modules()["traced"], **options)
