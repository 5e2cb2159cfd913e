"""Random numbers of compiled calls repeat when eager's do, and calls move torch's generator."""

# pyright: basic
from __future__ import annotations

import warnings
from collections.abc import Callable

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


def test_a_capture_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    irc.capture(torch.nn.Dropout(0.5), (torch.ones(4),))
    assert torch.equal(torch.get_rng_state(), before)
