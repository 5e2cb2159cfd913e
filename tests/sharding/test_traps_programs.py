"""Traps that need a whole program: what runs is priced, losses and norms, hashes (T-4 to T-43).

What each trap is, and which tests catch it, is in `test_traps`.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block

import irc
from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import entry, finish_function
from irc.dialects.comm import CollectiveOp, LocalChunkOp
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.sbp import BoxingOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.search.columns import matrix_of, spaces_of
from irc.search.graph import Graph, Wishes

CLUSTER = "8xH100"


def boxing_program(source: Placement, target: Placement) -> ModuleOp:
    kinds = [TensorType.of((24, 16), "f32", placement) for placement in (source, target)]
    block = Block(arg_types=kinds[:1])
    box = BoxingOp.make([block.args[0]], kinds[1:], loc="t.py:1", id="n0.box0")
    block.add_op(box)
    module = ModuleOp([finish_function("forward", block, list(box.outputs))])
    module.attributes["irc.mesh"] = StringAttr("data=2,tensor=4")
    return module


def test_the_price_of_a_boxing_is_that_of_the_collectives_that_run() -> None:
    """Packing and unpacking off the outermost dim included, for every pair of placements."""
    cost = ClusterCost(find_cluster(CLUSTER), Mesh.parse("data=2,tensor=4"))
    ways = (B, Split(0), Split(1), Partial("sum"))
    tried = 0
    for source, target in product(product(ways, repeat=2), repeat=2):
        before, after = (
            Placement.in_mesh_order(tuple(zip(cost.mesh.names, p, strict=True)))
            for p in (source, target)
        )
        if before == after or not cost.boxing.reaches((24, 16), "f32", before, after):
            continue
        module = boxing_program(before, after)
        LowerBoxingPass(cluster=CLUSTER).apply(context(), module)
        moves = [op for op in module.walk() if isinstance(op, CollectiveOp | LocalChunkOp)]
        seconds = sum(map(cost.local_seconds, moves))
        wanted = cost.boxing_seconds((24, 16), "f32", before, after)
        # A single step is taken where one leads there, even if two would be cheaper.
        assert seconds == pytest.approx(wanted) or (len(moves) == 1 and seconds > wanted)
        tried += seconds == pytest.approx(wanted)
    assert tried > 60


def sharded(
    model: nn.Module, args: tuple[Tensor, ...], mesh: str, pins: str, *, train: bool = False
) -> tuple[ModuleOp, list[Tensor]]:
    captured = irc.capture(model, args)
    module = captured.program.module
    if train:
        DifferentiatePass(loss="output").apply(context(), module)
    CanonicalizePass().apply(context(), module)
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins, inputs="any").apply(context(), module)
    return module, [*captured.program.tensors.values(), *args]


class Loss(nn.Module):
    """A mean over rows, of which some are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 5, bias=False).double()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.out(x), labels, ignore_index=-100)


@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
def test_a_mean_over_rows_is_that_of_all_ranks_whatever_they_ignore(mesh: str) -> None:
    """One rank ignores all its rows, others some: the ranks' means have another mean."""
    torch.manual_seed(0)
    model, x = Loss(), torch.randn(16, 6, dtype=torch.float64)
    labels = torch.tensor([-100] * 4 + [0, 1, -100, 2] + [3] * 4 + [-100, -100, 4, 0])
    pins = "x = [data = S(0)]; labels = [data = S(0)]; out.weight = [data = B]"
    module, inputs = sharded(model, (x, labels), mesh, pins, train=True)
    LowerBoxingPass().apply(context(), module)
    sharded_loss, gradient = run_spmd(module, inputs, Mesh.parse(mesh))
    loss = model(x, labels)
    loss.backward()
    torch.testing.assert_close(sharded_loss, loss.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, model.out.weight.grad, rtol=1e-9, atol=1e-15)
    by_rank = [
        F.cross_entropy(model.out(rows), own)
        for rows, own in zip(x.chunk(4), labels.chunk(4), strict=True)
        if (own >= 0).any()
    ]
    assert not torch.isclose(torch.stack(by_rank).sum() / 4, loss)


class Norm(nn.Module):
    """The norm of all parameters together, some of which ranks share."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.whole = nn.Linear(8, 8), nn.Linear(8, 8)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        squares = [p.square().sum() for p in self.parameters()]
        return torch.stack(squares).sum().sqrt() * x.sum()


def test_a_norm_counts_shards_once_and_copies_once() -> None:
    torch.manual_seed(0)
    model, x = Norm(), torch.ones(2, dtype=torch.float64)
    pins = "split.* = [tensor = S(0)]; whole.* = [tensor = B]"
    module, inputs = sharded(model, (x,), "data=2,tensor=2", pins)
    LowerBoxingPass().apply(context(), module)
    (norm,) = run_spmd(module, inputs, Mesh.parse("data=2,tensor=2"))
    torch.testing.assert_close(norm, model(x).detach(), rtol=1e-12, atol=0)


def test_no_value_that_a_host_reads_is_partial() -> None:
    """What leaves a program is whole, though a matmul or a loss made it as a sum over ranks."""
    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    pins = "weight = [tensor = S(1)]"
    module, inputs = sharded(model, (x,), "tensor=4", pins)
    products = [op for op in module.walk() if isinstance(op, FlowOp) and op.name == "flow.contract"]
    assert [str(tensor(op.outputs[0]).placement) for op in products] == ["[tensor = P(sum)]"]
    end = entry(module).body.block.last_op
    assert end is not None
    for value in end.operands:
        placement = tensor(value).placement
        assert placement is not None
        assert not placement.partial_axes()
    LowerBoxingPass().apply(context(), module)
    (output,) = run_spmd(module, inputs, Mesh.parse("tensor=4"))
    torch.testing.assert_close(output, model(x).detach())


def test_what_cannot_be_has_no_column() -> None:
    """No number stands for infinity: costs are seconds, and nothing leads to a partial sum."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(8, 8)
    module = irc.capture(model, (x,)).program.module
    CanonicalizePass().apply(context(), module)
    cost = ClusterCost(find_cluster(CLUSTER), Mesh.parse("data=2,tensor=2"))
    problem = Graph(module, cost, Wishes()).problem
    spaces = spaces_of(problem, cost.boxing)
    matrix = matrix_of(problem, spaces)
    seconds = matrix.cost / matrix.scale
    assert np.isfinite(seconds).all()
    assert 0 < seconds.max() < 1e-3
    assert all(0 <= s < 1e-3 for node in problem.nodes for s in node.seconds)
    for space in spaces.values():
        names = {number: placement for placement, number in space.code.items()}
        for tail, head in zip(space.arcs.tails, space.arcs.heads, strict=True):
            new_partial = set(names[int(head)].partial_axes()) - set(
                names[int(tail)].partial_axes()
            )
            assert not new_partial


class Deep(nn.Module):
    """A long reduction whose parts cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(256, 256, bias=False), nn.Linear(256, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) * 1e3) - self.b(self.a(x) * 999.0)


def test_rounding_is_told_from_bugs_by_float64() -> None:
    """Ranks add in another order: in float32 the bits differ, in float64 the numbers are equal."""
    torch.manual_seed(0)
    model, x, mesh = Deep(), torch.randn(4, 256), Mesh.parse("tensor=4")
    pins = "a.weight = [tensor = S(1)]; b.weight = [tensor = S(1)]"
    module, inputs = sharded(model, (x,), str(mesh), pins)
    alone, precisions = irc.capture(model, (x,)).program.module, (None, torch.float64)
    whole = [run_function(alone, inputs, dtype=dtype)[0] for dtype in precisions]
    LowerBoxingPass().apply(context(), module)
    split = [run_spmd(module, inputs, mesh, dtype=dtype)[0] for dtype in precisions]
    assert not torch.equal(whole[0], split[0])
    torch.testing.assert_close(split[1], whole[1], rtol=1e-9, atol=1e-9)
    eager = (whole[0] - whole[1]).abs().max()
    assert (split[0] - whole[1]).abs().max() < 4 * eager


def test_a_plan_is_known_by_program_mesh_and_prices(tmp_path: Path) -> None:
    """A saved plan is not taken for another: each of these changes its hash."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(8, 8)
    cases = {
        "plan": (model, x, "data=2", CLUSTER),
        "again": (model, x, "data=2", CLUSTER),
        "other mesh": (model, x, "data=4", CLUSTER),
        "other prices": (model, x, "data=2", "demo-gpus"),
        "other sizes": (model, torch.randn(16, 8), "data=2", CLUSTER),
        "other program": (nn.Sequential(nn.Linear(8, 8), nn.GELU()), x, "data=2", CLUSTER),
    }
    summaries = {
        name: irc.export_plan(m, (v,), out=tmp_path / name, mesh=mesh, cluster=cluster)
        for name, (m, v, mesh, cluster) in cases.items()
    }
    assert summaries["plan"] == summaries["again"]
    others = [summaries[name] for name in cases if name != "again"]
    assert len(set(others)) == len(others)
