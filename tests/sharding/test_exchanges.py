"""Ops whose ranks exchange what each found: planned, lowered, priced, and counted in memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc import capture
from irc.cluster.load import find_cluster
from irc.cost.inner import inner_bytes
from irc.cost.model import ClusterCost
from irc.dialects.flow import FlowOp, id_of, tensor
from irc.dialects.placement import Mesh, Split
from irc.dialects.sbp import BoxingOp
from irc.dialects.text import context
from irc.interpret.spmd import run_spmd
from irc.ops.strategies import TRAVELLING
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.sharding.signatures import signatures


class Head(nn.Module):
    """Logits of a vocabulary, and what is taken of them."""

    def __init__(self, take: Callable[[Tensor], Tensor], width: int, words: int) -> None:
        super().__init__()
        self.out, self.take = nn.Linear(width, words, bias=False), take

    def forward(self, x: Tensor) -> Tensor:
        return self.take(self.out(x))


TAKEN: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "argmax": ("flow.arg_reduce", lambda y: y.argmax(-1)),
    "top 20": ("flow.top_k", lambda y: y.topk(20, -1).indices),
    "running sum": ("flow.cumulative", lambda y: y.softmax(-1).cumsum(-1).amax(-1)),
}


def sharded(model: nn.Module, x: Tensor, mesh: str, cluster: str, pins: str) -> ModuleOp:
    module = capture(model, (x,)).program.module
    CanonicalizePass().apply(context(), module)
    AutoShardPass(mesh=mesh, cluster=cluster, pins=pins).apply(context(), module)
    return module


def ops(module: ModuleOp, name: str) -> list[FlowOp]:
    return [op for op in module.walk() if isinstance(op, FlowOp) and op.name == name]


@pytest.mark.parametrize("name", TAKEN)
def test_logits_of_a_split_vocabulary_are_never_gathered(name: str) -> None:
    kind, take = TAKEN[name]
    with torch.device("meta"):
        model, x = Head(take, 4096, 131072), torch.empty(4096, 4096)
    module = sharded(model, x, "tensor=8", "8xH100", "out.weight = [tensor = S(0)]")
    (op,) = ops(module, kind)
    assert tensor(op.inputs[0]).placement["tensor"] == Split(1)  # type: ignore[index]
    moved = [box.outputs[0] for box in module.walk() if isinstance(box, BoxingOp)]
    assert all(tensor(v).static_shape() != (4096, 131072) for v in moved)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("mesh", ["tensor=4", "data=2,tensor=2"])
def test_what_is_found_is_what_one_device_finds(name: str, mesh: str) -> None:
    torch.manual_seed(0)
    model, x = Head(TAKEN[name][1], 8, 96).double(), torch.randn(6, 8, dtype=torch.float64)
    pins = f"out.weight = [{', '.join(f'{axis} = S(0)' for axis in Mesh.parse(mesh).names)}]"
    module = sharded(model, x, mesh, "demo-gpus", pins)
    LowerBoxingPass().apply(context(), module)
    (output,) = run_spmd(module, [model.out.weight.detach(), x], Mesh.parse(mesh))
    torch.testing.assert_close(output, model(x).detach())


def test_the_memory_of_an_exchange_is_counted() -> None:
    """Tokens of all ranks, and what packs them: more than operands and results."""
    tokens, width, inner, count = 4096, 256, 512, 8
    bf16 = torch.bfloat16

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.empty(count, 2, inner, width, dtype=bf16, device="meta"))
            self.down = nn.Parameter(torch.empty(count, width, inner, dtype=bf16, device="meta"))

        def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
            return torch.ops.irc.experts(x, index, weights, self.up, self.down, "silu", count)

    args = (
        torch.empty(tokens, width, dtype=bf16, device="meta"),
        torch.zeros(tokens, 2, dtype=torch.int64, device="meta"),
        torch.empty(tokens, 2, dtype=bf16, device="meta"),
    )
    module = capture(Layer(), args).program.module
    CanonicalizePass().apply(context(), module)
    mesh = Mesh.parse("expert=8")
    (op,) = ops(module, "flow.extern")
    known = {s.strategy[0]: s for s in signatures(op, mesh)}
    whole = tokens * width * 2
    assert inner_bytes(op, known["rule"], mesh) == inner_bytes(op, known["own-experts"], mesh) == 0
    held = inner_bytes(op, known[TRAVELLING], mesh)
    # What came, and its two packed copies; the rest is indices, weights and marks.
    assert 3 * whole < held < 4 * whole
    split = ["[expert = S(0)]"] * 5
    pins = f"pin op {id_of(op)} = {', '.join(split)} -> {split[0]}"
    AutoShardPass(mesh=str(mesh), cluster="8xH100", pins=pins).apply(context(), module)
    report = module.attributes["irc.plan_cost"]
    assert isinstance(report, StringAttr)
    told = json.loads(report.data)
    assert TRAVELLING in next(row["chosen"] for row in told["ops"] if row["id"] == id_of(op))
    assert told["bytes_held"] > held
    assert ClusterCost(find_cluster("8xH100"), mesh).op_seconds(op, known[TRAVELLING]) > 0
