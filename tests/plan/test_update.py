"""States that kernels write where they lie, and those that must be copied instead."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.calls.compiled import dispatcher_of
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.schema import Copy
from irc.plan.verify import verify_plan

Update = Callable[[nn.Module, Tensor], Any]


class States(nn.Module):
    """Two square states, changed by a function."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        self.register_buffer("a", torch.randn(6, 6))
        self.register_buffer("b", torch.randn(6, 6))
        self.update = update

    def forward(self, x: Tensor) -> Any:
        return self.update(self, x)


def average(m: Any, x: Tensor) -> Tensor:
    m.a.mul_(0.9).add_(x)
    return x + 1


def both(m: Any, x: Tensor) -> Tensor:
    m.a.mul_(0.9).add_(x)
    m.b.mul_(0.5).add_(m.a * m.a)
    return m.a.sqrt().nan_to_num() + m.b


def swapped(m: Any, x: Tensor) -> Tensor:
    a, b = m.a.clone(), m.b.clone()
    m.a.copy_(b)
    m.b.copy_(a)
    return x


def turned(m: Any, x: Tensor) -> Tensor:
    m.a.copy_(m.a.T.clone() + x)
    return x


def old_and_new(m: Any, x: Tensor) -> Tensor:
    old = m.a.clone()
    m.a.add_(x)
    return old @ m.a


def after_a_product(m: Any, x: Tensor) -> Tensor:
    m.a.copy_(x @ m.b + m.a)
    return x


def along_the_product(m: Any, x: Tensor) -> Tensor:
    m.a.copy_(x @ m.a)
    return x


def normalised(m: Any, x: Tensor) -> Tensor:
    m.a.copy_(torch.softmax(m.a + x, -1))
    return x


CASES: dict[Any, int] = {
    average: 0, both: 0, swapped: 2, turned: 1, after_a_product: 0, along_the_product: 1,
}  # fmt: skip
"""How many states have to be copied back; what others need depends on how their ops are grouped."""


def compiled(update: Update) -> tuple[Any, nn.Module, Tensor]:
    torch.manual_seed(0)
    module = States(update)
    x = torch.randn(6, 6)
    return irc.compile(module), copy.deepcopy(module), x


def copies(module: Any) -> int:
    plan = dispatcher_of(module).versions[0].plan  # type: ignore[union-attr]
    return sum(isinstance(a, Copy) and a.target in plan.weights for a in plan.actions)


@torch.no_grad()
@pytest.mark.parametrize("update", [*CASES, old_and_new, normalised])
def test_states_are_what_torch_makes_of_them(update: Any) -> None:
    fast, eager, x = compiled(update)
    for _ in range(3):
        assert torch.allclose(fast(x), eager(x), rtol=1e-4, atol=1e-5)
        for name in ("a", "b"):
            assert torch.allclose(fast.get_buffer(name), eager.get_buffer(name), atol=1e-5), name
    if update in CASES:
        assert copies(fast) == CASES[update]


@torch.no_grad()
def test_a_write_in_place_counts_as_one() -> None:
    fast, _, x = compiled(average)
    before = fast.a._version
    fast(x)
    assert fast.a._version > before


@torch.no_grad()
def test_an_input_may_be_the_state_itself() -> None:
    def reads_later(m: Any, x: Tensor) -> Tensor:
        m.a.mul_(0.5)
        return (x @ x).relu()

    fast, eager, x = compiled(reads_later)
    fast(x), eager(x)
    assert torch.allclose(fast(fast.a), eager(eager.a.clone()), atol=1e-5)
    assert torch.allclose(fast.a, eager.a)


@torch.no_grad()
@pytest.mark.parametrize("is_fused", [True, False])
def test_a_bad_index_leaves_states_as_they_were(is_fused: bool) -> None:
    def counts(m: Any, ids: Tensor) -> Tensor:
        rows = m.b[ids]
        m.a.add_(rows if is_fused else rows @ rows)
        return rows.sum()

    module = States(counts)
    good, bad = torch.arange(6), torch.tensor([0, 1, 2, 3, 4, 99])
    fast = irc.compile(module)
    fast(good)
    before = module.a.clone()
    with pytest.raises(IrcError, match="index-out-of-range"):
        fast(bad)
    assert torch.equal(module.a, before)
    eager = copy.deepcopy(module)
    assert torch.allclose(fast(good), eager(good))
    assert torch.allclose(module.a, eager.a, atol=1e-5)


@torch.no_grad()
def test_a_kernel_may_share_memory_only_where_it_says_so() -> None:
    fast, _, x = compiled(average)
    fast(x)
    plan = dispatcher_of(fast).versions[0].plan  # type: ignore[union-attr]
    verify_plan(plan)
    kernels = tuple(replace(kernel, in_place=()) for kernel in plan.kernels)
    with pytest.raises(IrcError, match="which it reads"):
        verify_plan(replace(plan, kernels=kernels))


def test_an_optimizer_writes_no_copies(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    irc.export_plan(
        module, (torch.randn(5, 8),), out=tmp_path, loss=lambda y: y.sum(), optimizer="adamw"
    )
    plan = load_plan(tmp_path).plan
    copied = {plan.buffers[a.target].name for a in plan.actions if isinstance(a, Copy)}
    trained = {name for name, _ in module.named_parameters()}
    assert trained <= {plan.buffers[i].name for i in plan.updated()}
    assert not copied & trained
