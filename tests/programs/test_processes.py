"""What is planned and searched does not depend on how many processes do it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from irc.calls.plan_search import Asked
from irc.search.children import Child
from irc.search.limits import Limits
from irc.searched import searched_module
from tests.programs.test_stage_memory import planned
from tests.search.test_ahead import alone_but_for


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each child sent what it computed."""
    results: list[bool] = []
    outcome = Child.outcome

    def noted(self: Any) -> Any:
        own = outcome(self)
        results.append(own is not None)
        return own

    monkeypatch.setattr("irc.search.children.Child.outcome", noted)
    alone_but_for(monkeypatch)
    return results


def hash_of(name: str, schedule: str, mesh: str) -> str:
    return planned(name, schedule, mesh, cluster="8xH100").hash


@pytest.mark.parametrize(
    ("name", "schedule", "mesh"),
    [("gpt", "zb-h1", "pipe=2,tensor=2"), ("skips", "1f1b", "pipe=4,data=2")],
)
def test_plans_of_stages(
    name: str, schedule: str, mesh: str, sent: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_PROCESSES", "1")
    alone = hash_of(name, schedule, mesh)
    assert not sent
    for count in ("2", "4"):
        monkeypatch.setenv("IRC_PROCESSES", count)
        assert hash_of(name, schedule, mesh) == alone
    assert sent
    assert all(sent)


def test_plans_for_gpus_leave_cuda_alone(sent: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with GPUs a plan for a cluster is made in child processes all the same."""

    def initialised() -> None:
        raise AssertionError("CUDA is initialised")

    monkeypatch.setenv("IRC_PROCESSES", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "_lazy_init", initialised)
    planned("gpt", "1f1b", "pipe=2,tensor=2", cluster="8xH100", backend="triton")
    assert sent
    assert all(sent)


class Layer(nn.Module):
    """A layer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Layers enough to be priced from pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def searched(limits: Limits) -> tuple[object, ...]:
    outcome, _ = searched_module(
        Net(),
        (torch.zeros(64, 32, 64),),
        None,
        Asked(limits=limits),
        cluster="4xH100",
        optimizer="adamw",
    )
    return outcome.best, outcome.judged, outcome.priced, outcome.considered


def test_searches(sent: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_PROCESSES", "1")
    alone = searched(Limits(most_judged=2))
    assert not sent
    monkeypatch.setenv("IRC_PROCESSES", "2")
    assert searched(Limits(most_judged=2)) == alone
    assert sent
    assert all(sent)


def test_a_search_out_of_time_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(_: object) -> None:
        raise AssertionError("a child is begun")

    monkeypatch.setenv("IRC_PROCESSES", "2")
    monkeypatch.setattr("irc.search.children.Child.of", begun)
    alone_but_for(monkeypatch)
    searched(Limits(time_limit_s=1e-9))
