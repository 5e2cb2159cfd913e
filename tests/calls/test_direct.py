"""The short way through a compiled version: it is taken, and never where a guard says no."""

# pyright: basic
from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls.compiled import dispatcher_of
from irc.calls.direct import MISS
from irc.errors import IrcError
from irc.frontends.torch.quick import alike


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def mix(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of two arguments."""
    return a * 2 + b, (a - b).relu()


def made(target: Any, *args: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a compiled target after a first call, and its direct function."""
    run: Any = irc.compile(target)
    run(*args)
    dispatcher = dispatcher_of(run) if isinstance(run, nn.Module) else run._irc_dispatcher
    assert dispatcher is not None
    direct = dispatcher.versions[0].direct
    assert direct is not None
    return run, direct


@pytest.mark.parametrize("shape", [(), (1,), (7, 13), (129,)])
def test_results_are_eagers(shape: tuple[int, ...]) -> None:
    a, b = torch.randn(shape), torch.randn(shape)
    run, direct = made(mix, a, b)
    for _ in range(3):
        a, b = torch.randn(shape), torch.randn(shape)
        for results in (run(a, b), direct((a, b))):
            assert isinstance(results, tuple)
            for one, wanted in zip(results, mix(a, b), strict=True):
                torch.testing.assert_close(one, wanted)
                assert one.stride() == wanted.stride() and not one.requires_grad


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "a shape": lambda x: torch.randn(4, 5),
    "a rank": lambda x: x[None],
    "a dtype": lambda x: x.double(),
    "strides": lambda x: torch.randn(5, 3).t(),
    "a gap": lambda x: torch.randn(3, 6)[:, :5],
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "a parameter": lambda x: nn.Parameter(x),
    "a device": lambda x: x.to("meta"),
    "a layout": lambda x: x.to_sparse(),
    "a lazy negation": lambda x: cast("Any", torch)._neg_view(x.clone()),
    "a number": lambda x: 3.0,
    "nothing": lambda x: None,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_another_kind_of_argument_is_refused(kind: str) -> None:
    x = torch.randn(3, 5)
    _, direct = made(mix, x, x.clone())
    assert direct((x, x.clone())) is not MISS
    other = REFUSED[kind](x)
    for args in ((other, x), (x, other), (x,), (x, x, x), ()):
        assert direct(args) is MISS, args
    assert direct((x, x.clone())) is not MISS


def test_other_strides_of_one_row_are_accepted() -> None:
    x = torch.randn(1, 5)
    _, direct = made(mix, x, x.clone())
    row = torch.randn(5, 1).t()
    for _ in range(12):
        for one in (x, row):
            torch.testing.assert_close(direct((one, x)), mix(one, x))


def test_modes_of_the_interpreter_are_guarded() -> None:
    x = torch.randn(3, 5)
    net, direct = made(nn.Linear(5, 4), x)
    assert direct((x,)) is not MISS
    with torch.enable_grad():
        assert direct((x,)) is MISS
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert direct((x,)) is MISS
        assert net(x).dtype is torch.bfloat16
    with torch.inference_mode():
        y = torch.randn(3, 5)
        torch.testing.assert_close(direct((y,)), irc.original(net)(y))
        torch.testing.assert_close(direct((x,)), irc.original(net)(x))
    assert direct((x,)) is not MISS


def test_autocast_is_guarded_without_arguments() -> None:
    run, direct = made(lambda: torch.ones(3) * 2)
    assert direct(()) is not MISS
    torch.testing.assert_close(run(), torch.full((3,), 2.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert direct(()) is MISS


def _shares(net: nn.Sequential) -> None:
    net[0].weight.data = net[0].weight.data.clone()


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "the training flag": lambda net: net.eval(),
    "a parameter": lambda net: setattr(net[0], "bias", nn.Parameter(torch.randn(4))),
    "no parameter": lambda net: setattr(net[0], "bias", None),
    "a layer": lambda net: net.__setitem__(1, nn.Sigmoid()),
    "its memory": _shares,
    "an attribute": lambda net: setattr(net, "scale", 3),
}


class Scaled(nn.Sequential):
    """Reads an attribute."""

    scale = 2

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.scale = 2

    def forward(self, x: Tensor) -> Tensor:
        """Scale the result."""
        return super().forward(x) * self.scale


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_module_is_refused(change: str) -> None:
    x = torch.randn(3, 5)
    net, direct = made(Scaled(nn.Linear(5, 4), nn.ReLU()), x)
    assert direct((x,)) is not MISS
    CHANGES[change](net)
    assert direct((x,)) is MISS
    torch.testing.assert_close(net(x), irc.original(net)(x))


def test_writes_to_packed_weights_are_seen() -> None:
    x = torch.randn(9, 64)
    net, direct = made(nn.Linear(64, 64), x)
    before = net(x)
    net.weight.mul_(2)
    assert direct((x,)) is MISS
    torch.testing.assert_close(net(x), irc.original(net)(x))
    assert (net(x) - before).abs().max() > 0.1
    assert direct((x,)) is not MISS


def test_what_takes_more_than_kernels_goes_the_whole_way() -> None:
    x, tokens = torch.randn(3, 5), torch.tensor([1, 2])
    cases: list[tuple[Any, Any, bool]] = [
        (lambda a: a.add_(1), x.clone(), False),
        (lambda a: {"y": a + 1}, x, False),
        (lambda a: torch.linalg.inv(a), torch.eye(5), False),
        (lambda a: a.t(), x, False),
        # These have a short way.
        (nn.Embedding(5, 4), tokens, True),
        (nn.BatchNorm1d(5), x, True),
        (lambda a: (a + 1).t(), x, True),
    ]
    for target, argument, is_direct in cases:
        run: Any = irc.compile(target)
        torch.testing.assert_close(run(argument.clone()), irc.original(run)(argument.clone()))
        dispatcher = dispatcher_of(run) if isinstance(run, nn.Module) else run._irc_dispatcher
        assert dispatcher is not None and (dispatcher.versions[0].direct is not None) is is_direct
        torch.testing.assert_close(run(argument.clone()), irc.original(run)(argument.clone()))


def test_indices_are_checked() -> None:
    """Eager raises an IndexError or a RuntimeError, by the op."""
    run = irc.compile(nn.Embedding(5, 4))
    run(torch.tensor([1, 2]))
    for kind in (IrcError, IndexError, RuntimeError):
        with pytest.raises(kind, match="index-out-of-range"):
            run(torch.tensor([1, 5]))


@pytest.mark.parametrize("length", [1, 7, 40_000])
def test_an_index_outside_is_seen_in_every_threads_share(length: int) -> None:
    table, index = torch.randn(50, 33), torch.randint(0, 50, (length,))
    run, direct = made(lambda t, i: torch.index_select(t, 0, i), table, index)
    assert direct.__code__.co_filename == "<irc direct call>"
    for place in (0, length // 2, length - 1):
        for wrong in (50, -1, 1 << 40):
            outside = index.clone()
            outside[place] = wrong
            with pytest.raises(IrcError, match="index-out-of-range"):
                run(table, outside)
            assert torch.equal(run(table, index), table[index])


def test_an_executor_whose_caller_has_guards() -> None:
    x, w = torch.randn(9, 64), nn.Parameter(torch.randn(64, 64))
    run = torch.compile(lambda a, b: (a @ b).relu(), backend="irc", dynamic=False)
    turned, negated = torch.randn(64, 9).t(), cast("Any", torch)._neg_view(x)
    for argument in (x, x + 1, turned, negated, nn.Parameter(x)):
        torch.testing.assert_close(run(argument, w), (argument @ w).relu(), atol=1e-4, rtol=1e-4)
    other = nn.Parameter(torch.randn(64, 64))
    torch.testing.assert_close(run(x, other), (x @ other).relu(), atol=1e-4, rtol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(run(x, w), (x @ w).relu(), atol=1e-4, rtol=1e-4)


def test_results_are_apart() -> None:
    x = torch.randn(4)
    run, _ = made(lambda a: a + 1, x)
    first, second = run(x), run(x)
    assert first.data_ptr() != second.data_ptr()
    first.zero_()
    torch.testing.assert_close(second, x + 1)


def test_the_fast_check_holds_no_tensor() -> None:
    x = torch.randn(4)
    check, seen = alike([x]), weakref.ref(x)
    assert check(x)
    del x
    gc.collect()
    assert seen() is None


def test_threads_have_their_own_memory() -> None:
    x = torch.randn(64, 64)
    run, _ = made(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), x)
    wrong: list[float] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(100):
                batch = torch.randn(64, 64, generator=generator)
                error = (run(batch) - irc.original(run)(batch)).abs().max().item()
                if error > 1e-4:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_made_by_fork_runs_on_one_thread() -> None:
    x = torch.randn(64, 500)
    was = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, direct = made(lambda a: torch.softmax(a, 1), x)
        wanted = direct((x,))
    finally:
        torch.set_num_threads(was)
    child = os.fork()
    if child == 0:  # the pool's threads are gone: entering it would hang
        os._exit(0 if (direct((x,)) - wanted).abs().max().item() == 0 else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")
