"""Random numbers of compiled calls repeat when eager's do, and calls move torch's generator."""

# pyright: basic
from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import irc

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(30) + x[0, 0],
    "randint": lambda x: torch.randint(0, 1000, (30,)) + x[0, 0],
    "randperm": lambda x: torch.randperm(300) + x[0, 0],
    "bernoulli": lambda x: torch.bernoulli(x / 2),
    "multinomial": lambda x: torch.multinomial(x, 10) + x[0, 0],
    "normal": lambda x: torch.normal(x, x),
    "normal_": lambda x: torch.empty(30).normal_() + x[0, 0],
    "uniform_": lambda x: torch.empty(30).uniform_() + x[0, 0],
    "exponential_": lambda x: torch.empty(30).exponential_() + x[0, 0],
    "dropout": F.dropout,
    "dropout between": lambda x: F.dropout(x, 0.5) @ x.t(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "two": lambda x: torch.rand_like(x) - torch.rand_like(x),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", DRAWS)
def test_numbers_repeat(kind: str, grad: bool, dynamic: bool | None) -> None:
    run, x = irc.compile(DRAWS[kind], dynamic=dynamic), torch.ones(3, 40, requires_grad=grad)

    def drawn() -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(grad):
            return run(x).detach(), torch.rand(4)

    torch.manual_seed(3)
    first, later = drawn()  # compiles, which is not to draw
    other, _ = drawn()
    assert not first.equal(other)
    torch.manual_seed(3)
    again = drawn()
    assert again[0].equal(first) and again[1].equal(later)
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        forked = drawn()
    assert torch.get_rng_state().equal(state)
    assert [*map(torch.equal, forked, drawn())] == [True, True]
    torch.set_rng_state(state)
    assert [*map(torch.equal, forked, drawn())] == [True, True]


def test_a_seed_set_by_what_is_compiled_is_set_by_each_call() -> None:
    def call(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return x + torch.rand(4)

    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = irc.compile(call)
        results = [run(torch.zeros(4)) for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1], results[2])
    torch.set_rng_state(before)


def forked(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        inside = F.dropout(x)
    return inside, torch.rand(4)


def put_back(x: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.get_rng_state()
    first = F.dropout(x)
    torch.set_rng_state(state)
    return first, F.dropout(x)


def looked_at(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, torch.get_rng_state()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("run", [forked, put_back, looked_at])
def test_a_state_that_is_put_back_is_part_of_each_call(
    run: Callable[[Tensor], tuple[Tensor, Tensor]], grad: bool
) -> None:
    x = torch.ones(40, requires_grad=grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = irc.compile(run)
        torch.manual_seed(5)
        one = fast(x)
        other = fast(x)
    if run is forked:
        assert torch.equal(one[0], other[0])
        assert not torch.equal(one[1], other[1])
    if run is put_back:
        assert torch.equal(*one) and torch.equal(*other)
        assert not torch.equal(one[0], other[0])
    if run is looked_at:
        torch.manual_seed(5)
        assert torch.equal(one[1], run(x)[1])


ARRAYS, OLD = np.random.default_rng(3), np.random.RandomState(3)
ITEMS = iter(range(100))
STREAMS: dict[str, tuple[Callable[[], float], Callable[[], object]]] = {
    "Python's": (lambda: random.random(), lambda: random.seed(3)),
    "NumPy's": (lambda: float(np.random.rand()), lambda: np.random.seed(3)),
    "an object that is made": (
        lambda: random.Random(3).random() + random.random(),
        lambda: random.seed(3),
    ),
    "an object of NumPy's": (
        lambda: float(ARRAYS.random()),
        lambda: setattr(ARRAYS.bit_generator, "state", np.random.PCG64(3).state),
    ),
    "an old object of NumPy's": (lambda: float(OLD.rand()), lambda: OLD.seed(3)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", STREAMS)
def test_other_generators_are_drawn_from_in_each_call(kind: str, grad: bool) -> None:
    draw, seed = STREAMS[kind]

    def run(x: Tensor) -> Tensor:
        return x * draw()

    x = torch.ones(4, requires_grad=grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed()
        wanted = [run(x) for _ in range(4)]
        fast = irc.compile(run)
        seed()
        results = [fast(x) for _ in range(4)]
    assert not torch.equal(wanted[0], wanted[1])
    torch.testing.assert_close(results, wanted)


def test_items_of_an_iterator_are_taken_by_each_call() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        fast = irc.compile(lambda x: x * 0 + next(ITEMS))
        assert [int(fast(torch.ones(1))) for _ in range(4)] == [0, 1, 2, 3]


def test_a_capture_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    irc.capture(torch.nn.Dropout(0.5), (torch.ones(4),))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("grad", [False, True])
def test_a_generator_of_the_programs_own_draws_by_torch(grad: bool) -> None:
    own = torch.Generator()

    def function(x: Tensor) -> Tensor:
        return (x * 2 + torch.rand(4, generator=own)).exp()

    run, x = irc.compile(function), torch.ones(4, requires_grad=grad)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        own.manual_seed(3)
        drawn = [run(x), run(x)]
    own.manual_seed(3)
    torch.testing.assert_close(drawn, [function(x), function(x)])
    assert not any("bug in irc" in str(each.message) for each in told)
