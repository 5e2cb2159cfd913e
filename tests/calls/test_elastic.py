"""A step is planned for as many ranks as there are, and its batches are the same ones."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.calls.feeding import feeding_of
from irc.calls.sampler import DataSampler
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.sharding.mesh import parse_mesh
from irc.train import training_of

BATCH = 12


def step_of(mesh: Any = "data=auto", **options: Any) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.2), nn.Linear(7, 3))
    return irc.compile_step(module, loss=F.cross_entropy, mesh=mesh, **options)


def of_ranks(monkeypatch: pytest.MonkeyPatch, ranks: int) -> list[DataSampler]:
    """Return the sampler of each of so many ranks, as a script makes it there."""
    samplers: list[DataSampler] = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", f"{rank}")
        monkeypatch.setenv("WORLD_SIZE", f"{ranks}")
        step = step_of(batch="local")
        assert f"{step.options.mesh}" == f"data={ranks}"
        samplers.append(irc.data_sampler(step, 50, seed=4, batch_size=BATCH))
    return samplers


def test_batches_are_the_same_on_any_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """4, then 3, then 2, then 1: one order, whose batches lie as one process has them."""
    state: dict[str, Any] | None = None
    trained: list[int] = []
    for ranks in (4, 3, 2, 1):
        samplers = of_ranks(monkeypatch, ranks)
        for sampler in samplers:
            assert sampler.batch_size == BATCH // ranks
            if state is not None:
                sampler.load_state_dict(state)
        rounds = [iter(sampler) for sampler in samplers]
        each = [[next(numbers) for _ in range(BATCH // ranks)] for numbers in rounds]
        trained += chain.from_iterable(each)
        position = len(trained)
        state = {"epoch": 0, "position": position, "seed": 4, "shuffle": True, "size": 50}
    alone = list(DataSampler(irc.compile_step(nn.Linear(2, 2)).feeding(), 50, seed=4))
    assert trained == alone[:48]
    # Of a short last batch each rank has as much, and what is left over is left out.
    four = [list(sampler) for sampler in of_ranks(monkeypatch, 4)]
    assert [len(numbers) for numbers in four] == [len(s) for s in of_ranks(monkeypatch, 4)]
    assert sorted(chain.from_iterable(four)) == sorted(alone[:48])


def planned(ranks: int) -> LoadedPlan:
    """Return the plan of a step for so many ranks."""
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), y)

    batch = torch.zeros(BATCH, 5), torch.zeros(BATCH, dtype=torch.int64)
    program = capture(Trained(), batch, {}).program
    training = training_of(program, optimizer="sgd")
    options = Options(
        mesh=parse_mesh(f"data={ranks}"), cluster="demo-gpus", training=training, samples=("data",)
    )
    return make_plan(program, options, keep_ir=False)


@pytest.mark.parametrize("ranks", [4, 3, 2])
def test_the_plan_is_made_for_those_that_are_left(ranks: int) -> None:
    """The samples are divided by each number; a layer of 7 need not be."""
    plan = planned(ranks).plan
    assert plan.mesh == f"data={ranks}"
    assert plan.device_mesh.num_ranks == ranks


def test_alone_an_axis_is_of_one_rank(tmp_path: Path) -> None:
    step = step_of(batch="local")
    x, y = torch.randn(6, 5), torch.arange(6) % 3
    step.load(tmp_path, missing_ok=True)
    step.load(tmp_path / "none", missing_ok=True)
    assert step.count == 0
    losses = [float(step(x, y)) for _ in range(2)]
    step.save(tmp_path)
    losses.append(float(step(x, y)))
    other = step_of("data={}".format)
    other.load(tmp_path, missing_ok=True)
    assert other.count == 2
    assert float(other(x, y)) == losses[-1]
    with pytest.raises(IrcError, match="checkpoint-missing"):
        other.load(tmp_path / "none")


def test_an_axis_of_one_rank_is_pinned_and_fed_as_others_are() -> None:
    x, y = torch.randn(6, 5), torch.arange(6) % 3
    pinned = step_of(batch="local", pins="*weight = [data = S(0)]", seed=1)
    assert float(pinned(x, y)) == float(step_of("", seed=1)(x, y))
    assert not feeding_of("local", Mesh.parse("pipe=2,data=1")).is_local
    with pytest.raises(IrcError, match="mesh-mismatch"):
        step_of("", pins="*weight = [data = S(0)]")(x, y)


def test_a_call_that_records_gradients_is_pinned_on_one_rank() -> None:
    module = nn.Linear(5, 3)
    run = irc.compile(module, mesh="data=1", pins="*weight = [data = S(0)]")
    run(torch.randn(6, 5)).sum().backward()
    assert module.weight.grad is not None


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        ('"nothing_at_all" = [bogus = S(7)]', "mesh-mismatch"),
        ("nothing_at_all = [data = S(0)]", "input-mismatch"),
        ("*weight = [data = S(7)]", "placement-syntax"),
    ],
)
def test_pins_of_one_rank_are_checked(pins: str, code: str) -> None:
    with pytest.raises(IrcError) as caught:
        step_of("data=1", pins=pins)(torch.randn(6, 5), torch.arange(6) % 3)
    assert caught.value.code == code


def test_a_module_in_a_loop_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(IrcError, match="world-size"):
        irc.compile(nn.Linear(4, 4), mesh="data=auto,tensor=2")
    monkeypatch.delenv("WORLD_SIZE")
    alone: Any = irc.compile(nn.Linear(4, 4), mesh="data=auto", layout="ddp", batch="local")
    assert alone.feeding().count == 1
    with alone.no_sync():
        alone(torch.ones(3, 4)).sum().backward()
    assert torch.equal(alone.weight.grad, torch.full((4, 4), 3.0))
    alone.load_state_dict(irc.whole(alone).state_dict())


@pytest.mark.parametrize(
    ("mesh", "code"),
    [
        ([2, 2].count, "option-value"),
        (3, "option-value"),
        ("data=auto,tensor={}0".format, "world-size"),
        ("data=auto,tensor=auto", "mesh-syntax"),
    ],
)
def test_what_is_no_mesh_is_refused(mesh: Any, code: str) -> None:
    with pytest.raises(IrcError) as caught:
        step_of(mesh)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("key", "value"),
    [("position", -1), ("position", 51), ("epoch", -1), ("seed", 2**63), ("shuffle", "no"),
     ("position", 2.5), ("position", None)],
)  # fmt: skip
def test_a_state_that_no_sampler_saves_is_refused(key: str, value: object) -> None:
    sampler = irc.data_sampler(step_of(), 50, seed=4)
    before = sampler.state_dict()
    with pytest.raises(IrcError, match=f"{key}=") as caught:
        sampler.load_state_dict({**before, key: value})
    assert caught.value.code == "state-mismatch"
    assert sampler.state_dict() == before


def test_batches_that_ranks_do_not_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "5")
    step = step_of(batch="local")
    with pytest.raises(IrcError, match="10 or 15 samples for 5, or 4 or 6 ranks for 12") as caught:
        irc.data_sampler(step, 50, batch_size=BATCH)
    assert caught.value.code == "mesh-axis-indivisible"
    with pytest.raises(IrcError, match="option-value"):
        irc.data_sampler(step, 50, batch_size=0)
    with pytest.raises(IrcError, match="a data set of -3 samples"):
        irc.data_sampler(step, -3)
    for seed in ("a", 2**70):
        with pytest.raises(IrcError, match="no number of less than 62 bits"):
            irc.data_sampler(step, 50, seed=seed)
    # Given whole, a batch may be of any size.
    assert irc.data_sampler(step_of(), 50, batch_size=7).batch_size == 7
