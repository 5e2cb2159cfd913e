"""Slices of a batch in turns: the same numbers, begun so that they overlap, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

import irc
from irc.dialects.builder import FlowBuilder, argument_attrs, entry, finish_function
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    CollectiveOp,
    LocalChunkOp,
    PendingType,
    WaitOp,
)
from irc.dialects.dominance import verify_module
from irc.dialects.flow import ContractOp, id_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.interpret.levels import difference, random_inputs
from irc.interpret.spmd import run_spmd
from irc.passes.order import OrderPass
from irc.passes.slice_batch import SliceBatchPass
from irc.pipeline import Options, run_passes
from irc.pipeline.default import passes_by_part
from irc.sharding.batch_slices import SLICES
from irc.sharding.mesh import mesh_of
from irc.train import training_program
from tests.models.gpt import GPT, GPTConfig

CLUSTER = "1x8xH100"
TWO = Mesh.parse("tensor=2")


def spmd(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[ModuleOp, list[torch.Tensor]]:
    """Return what a rank runs of a loss and its gradients, and arguments."""
    program = training_program(capture(model, inputs).program, optimizer=None)
    names = {name: value.detach().double() for name, value in model.named_parameters()}
    tokens = {"tokens": inputs[0], "targets": inputs[-1]}
    drawn = random_inputs(program.module, fixed={**names, **tokens})
    options = Options(mesh=TWO, cluster=CLUSTER, layout="tp")
    parts = passes_by_part(options)
    passes = [*parts.stage, *parts.function]
    last = [each.name for each in passes].index("slice-batch")
    run_passes(program.module, passes[:last])
    return program.module, drawn


def test_a_step_in_slices_gives_the_same_loss_and_gradients() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=1, hidden=8, heads=2, vocab=24, block=4))
    tokens = torch.randint(0, 24, (4, 4))
    module, inputs = spmd(model, (tokens, tokens))
    before = run_spmd(module, inputs, TWO, dtype=torch.float64)
    run_passes(module, [SliceBatchPass(ways=2), OrderPass(cluster=CLUSTER)])
    verify_module(module)
    after = run_spmd(module, inputs, TWO, dtype=torch.float64)
    assert len(before) == len(after) > 10
    for old, new in zip(before, after, strict=True):
        assert difference(new, old) < 1e-10
    ids = [id_of(op) for op in entry(module).body.block.ops if id_of(op)]
    assert len(set(ids)) == len(ids)
    assert any(".slice1" in id_of(op) for op in module.walk() if isinstance(op, CollectiveOp))


def mlp(rows: int, width: int, dtype: str = "bf16", layers: int = 2, dim: int = -1) -> ModuleOp:
    """Return products with a collective behind each: all-reduces, or gathers along a dim."""
    kinds = [(rows, width), *[(width, width)] * layers]
    block = Block(arg_types=[TensorType.of(shape, dtype) for shape in kinds])
    b = FlowBuilder(block, "n")
    b.loc = "m.py:1"
    value, *weights = block.args
    for weight in weights:
        value = b.op(ContractOp, [value, weight], spec="bk,nk->bn")
        value = _moved(b, value, dim)
    func = finish_function("forward", block, [value])
    attrs = [argument_attrs("input" if i == 0 else "parameter", f"a{i}") for i in range(len(kinds))]
    func.arg_attrs = ArrayAttr(attrs)
    module = ModuleOp([func])
    module.attributes["irc.mesh"] = StringAttr("tensor=4")
    verify_module(module)
    return module


def _moved(b: FlowBuilder, value: SSAValue, dim: int) -> SSAValue:
    kind = tensor(value)
    assert isinstance(kind, TensorType)
    if dim < 0:
        (pending,) = b.ops(AllReduceOp, [value], results=[PendingType(kind)], axis="tensor",
                           fn="sum")  # fmt: skip
        return b.ops(WaitOp, [pending], results=[kind])[0]
    shape = [size * (4 if place == dim else 1) for place, size in enumerate(kind.static_shape())]
    whole = TensorType.of(shape, kind.dtype)
    (pending,) = b.ops(AllGatherOp, [value], results=[PendingType(whole)], axis="tensor", dim=dim)
    return b.ops(WaitOp, [pending], results=[whole])[0]


def test_a_slice_is_computed_while_the_other_is_sent() -> None:
    module = mlp(4, 8)
    run_passes(module, [SliceBatchPass(ways=2)])
    kinds = CollectiveOp | WaitOp | ContractOp
    ops = [op for op in entry(module).body.block.ops if isinstance(op, kinds)]
    words = [f"{op.name.partition('.')[2]} {id_of(op)[-1]}" for op in ops]
    begin = [f"{name} {half}" for half in (0, 1) for name in ("contract", "all_reduce")]
    go_on = [f"{name} {half}" for half in (0, 1) for name in ("wait", "contract", "all_reduce")]
    assert words == [*begin, *go_on, "wait 0", "wait 1"]


@pytest.mark.parametrize(("dim", "ways"), [(-1, 2), (-1, 4), (1, 2), (0, 2)])
def test_collectives_of_slices_give_the_same_numbers(dim: int, ways: int) -> None:
    module = mlp(8, 4, dim=dim, layers=1)
    inputs, mesh = random_inputs(module), mesh_of(module)
    before = run_spmd(module, inputs, mesh, dtype=torch.float64)
    run_passes(module, [SliceBatchPass(ways=ways)])
    after = run_spmd(module, inputs, mesh, dtype=torch.float64)
    assert difference(after[0], before[0]) < 1e-12


def test_a_price_decides() -> None:
    """Long collectives behind long products are hidden; short ones cost more in halves."""
    short, long = mlp(8, 16), mlp(8192, 8192, layers=4)
    for module in (short, long):
        run_passes(module, [SliceBatchPass(cluster=CLUSTER)])
    assert SLICES not in short.attributes
    assert SLICES in long.attributes
    here = mlp(8192, 8192, layers=4)
    run_passes(here, [SliceBatchPass()])
    assert SLICES not in here.attributes


@pytest.mark.parametrize(
    ("module", "ways", "because"),
    [
        (mlp(4, 8), 1, "2 slices or more"),
        (mlp(5, 8), 2, "'a0' has 5 samples on a rank"),
        (mlp(4, 8, layers=0), 2, "no collective moves"),
    ],
)
def test_what_cannot_be_sliced_says_why(module: ModuleOp, ways: int, because: str) -> None:
    with pytest.raises(IrcError, match=because) as error:
        run_passes(module, [SliceBatchPass(ways=ways)])
    assert error.value.code == "option-value"


def test_a_function_of_micro_batches_stays_whole() -> None:
    module = mlp(8192, 8192, layers=4)
    run_passes(module, [SliceBatchPass(cluster=CLUSTER, is_part=True)])
    assert SLICES not in module.attributes
    with pytest.raises(IrcError, match="micro-batches"):
        run_passes(module, [SliceBatchPass(ways=2, is_part=True)])


class Normalised(nn.Module):
    """A batch norm between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x))).square().mean()


class Summed(nn.Module):
    """Sums along the batch between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).cumsum(0)).square().mean()


@pytest.mark.parametrize(
    ("model", "because"), [(Normalised, "batch norm"), (Summed, "across the samples")]
)
def test_what_computes_across_samples_keeps_the_batch_whole(
    model: type[nn.Module], because: str
) -> None:
    module, _ = spmd(model(), (torch.randn(4, 8),))
    with pytest.raises(IrcError, match="wait for each other") as error:
        run_passes(module, [SliceBatchPass(ways=2)])
    assert because in error.value.because[0]
    assert "test_slice_batch.py" in str(error.value.where)
    module, _ = spmd(model(), (torch.randn(4, 8),))
    run_passes(module, [SliceBatchPass(cluster=CLUSTER)])
    assert SLICES not in module.attributes


def test_a_step_of_stages_says_why_it_is_not_sliced(tmp_path: Path) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x).relu()).square().mean()

    with pytest.raises(IrcError, match="a step in micro-batches is not sliced further") as error:
        irc.export_plan(
            Loss(), (torch.randn(4, 8),), optimizer="sgd", mesh="pipe=2", micro_batches=2,
            passes=["no-slice-batch", "slice-batch{ways=2}"], out=tmp_path / "plan",
        )  # fmt: skip
    assert error.value.code == "option-value"


def test_a_rank_takes_its_part_of_a_batch_before_it_is_sliced() -> None:
    # A slice of all samples has some of each rank's, which lie apart: that was a copy of each half.
    block = Block(arg_types=[TensorType.of(shape, "f64") for shape in ((8, 4), (4, 4))])
    b = FlowBuilder(block, "n")
    b.loc = "m.py:1"
    (own,) = b.ops(LocalChunkOp, [block.args[0]], results=[TensorType.of((2, 4), "f64")],
                   axis="tensor", dim=0)  # fmt: skip
    value = b.op(ContractOp, [own, block.args[1]], spec="bk,nk->bn")
    func = finish_function("forward", block, [_moved(b, value, 0)])
    func.arg_attrs = ArrayAttr([argument_attrs("input", "x"), argument_attrs("parameter", "w")])
    module = ModuleOp([func], {"irc.mesh": StringAttr("tensor=4")})
    inputs, mesh = random_inputs(module), mesh_of(module)
    before = run_spmd(module, inputs, mesh, dtype=torch.float64)
    run_passes(module, [SliceBatchPass(ways=2)])
    after = run_spmd(module, inputs, mesh, dtype=torch.float64)
    assert difference(after[0], before[0]) == 0
    names = [op.name for op in entry(module).body.block.ops]
    assert names.count("comm.local_chunk") == 1
    assert names.count("flow.slice") == names.count("comm.all_gather") == 2
