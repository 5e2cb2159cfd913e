"""Calls under modes of torch run uncompiled: kernels call no op that a mode could see."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import irc
from irc.calls.compiled import dispatcher_of, statistics
from irc.calls.recompiles import RecompileWarning
from irc.errors import IrcError

X = torch.linspace(-1, 1, 6)
quiet = pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning")


class OfFunctions(TorchFunctionMode):
    """Adds one to sines."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.sin else result


class OfOps(TorchDispatchMode):
    """Adds one to sines, below autograd."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 1 if func is torch.ops.aten.sin.default else result


class Unseeing(OfOps):
    """A mode that lets compiled calls pass."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def doubled(x: Tensor) -> Tensor:
    return torch.sin(x) * 2


@quiet
@pytest.mark.parametrize("mode", [OfFunctions, OfOps])
@pytest.mark.parametrize("calls", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}])
@pytest.mark.parametrize("records", [True, False])
def test_a_mode_sees_what_it_sees_in_eager(
    mode: Callable[[], AbstractContextManager[Any]],
    calls: int,
    options: dict[str, Any],
    records: bool,
) -> None:
    run, x = irc.compile(doubled, **options), X.clone().requires_grad_(records)
    for _ in range(calls):
        torch.testing.assert_close(run(x), doubled(x))
    for _ in range(2):
        with mode():
            torch.testing.assert_close(run(x), doubled(x))
        torch.testing.assert_close(run(x), doubled(x))
    assert statistics(run).eager_calls == 2


@quiet
def test_a_module_is_seen_with_its_layers() -> None:
    net = irc.compile(nn.Sequential(nn.Linear(6, 4), nn.ReLU()))
    counts = []
    with torch.no_grad():
        for _ in range(2):
            with FlopCounterMode(display=False) as counter:
                net(X[None])
            counts.append(counter.get_total_flops())
            net(X[None])
    assert counts == [2 * 6 * 4] * 2
    assert statistics(net).compilations == 1


def test_modes_are_warned_of_once_and_noted() -> None:
    run = irc.compile(doubled)
    with pytest.warns(RecompileWarning, match="'OfOps' is active") as seen, OfOps():
        assert all(run(X) is not None for _ in range(2))
    assert len(seen) == 1
    assert "TorchDispatchMode 'OfOps'" in str(irc.explain(run))


def test_a_default_device_is_no_such_mode() -> None:
    run = irc.compile(lambda x: torch.ones(6) + x)
    with torch.device("cpu"):
        torch.testing.assert_close(run(X), X + 1)
    assert (statistics(run).compilations, statistics(run).eager_calls) == (1, 0)
    with torch.device("cpu"), OfFunctions(), pytest.warns(RecompileWarning, match="OfFunctions"):
        run(X)


def test_modes_that_let_compiled_calls_pass() -> None:
    run, wanted = irc.compile(doubled), doubled(X)
    for _ in range(2):
        with Unseeing():
            torch.testing.assert_close(run(X), wanted)
    assert (statistics(run).compilations, statistics(run).eager_calls) == (1, 0)


def test_selective_checkpoints_have_compiled_parts() -> None:
    run, x = irc.compile(doubled), X.clone().requires_grad_()

    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.sin.default])

    result: Any = checkpoint(run, x, use_reentrant=False, context_fn=contexts)
    result.sum().backward()
    torch.testing.assert_close(x.grad, X.cos() * 2)
    assert statistics(run).eager_calls == 0


@quiet
@pytest.mark.parametrize("calls", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"fullgraph": True}])
@pytest.mark.parametrize("records", [True, False])
def test_tangents_are_eagers(calls: int, options: dict[str, Any], records: bool) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    run, layers, x = irc.compile(doubled, **options), irc.compile(net, **options), X[None]
    pairs: Any = ((run, doubled), (layers, net))

    def tangent(function: Any) -> Tensor | None:
        with forward_ad.dual_level():
            both = function(forward_ad.make_dual(x, x + 1))
            return forward_ad.unpack_dual(both).tangent

    with torch.set_grad_enabled(records):
        for one, other in pairs * calls:
            one(x), other(x)
        for one, other in pairs:
            torch.testing.assert_close(tangent(one), tangent(other))
            torch.testing.assert_close(one(x), other(x))
            derivative: Any = torch.func.jvp(one, (x,), (x + 1,))[1]
            torch.testing.assert_close(derivative, tangent(other))
    assert statistics(run).eager_calls == statistics(layers).eager_calls == 2


@quiet
def test_a_tangent_of_a_parameter_is_seen() -> None:
    net, x = nn.Linear(6, 4), X[None]
    run: Any = irc.compile(net)
    run(x)
    with forward_ad.dual_level():
        named = {
            name: forward_ad.make_dual(each, torch.ones_like(each))
            for name, each in net.named_parameters()
        }
        both = torch.func.functional_call(run, named, (x,))
        tangent = forward_ad.unpack_dual(both).tangent
    torch.testing.assert_close(tangent, (x.sum() + 1).expand(1, 4))


def test_strict_calls_are_refused() -> None:
    run = irc.compile(doubled, strict=True)
    with OfOps(), pytest.raises(IrcError, match=r"strict=True forbids it[\s\S]*OfOps"):
        run(X)
    torch.testing.assert_close(run(X), doubled(X))


def test_frozen_modules_and_meshes_refuse_modes() -> None:
    net, x = irc.compile(nn.Linear(6, 64).eval()), torch.randn(9, 6)
    with torch.no_grad():
        wanted = net(x)
        irc.freeze(net)
        with OfOps(), pytest.raises(IrcError, match=r"weights-released[\s\S]*OfOps"):
            net(x)
        torch.testing.assert_close(net(x), wanted)
    split = irc.compile(nn.Linear(6, 64).eval(), mesh="tensor=2")
    with torch.no_grad(), OfOps(), pytest.raises(IrcError, match=r"on a mesh[\s\S]*OfOps"):
        split(x)
    assert (known := dispatcher_of(split)) is not None and not known.versions
