"""Every way to shard a linear layer's cross-entropy: rows, classes, both; it is the whole op's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.ir import SSAValue

from irc.dialects import flow
from irc.dialects.builder import arguments as named_arguments
from irc.dialects.builder import entry
from irc.dialects.flow import ExternOp
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.kernels import linear_loss
from irc.ops.linear_loss import (
    BACKWARD,
    BOTH,
    LOSS,
    POSITIONS,
    SPLIT_CLASSES,
    SPLIT_CLASSES_BACK,
    arguments,
    result_roles,
)
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.passes.lower_externs import LowerExternsPass
from irc.sharding.collectives import check_collectives
from irc.sharding.local_ops import Local
from irc.sharding.signatures import signatures
from irc.train import training_program
from tests.sharding.test_property import Case, check_all

N, V, D = 12, 8, 5
ROW, H, W, INDEX, BIAS = (((N,), "f32"), ((N, D), "f32"), ((V, D), "f32"), ((N,), "i64"),
                          ((V,), "f32"))  # fmt: skip


def case(target: str, *, bias: bool, smooth: bool = False) -> Case:
    """A call of one of the ops; smooth: with a gradient of the log-sums."""
    left = {"bias": bias, "gs": smooth and target != LOSS}
    roles = [role for role in POSITIONS[target] if left.get(role, True)]
    kinds = {"h": H, "dh": H, "w": W, "dw": W, "index": INDEX, "bias": BIAS, "db": BIAS}
    call = {"target": target, "arguments": arguments(target, roles)}
    operand_kinds, result_kinds = (tuple(kinds.get(role, ROW) for role in each)
                   for each in (roles, result_roles(target, roles)))  # fmt: skip
    return Case(flow.ExternOp, operand_kinds, call, result_kinds, below=V)


@pytest.mark.parametrize(("bias", "smooth"), [(False, False), (True, True)])
@pytest.mark.parametrize("target", [LOSS, BACKWARD, BOTH])
@pytest.mark.parametrize("mesh", ["data=2", "data=2,tensor=4"])
def test_shards_are_the_whole(target: str, bias: bool, smooth: bool, mesh: str) -> None:
    check_all([case(target, bias=bias, smooth=smooth)], Mesh.parse(mesh), uneven=False)


@pytest.mark.parametrize(
    ("target", "name"), [(LOSS, SPLIT_CLASSES), (BACKWARD, SPLIT_CLASSES_BACK)]
)
def test_a_rank_that_forgets_its_first_class_is_caught(
    target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, op = Mesh.parse("data=2"), case(target, bias=False)
    assert any(name in s.strategy for s in signatures(op.build(), mesh))

    def nowhere(self: Local, logical: Any, placement: Any, dim: int, dtype: str) -> SSAValue:
        return self.scalar(0, dtype)

    monkeypatch.setattr(Local, "offset", nowhere)
    with pytest.raises(AssertionError, match=r"flow\.extern"):
        check_all([op], mesh, uneven=False)


class Head(nn.Module):
    """A layer, a head and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.inner(x)).view(-1, 16), labels.view(-1))


@pytest.mark.parametrize(
    ("pins", "split"),
    [
        ("x = [data = S(0)]; head.weight = [data = B, tensor = B]", "n"),
        ("head.weight = [tensor = S(0)]", "v"),
    ],
)
def test_a_step_on_a_mesh_streams_rows_and_classes(
    pins: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_loss, "MIN_BYTES", 1)
    x = torch.randn(4, 160, 8)
    labels = torch.randint(0, 16, (4, 160))
    labels[0, :9] = -100
    program = training_program(capture(Head(), (x, labels)).program, optimizer=None, stream=True)
    module, mesh = program.module, Mesh.parse("data=2,tensor=2")
    inputs = program.bind(dict(zip(program.input_names, (x, labels), strict=True)))
    want = run_function(module, inputs, dtype=torch.float64)
    CanonicalizePass().apply(context(), module)
    AutoShardPass(mesh=str(mesh), cluster="demo-gpus", pins=pins).apply(context(), module)
    LowerBoxingPass().apply(context(), module)
    weights = [value for _, name, value in named_arguments(entry(module)) if name == "head.weight"]
    assert flow.tensor(weights[0]).shape == ((16, 8) if split == "n" else (8, 8))
    assert sum(isinstance(op, ExternOp) for op in module.walk()) == 2
    LowerExternsPass().apply(context(), module)
    check_collectives(module, mesh)
    assert not any(isinstance(op, ExternOp) for op in module.walk())
    for mine, theirs in zip(run_spmd(module, inputs, mesh, dtype=torch.float64), want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
