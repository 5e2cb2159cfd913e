"""What a plan makes of weights: once, again after a write, and shared by the plans of a model."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import irc
from irc.calls.compiled import dispatcher_of, refresh
from irc.errors import IrcError
from irc.plan.schema import Kernels, from_json, to_json
from irc.plan.verify import verify_plan
from irc.runtime.contents import looked_at, watch_of


class Twice(nn.Module):
    """A weight of its own shape, and what two constants make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(33, 70)
        self.register_buffer("scale", torch.rand(70))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(70, 70).tril()
        return self.linear(x) * self.scale.exp() @ mask


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-3)


def compiled(module: nn.Module, rows: int = 9) -> tuple[Any, torch.Tensor]:
    x = torch.randn(rows, 33)
    fast = irc.compile(module)
    with torch.no_grad():
        assert close(fast(x), module(x))
    return fast, x


def plan_of(module: Any, which: int = 0) -> Any:
    return dispatcher_of(module).versions[which].plan  # type: ignore[union-attr]


@torch.no_grad()
def test_weights_are_packed_once_and_again_after_a_write() -> None:
    module = Twice()
    fast, x = compiled(module)
    plan = plan_of(fast)
    assert plan.prepared_bytes > 0
    assert any("pack" in k.name for k in plan.kernels)
    for write in (
        lambda: module.linear.weight.mul_(2),
        lambda: module.scale.zero_(),
        lambda: module.load_state_dict(Twice().state_dict()),
        lambda: nn.init.ones_(module.linear.weight),
    ):
        write()
        assert close(fast(x), module(x))


@torch.no_grad()
def test_other_memory_is_a_recompile() -> None:
    module = Twice()
    fast, x = compiled(module)
    module.linear.weight.data = torch.randn(70, 33)
    assert close(fast(x), module(x))
    assert "other memory" in irc.calls.compiled.statistics(fast).reasons[0]


@torch.no_grad()
def test_writes_that_torch_does_not_count_are_seen_after_refresh() -> None:
    module = Twice()
    fast, x = compiled(module)
    module.linear.weight.data.mul_(3)
    refresh(fast)
    assert close(fast(x), module(x))
    with pytest.raises(IrcError, match=r"not made by irc\.compile"):
        refresh(module)


@torch.no_grad()
def test_versions_of_a_model_share_what_is_packed() -> None:
    module = nn.Linear(33, 70)
    fast, _ = compiled(module)
    other = torch.randn(17, 33)
    assert close(fast(other), module(other))
    versions = dispatcher_of(fast).versions  # type: ignore[union-attr]
    stores = [set(v._executor._prepared.by_buffer.values()) for v in versions]
    assert stores[0] == stores[1] and len(stores[0]) == 1
    module.weight.add_(1)
    assert close(fast(other), module(other))
    x = torch.randn(9, 33)
    assert close(fast(x), module(x))


@torch.no_grad()
def test_threads_see_one_write() -> None:
    module = Twice()
    fast, x = compiled(module)
    module.linear.weight.mul_(-1)
    want, wrong = module(x), list[int]()

    @torch.no_grad()
    def work() -> None:
        wrong.extend(i for i in range(50) if not close(fast(x), want))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_inference_tensors_are_prepared_at_every_call() -> None:
    with torch.inference_mode():
        module = nn.Linear(33, 70)
        x = torch.randn(9, 33)
        fast = irc.compile(module)
        assert close(fast(x), module(x))
        module.weight.mul_(2)
        assert close(fast(x), module(x))


@torch.no_grad()
def test_states_are_not_prepared() -> None:
    module = nn.BatchNorm1d(33).train()
    fast, x = irc.compile(module), torch.randn(9, 33)
    for _ in range(3):
        fast(x)
    written = {b.name for b in plan_of(fast).buffers if b.storage == "prepared"}
    assert not written & {"running_mean", "running_var"}


@torch.no_grad()
def test_a_plan_says_what_it_prepares() -> None:
    fast, _ = compiled(Twice())
    plan = plan_of(fast)
    assert from_json(to_json(plan)) == plan
    verify_plan(plan)
    (kernels, *_) = plan.prepared
    assert isinstance(kernels, Kernels)
    moved = replace(plan, prepared=(), actions=(*plan.prepared, *plan.actions))
    with pytest.raises(IrcError, match="at every call"):
        verify_plan(moved)
    with pytest.raises(IrcError, match="no value now"):
        verify_plan(replace(plan, prepared=()))


UNCOUNTED: dict[str, Callable[[torch.Tensor], object]] = {
    "data": lambda w: w.data.mul_(-1),
    "one element of data": lambda w: w.data[3, 3:4].add_(1),
    "numpy": lambda w: np.multiply(w.detach().numpy(), 3, out=w.detach().numpy()),
    "signs": lambda w: w.data.neg_(),
}


@pytest.mark.parametrize("write", UNCOUNTED)
@pytest.mark.parametrize("rows", [1, 9])
@torch.no_grad()
def test_writes_that_torch_does_not_count_are_seen(rows: int, write: str) -> None:
    module = Twice()
    fast, x = compiled(module, rows)
    assert plan_of(fast).prepared_bytes > 0
    for _ in range(2):
        UNCOUNTED[write](module.linear.weight)
        assert close(fast(x), module(x))


@pytest.mark.parametrize("way", [irc.compile, partial(torch.compile, backend="irc")])
@torch.no_grad()
def test_a_target_that_follows_by_its_data_is_seen(way: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    module, target = nn.Linear(200, 300), nn.Linear(200, 300)
    fast, x = way(target), torch.randn(5, 200)
    for _ in range(4):
        for mine, theirs in zip(target.parameters(), module.parameters(), strict=True):
            mine.data.copy_(0.5 * theirs.data + 0.5 * mine.data)
        assert close(fast(x), target(x))


@torch.no_grad()
def test_plans_that_share_what_is_packed_see_a_write_alike() -> None:
    module = nn.Linear(33, 70)
    fast, x = compiled(module)
    other = torch.randn(17, 33)
    module.weight.data.add_(1)  # before there is a plan for the other one
    assert close(fast(other), module(other))
    for first, second in ((x, other), (other, x)):
        module.weight.data.add_(1)
        assert close(fast(first), module(first))
        assert close(fast(second), module(second))


@torch.no_grad()
def test_weights_in_another_order_are_seen() -> None:
    module = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    fast, x = irc.compile(module), torch.randn(2, 8, 9, 9)
    assert close(fast(x), module(x))
    module.weight.data.mul_(2)
    assert close(fast(x), module(x))


MOST: dict[str, Callable[[torch.Tensor], object]] = {
    "an average": lambda w: w.data.mul_(0.9),
    "a tenth of the elements": lambda w: w.data.mul_(torch.rand_like(w) > 0.1),
    "an eighth of the rows": lambda w: w.data[: len(w) // 8].zero_(),
    "numpy": lambda w: np.negative(w.detach().numpy(), out=w.detach().numpy()),
}


@pytest.mark.parametrize("write", MOST)
@torch.no_grad()
def test_writes_to_a_part_of_a_large_weight_are_seen(write: str) -> None:
    module = nn.Sequential(nn.Linear(500, 700), nn.Tanh(), nn.Linear(700, 300))
    fast, x = irc.compile(module), torch.randn(20, 500)
    for place in (0, 2):
        assert close(fast(x), module(x))
        MOST[write](cast("nn.Linear", module[place]).weight)
        assert close(fast(x), module(x))
    cast("nn.Linear", module[0]).weight.data[300, 7] += 5  # one element: may be unseen until told
    refresh(fast)
    assert close(fast(x), module(x))


@pytest.mark.parametrize("size", [70_000, 1 << 16, 100 << 20, 65_537])
def test_what_is_looked_at_lies_in_the_weight(size: int) -> None:
    lines = looked_at([(4096, size), (1 << 40, 77)])
    inside = [(start - 4096, count) for start, count in lines if start < 1 << 40]
    assert all(start >= 0 and start + count <= size for start, count in inside)
    # No eighth of it is left out.
    assert {start * 8 // size for start, _ in inside} == set(range(8))
    assert (1 << 40, 77) in lines


def test_weights_beside_one_that_is_empty_are_watched() -> None:
    class Segment:
        def digest(self, pieces: list[tuple[int, int]]) -> Callable[[], bytes]:
            return lambda: repr(pieces).encode()

    own = torch.zeros(4)
    assert watch_of([Segment()], [own, torch.zeros(4, 0)]) is not None
    assert watch_of([Segment()], [own, torch.zeros(0, 4)]) is not None
    assert watch_of([Segment()], [own, torch.zeros(4).expand(3, 4)]) is None
