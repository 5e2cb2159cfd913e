"""Inputs that share memory with each other and with results, in-place ops, and several threads."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import irc
from irc.calls.recompiles import RecompileWarning

Function = Callable[..., Any]


def reads(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y + x


def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return x * y


def writes_both(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(y)
    y.mul_(x)
    return x - y


def swaps(x: torch.Tensor, y: torch.Tensor) -> Any:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return t


def gives_inputs(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x, y + 1, x.t(), x[1:]


def gives_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + y
    return z, z, z.view(-1)


def writes_a_slice(x: torch.Tensor, y: torch.Tensor) -> Any:
    x[1:3] = y[1:3] * 2
    return y.sum()


def writes_a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.t()[1:3].add_(5.0)
    return x.sum(0)


def writes_by_mask(x: torch.Tensor, y: torch.Tensor) -> Any:
    x[x > 0] = 0.0
    return x + y


FUNCTIONS = [
    reads, writes, writes_both, swaps, gives_inputs, gives_twice, writes_a_slice, writes_a_view,
    writes_by_mask,
]  # fmt: skip


def plain() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(6, 5)


def same() -> tuple[torch.Tensor, ...]:
    x = torch.randn(6, 5)
    return x, x


def shifted() -> tuple[torch.Tensor, ...]:
    x = torch.randn(7, 5)
    return x[:6], x[1:]


def shifted_back() -> tuple[torch.Tensor, ...]:
    x = torch.randn(7, 5)
    return x[1:], x[:6]


def interleaved() -> tuple[torch.Tensor, ...]:
    x = torch.randn(6, 10)
    return x[:, ::2], x[:, 1::2]


def transposed() -> tuple[torch.Tensor, ...]:
    return torch.randn(5, 6).t(), torch.randn(5, 6).t()


def expanded() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(1, 5).expand(6, 5)


ALIASES = [plain, same, shifted, shifted_back, interleaved, transposed, expanded]
WAYS: dict[str, Callable[[Function], Function]] = {
    "compile": irc.compile,
    "dynamo": lambda f: torch.compile(f, backend="irc"),
}


def drawn(make: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(5)
    return make()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_on_shared_memory(function: Function, way: str) -> None:
    """Compiled for separate inputs, then called on inputs that overlap: never wrong.

    What writes to overlapping inputs is another program than the one that was traced. (Dynamo does
    not guard inputs that overlap in part against those that were apart: aot_eager is wrong, too.)
    """
    torch._dynamo.reset()
    unguarded = way == "dynamo" and function not in (reads, gives_inputs, gives_twice)
    fast = WAYS[way](function)
    with torch.no_grad():
        for make in ALIASES:
            if unguarded and make in (shifted, shifted_back, interleaved):
                continue
            inputs, wanted = drawn(make), drawn(make)
            try:
                right = function(*wanted)
            except RuntimeError:
                continue  # eager refuses to write to an expanded tensor
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecompileWarning)
                results = fast(*inputs)
            torch.testing.assert_close(results, right, msg=lambda m, n=make.__name__: f"{n}: {m}")
            torch.testing.assert_close(inputs, wanted, msg=lambda m, n=make.__name__: f"{n}: {m}")


def test_the_first_call_may_be_on_shared_memory() -> None:
    """It is compiled as if its inputs were apart, runs eagerly, and says why."""
    fast = irc.compile(writes)
    with torch.no_grad():
        for make, times in ((same, 1), (shifted, 2), (plain, 2)):
            inputs, wanted = drawn(make), drawn(make)
            right = writes(*wanted)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", RecompileWarning)
                torch.testing.assert_close(fast(*inputs), right)
            torch.testing.assert_close(inputs, wanted)
            assert irc.calls.compiled.statistics(fast).eager_calls == times
            assert [("shares memory" in str(w.message)) for w in warned] == [True] * (make is same)
    assert irc.calls.compiled.statistics(fast).compilations == 1


def test_a_written_argument_may_be_expanded() -> None:
    """One number is written in many of its places; eager does what of that it can."""

    def cleared(x: torch.Tensor) -> torch.Tensor:
        x.transpose(0, 1).zero_()
        return x + 2

    fast = irc.compile(cleared)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for base in (torch.randn(1, 5, 3), torch.randn(4, 5, 3), torch.randn(1, 5, 3)):
            result = fast(base.expand(4, 5, 3))
            assert torch.equal(result, torch.full((4, 5, 3), 2.0))
            assert not base.any()


@pytest.mark.parametrize("way", WAYS)
def test_results_keep_what_later_calls_change(way: str) -> None:
    torch._dynamo.reset()
    fast = WAYS[way](lambda x, y: (x @ y, (x @ y).relu()))
    with torch.no_grad():
        x, y = torch.randn(6, 6), torch.randn(6, 6)
        first = fast(x, y)
        kept = [t.clone() for t in first]
        x.zero_()
        fast(x, y)
    torch.testing.assert_close(list(first), kept)


def chained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.softmax(x @ w, 0)
    h = (h @ w).relu() + h.sum(0)
    return torch.nn.functional.layer_norm(h @ w, (33,)) + h.flip(0)


@pytest.mark.parametrize("way", WAYS)
def test_several_threads_call_one_function(way: str) -> None:
    """Arenas are leased: each call has its own memory, also on its first call."""
    torch._dynamo.reset()
    fast = WAYS[way](chained)
    w = torch.randn(33, 33) / 6
    inputs = [torch.randn(17, 33) for _ in range(4)]
    wanted = [chained(x, w) for x in inputs]
    failures: list[str] = []
    if way == "dynamo":
        with torch.no_grad():
            fast(inputs[0], w)  # Dynamo itself compiles in one thread at a time

    def work(i: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(60):
                    torch.testing.assert_close(fast(inputs[i], w), wanted[i], rtol=1e-4, atol=1e-4)
        except Exception as error:  # a thread's exception is the test's
            failures.append(f"{type(error).__name__}: {error}"[:300])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
