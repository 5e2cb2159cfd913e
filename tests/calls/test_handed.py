"""Kinds of calls that go straight to torch: each is looked at again in its time."""

# pyright: basic
from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls import handed, trial
from irc.calls.compiled import dispatcher_of, statistics
from irc.calls.direct import MISS
from irc.torch_backend.counts import counters

pytestmark = pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning")


@pytest.fixture(autouse=True)
def _looking_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(trial.VARIABLE)
    monkeypatch.setattr(handed, "FIRST_LOOK", 4)
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


class Doubled(nn.Module):
    """What Dynamo compiles."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).tanh()


class Recurrent(nn.Module):
    """What Dynamo leaves to Python, and where it is told, a graph for sequences of three."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.more = nn.LSTM(4, 4), Doubled()
        self.has_more = self.raises = False

    def forward(self, x: Tensor) -> Tensor:
        if self.raises:
            raise ValueError("as it was told to")
        return self.lstm(self.more(x) if self.has_more and x.shape[0] == 3 else x)[0]


def compiled(*kinds: Tensor) -> tuple[Recurrent, Callable[[Tensor], Tensor]]:
    """Return a module, and what it was compiled to; calls of these kinds are handed to torch."""
    module = Recurrent()
    run: Any = irc.compile(module)
    for x in (*kinds[:1] * trial.LEAST_CALLS, *kinds[1:]):
        run(x)
    assert statistics(run).left == len(kinds)
    return module, run


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_kinds_that_alternate_are_all_looked_at(before: int) -> None:
    three, five = torch.randn(3, 2, 4), torch.randn(5, 2, 4)
    module, run = compiled(three, five)
    for _ in range(before):
        run(three)
    module.has_more = True
    for x in (three, five) * 6:
        torch.testing.assert_close(run(x), module(x))
    assert counters["graphs"] == 1


def test_a_look_that_raises_is_made_up_for() -> None:
    three, five = torch.randn(3, 2, 4), torch.randn(5, 2, 4)
    module, run = compiled(three, five)
    module.raises = True
    for _ in range(4):
        with pytest.raises(ValueError, match="told"):
            run(three)
    module.raises, module.has_more = False, True
    run(torch.randn(7, 2, 4))  # another call that goes the whole way is handed, and nothing else
    assert statistics(run).left == 3
    for _ in range(4):
        torch.testing.assert_close(run(three), module(three))
    assert counters["graphs"] == 1


def test_a_look_where_nothing_is_compiled_is_made_up_for() -> None:
    x = torch.randn(3, 2, 4)
    module, run = compiled(x)
    module.has_more = True
    with torch.compiler.set_stance("force_eager"):
        for _ in range(5):
            run(x)
    assert statistics(run).left == 1
    for _ in range(4):
        run(x)
    assert counters["graphs"] == 1


def test_a_layer_that_is_replaced_is_let_go_of_and_seen() -> None:
    x = torch.randn(3, 2, 4)
    module, run = compiled(x)
    gone = [weakref.ref(module.lstm), weakref.ref(module.lstm.weight_hh_l0)]
    module.lstm = nn.LSTM(4, 4)
    torch.compiler.reset()  # Dynamo's own code
    gc.collect()
    assert not any(each() for each in gone)
    module.has_more = True
    torch.testing.assert_close(run(x), module(x))
    assert counters["graphs"] == 1 and statistics(run).left == 0


def test_modes_are_asked_only_of_calls_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [torch.randn(n, 2, 4) for n in (3, 5, 7)]
    _, run = compiled(*kinds)
    asked, admit = [], handed.Parts.admit
    monkeypatch.setattr(handed.Parts, "admit", lambda *args: asked.append(1) or admit(*args))
    run(kinds[-1])
    assert len(asked) == 1


def test_threads_that_look_at_once_remove_a_kind_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Entry, "is_behind", lambda *_: False)
    x, count = torch.randn(3, 2, 4), 4
    module, run = compiled(x)
    through: Any = dispatcher_of(run)._through_torch  # pyright: ignore
    (kind,) = through.handed
    module.has_more = True
    barrier = Barrier(count)

    def look(_: int) -> Tensor:
        barrier.wait()
        return through((x,), {}, looked=kind)

    with ThreadPoolExecutor(count) as pool:
        for result in pool.map(look, range(count)):
            torch.testing.assert_close(result, module(x))
    assert not through.handed


def test_a_count_that_was_stepped_over_looks_all_the_same() -> None:
    kind = handed.Handed(lambda x: x, (x := torch.ones(3),), handed.Parts(len), ())
    kind._left = 0  # as two threads may leave it
    assert kind.direct is not None
    assert kind.direct((torch.ones(4),)) is MISS
    assert kind.direct((x,)) is handed.LOOK
    assert kind.direct((x,)) is x


@pytest.mark.parametrize("records", [True, False])
def test_a_lazy_module_is_made_at_its_first_call(records: bool) -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    run, x = irc.compile(module), torch.randn(4, 3)
    with torch.set_grad_enabled(records):
        for _ in range(7):
            torch.testing.assert_close(run(x), module(x))
    assert module[0].weight.shape == (4, 3)


class Mixed(nn.Module):
    """Reads a buffer without an address; Dynamo leaves it to Python where it is told so."""

    def __init__(self, adjacency: Tensor) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.adjacency @ self.linear(x)


class MixedByPython(Mixed):
    """No graph at all."""

    forward = torch.compiler.disable(Mixed.forward)


@pytest.mark.parametrize("kind", [Mixed, MixedByPython])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_buffer_has_no_address(
    kind: type[Mixed], layout: torch.layout, records: bool
) -> None:
    module = kind(torch.eye(4).to_sparse(layout=layout))
    run, x = irc.compile(module), torch.randn(4, 3)
    with torch.set_grad_enabled(records):
        for _ in range(7):  # past the look
            torch.testing.assert_close(run(x), module(x))


def test_a_sparse_argument_has_no_address() -> None:
    @torch.compiler.disable
    def product(a: Tensor, x: Tensor) -> Tensor:
        return a @ x

    run, x = irc.compile(lambda a, x: product(a, x)), torch.randn(4, 3, requires_grad=True)
    for _ in range(7):
        torch.testing.assert_close(run(torch.eye(4).to_sparse(), x), x)


def test_arguments_of_a_transform_have_no_address() -> None:
    run, x = irc.compile(lambda x: x.sin() * 2), torch.randn(4, 3)
    for _ in range(2 * trial.LEAST_CALLS):
        torch.testing.assert_close(torch.vmap(run)(x), x.sin() * 2)
        gradient = torch.func.grad(lambda x: run(x).sum())(x)
        torch.testing.assert_close(gradient, x.cos() * 2)
