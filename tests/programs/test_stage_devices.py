"""Stages on unequal devices: the fast ones get more layers, and each holds what its own hold."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.cluster.load import find_cluster, of_kinds
from irc.dialects.builder import entry
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.plan.parts_files import load_parts
from irc.programs.stage_devices import clusters_by_place
from irc.training.stage_choice import Costs, balanced, ops_in_line

KIND = """
[[device]]
name = "{name}"
count = 2
peak_tflops = {{ f32 = {tflops} }}
memory_gb = {memory}
memory_gb_per_s = {tflops}00
"""
LINK = """
[[link]]
devices = 4
gb_per_s = 100
latency_us = 1
"""


class Net(nn.Module):
    """Equal layers and a loss."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a loss."""
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.mse_loss(x, y)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two devices that are three times as fast and large as the two behind them."""
    path = tmp_path_factory.mktemp("lab") / "lab.toml"
    kinds = (("fast", 30, 60), ("slow", 10, 20))
    texts = [KIND.format(name=n, tflops=t, memory=m) for n, t, m in kinds]
    path.write_text("".join(texts) + LINK)
    return str(path)


def test_a_stage_sees_its_own_devices(lab: str) -> None:
    assert clusters_by_place(lab, Mesh.parse("pipe=2,data=2")) == (f"{lab}@0", f"{lab}@1")
    assert clusters_by_place(lab, Mesh.parse("data=2,pipe=2")) == (lab, lab)
    assert clusters_by_place("8xH100", Mesh.parse("pipe=2")) == ("8xH100",) * 2
    slow = find_cluster(of_kinds(lab, [0, 1])).device
    assert (slow.memory_bytes, slow.flops("f32")) == (20 * 10**9, 10e12)
    assert find_cluster(f"{lab}@0").device.memory_bytes == 60 * 10**9
    with pytest.raises(IrcError) as caught:
        find_cluster(f"{lab}@2")
    assert caught.value.code == "cluster-unknown"


@pytest.mark.parametrize("kinds", ["01", "10", "011"])
def test_the_cut_is_the_best_of_all(lab: str, kinds: str) -> None:
    module = capture(Net(), (torch.zeros(512, 64), torch.zeros(512, 64))).program.module
    func, costs = entry(module), Costs(module, lab)
    own = [Costs(module, f"{lab}@{kind}") for kind in kinds]
    chosen = balanced(func, costs, len(kinds), None, own)
    ops = ops_in_line(func)

    def slowest(stages: list[int]) -> float:
        totals = [0.0] * len(kinds)
        for op, stage in zip(ops, stages, strict=True):
            totals[stage] += own[stage].seconds(op)
        return max(totals)

    every = [
        [sum(i >= cut for cut in cuts) for i in range(len(ops))]
        for cuts in combinations(range(1, len(ops)), len(kinds) - 1)
    ]
    least, chosen_s = min(map(slowest, every)), slowest([chosen[op] for op in ops])
    # What crosses counts as well, and is nearly the same at every layer.
    assert chosen_s <= least * 1.1


def test_fast_devices_get_more_layers(lab: str, tmp_path: Path) -> None:
    x = torch.zeros(4096, 64)
    irc.export_plan(
        Net(), (x, x), out=tmp_path / "plan", mesh="pipe=2,data=2", cluster=lab, optimizer="sgd",
        micro_batches=2, native="none",
    )  # fmt: skip
    parts = [part["F"].plan for part in load_parts(tmp_path / "plan").parts]
    assert [plan.cluster for plan in parts] == [f"{lab}@0", f"{lab}@1"]
    first, second = (sum(b.role == "parameter" for b in plan.buffers) for plan in parts)
    assert first > second
