"""Dictionaries of torch.distributed.tensor, and AutoParallel's choice, as constraints."""

# pyright: basic

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd.descriptors import ParamAOTInput, PlainAOTInput
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSpec
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.placement_types import _StridedShard

import irc
from irc.constraints.dtensor import statements
from irc.dialects.placement import B, Placement, Split
from irc.errors import IrcError
from irc.report.evidence import Evidence
from irc.report.export import export_plan
from irc.report.weights import entry_arguments


class Block(nn.Module):
    """A residual one, of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def test_each_form_as_text() -> None:
    both = _StridedShard(0, split_factor=4), Shard(0)
    assert [*statements({
        "*.up": ColwiseParallel(),
        "*.down": RowwiseParallel(output_layouts=Shard(1)),
        "*.norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mp": {"head": ColwiseParallel(output_layouts=Replicate())},
        "a": [Shard(0), Replicate()],
        "b": (Partial(), Shard(-1)),
        "c": both,
        "d": [Shard(1), Shard(1)],
        "e": "S(0), B",
        "f": Placement.of(data=Split(0), tensor=B),
    })] == [
        'use "*.up" = column-parallel',
        'use "*.down" = row-parallel',
        'use "*.norm" = sequence-parallel',
        'use "head" = column-parallel over mp',
        '"a" = (S(0), B)',
        '"b" = (P(sum), S(-1))',
        '"c" = (S(0, 1), S(0, 0))',
        '"d" = (S(1, 0), S(1, 1))',
        '"e" = S(0), B',
        f'"f" = {Placement.of(data=Split(0), tensor=B)}',
    ]  # fmt: skip


class FutureParallel(ColwiseParallel):
    """A style of torch that irc does not know."""


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ({"a": [Partial("avg"), Replicate()]}, "of 'a'"),
        ({"a": ["Shard(0)"]}, "write Replicate"),
        ({"tp": {"a": FutureParallel()}}, "FutureParallel for 'a' over tp"),
        ({"tp": {"a": [Shard(0)]}}, "give placements by name, for all axes"),
        ({3: ColwiseParallel()}, "a key 3"),
        ({"a": [_StridedShard(0, split_factor=2), Shard(0), Shard(0)]}, "3 axes split along dim 0"),
    ],
)
def test_what_irc_cannot_say_is_refused(pins: dict[object, object], says: str) -> None:
    with pytest.raises(IrcError, match="dtensor-placement") as caught:
        irc.compile(nn.Linear(2, 2), mesh="tp=2", pins=pins)
    assert says in caught.value.render()


def stored(folder: Path, pins: object, mesh: str = "data=2,tensor=2") -> dict[str, str]:
    """Plan two blocks; return how each parameter is stored."""
    model = nn.Sequential(Block(), Block())
    irc.export_plan(model, (torch.ones(4, 16),), out=folder, mesh=mesh, pins=pins)
    return {
        one.name: str(one.placement)
        for one in entry_arguments(Evidence.of(folder))
        if one.role == "parameter"
    }


def test_a_hand_written_plan_of_tensor_parallelism(tmp_path: Path) -> None:
    """Megatron's, on an axis that is called as irc calls it, and on another one."""
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    placements = stored(tmp_path / "one", plan)
    assert placements["1.up.weight"] == "[data = B, tensor = S(0)]"
    assert placements["1.down.weight"] == "[data = B, tensor = S(1)]"
    placements = stored(tmp_path / "two", {"mp": plan}, "data=2,mp=2")
    assert placements["1.down.weight"] == "[data = B, mp = S(1)]"
    with pytest.raises(IrcError, match="needs an axis"):
        stored(tmp_path / "three", plan, "data=2,mp=2")


def test_what_irc_exports_it_reads(tmp_path: Path) -> None:
    """The dictionary of styles, and that of placements, give the placements that they are from."""
    first = stored(tmp_path / "first", {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()})
    exported: dict[str, object] = {}
    exec(export_plan(tmp_path / "first", "parallelize-module"), exported)
    assert stored(tmp_path / "second", exported["PLACEMENTS"]) == first
    assert exported["PLAN"]
    assert stored(tmp_path / "third", exported["PLAN"]) == first


def test_what_autoparallel_chooses(tmp_path: Path) -> None:
    """Nodes of the graph that are parameters are pinned, and others are planned again."""
    graph, chosen = torch.fx.Graph(), dict[object, OpSpec]()
    mesh = SimpleNamespace(ndim=2, device_type="cpu")
    inputs = {
        "primals_1": (ParamAOTInput("0.up.weight"), [Shard(0), Shard(1)]),
        "primals_2": (PlainAOTInput(0), [Shard(0), Replicate()]),
        "mm": (None, [Shard(0), Shard(1)]),
    }
    for name, (described, placements) in inputs.items():
        node = graph.placeholder(name)
        node.meta["desc"] = described
        spec = DTensorSpec.__new__(DTensorSpec)
        spec.mesh, spec.placements = mesh, tuple(placements)
        chosen[node] = OpSpec(spec)
    assert [*statements(chosen)] == ['"0.up.weight" = (S(0), S(1))']
    assert stored(tmp_path / "plan", chosen)["0.up.weight"] == "[data = S(0), tensor = S(1)]"
    with pytest.raises(IrcError, match="no parameter or buffer"):
        [*statements({node: chosen[node]})]
