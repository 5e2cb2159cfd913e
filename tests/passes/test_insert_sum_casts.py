"""`insert-sum-casts`: ranks add up gradients in the dtype that is asked for."""

# pyright: basic
from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from irc.calls.step_plan import captured_step
from irc.dialects.builder import entry, results
from irc.dialects.comm import AllReduceOp, ReduceScatterOp
from irc.dialects.flow import PointwiseOp, tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.dialects.types import TensorType
from irc.interpret.spmd import run_spmd
from irc.pipeline import Options, run_passes
from irc.pipeline.default import default_pipeline
from irc.plugin import parse_passes
from irc.train import training_program
from irc.training.precision import Precision
from irc.training.recipe import recipe_of
from tests.calls.test_step import net

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(384, 7, generator=DRAW), torch.randint(0, 5, (384,), generator=DRAW)
"""So many that activations are not gathered instead."""
LR = torch.tensor(1.0, dtype=torch.float64)
SHARD = 'auto-shard{mesh="data=2" cluster=demo-gpus report=false layout=ddp}'


@pytest.mark.parametrize(
    ("compute", "sums", "dtype"),
    [("bfloat16", "f32", "f32"), (None, "", "f32"), (None, "bf16", "bf16"), (None, "f16", "f16")],
)
def test_sums_are_rounded_as_they_are_asked_for(compute: str | None, sums: str, dtype: str) -> None:
    """The new weight is the gradient, negated: it was zero, and the rate is 1."""
    module = net()
    torch.nn.init.zeros_(module[2].weight)
    recipe = replace(recipe_of("sgd"), precision=Precision(compute=compute))
    captured, _ = captured_step(module, F.cross_entropy, recipe, (X, Y), {})
    program = training_program(captured.program, optimizer=recipe.optimizer)
    inputs = program.bind(dict(zip(program.input_names, (X, Y, LR), strict=True)))
    casts = f"insert-sum-casts{{dtype={sums}}}," if sums else ""
    run_passes(program.module, parse_passes(f"canonicalize,{SHARD},{casts}lower-boxing"))
    sums_of = AllReduceOp | ReduceScatterOp
    summed = [tensor(op.operands[0]) for op in program.module.walk() if isinstance(op, sums_of)]
    assert {kind.dtype for kind in summed if kind.ndim} == {dtype}
    outputs = run_spmd(program.module, inputs, Mesh.parse("data=2"))
    named = {n: v for (_, n), v in zip(results(entry(program.module)), outputs, strict=True)}
    with torch.autocast("cpu", torch.bfloat16, enabled=compute is not None):
        F.cross_entropy(module(X), Y).backward()
    gradient = -named["2.weight"]
    torch.testing.assert_close(gradient, module[2].weight.grad, rtol=1e-2, atol=1e-3)
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype, torch.bfloat16)
    assert torch.equal(gradient.to(half).float(), gradient) == (dtype != "f32")


def test_the_pipeline_has_it_where_it_is_asked_for() -> None:
    mesh = Mesh.parse("data=2")
    names = [each.name for each in default_pipeline(Options(mesh=mesh, sums="f32"))]
    assert names[names.index("auto-shard") + 1] == "insert-sum-casts"
    assert "insert-sum-casts" not in [e.name for e in default_pipeline(Options(mesh=mesh))]
    assert "insert-sum-casts" not in [e.name for e in default_pipeline(Options(sums="f32"))]


@pytest.mark.parametrize(
    ("fn", "dtype", "says"),
    [
        ("cast", "f64", ""),
        ("cast", "i32", "from float to float"),
        ("neg", "f32", "is of a cast, not of neg"),
    ],
)
def test_only_casts_between_floats_are_apart(fn: str, dtype: str, says: str) -> None:
    x = create_ssa_value(TensorType.of((4,), "f32"))
    op = PointwiseOp.build(
        operands=[[x]],
        result_types=[[TensorType.of((4,), dtype)]],
        properties={"fn": StringAttr(fn), "apart": IntegerAttr(1, 1)},
        attributes={"loc": StringAttr("m.py:1")},
    )
    with pytest.raises(VerifyException, match=says) if says else nullcontext():
        op.verify()


BLOCK = """
builtin.module attributes {irc.mesh = "data=2,tensor=2"} {
func.func @b0(%x: !flow.tensor<[4, 2, 6], bf16, [data = S(0), tensor = S(1)]>,
    %g: !flow.tensor<[4, 2, 8], bf16, [data = S(0), tensor = S(1)]>)
    -> !flow.tensor<[6, 8], bf16, [data = P(sum), tensor = S(0)]> {
  %0 = flow.contract(%x, %g) {spec = "bsi,bso->io", loc = "m.py:3", id = "b0n2.g0",
      phase = "backward", grad = "weight"}
      : (!flow.tensor<[4, 2, 6], bf16, [data = S(0), tensor = S(1)]>,
         !flow.tensor<[4, 2, 8], bf16, [data = S(0), tensor = S(1)]>)
      -> !flow.tensor<[6, 8], bf16, [data = P(sum), tensor = P(sum)]>
  %1 = sbp.boxing(%0) {loc = "m.py:3", id = "b0n2.g0.box0"}
      : (!flow.tensor<[6, 8], bf16, [data = P(sum), tensor = P(sum)]>)
      -> !flow.tensor<[6, 8], bf16, [data = P(sum), tensor = S(0)]>
  func.return %1 : !flow.tensor<[6, 8], bf16, [data = P(sum), tensor = S(0)]>
}
func.func @forward(
    %x: !flow.tensor<[4, 2, 6], bf16, [data = S(0), tensor = S(1)]> {role = "input", name = "x"},
    %g: !flow.tensor<[4, 2, 8], bf16, [data = S(0), tensor = S(1)]> {role = "input", name = "g"})
    -> (!flow.tensor<[6, 8], bf16, [data = B, tensor = S(0)]> {role = "gradient", name = "w"}) {
  %0 = func.call @b0(%x, %g) {loc = "m.py:3", id = "n2"}
      : (!flow.tensor<[4, 2, 6], bf16, [data = S(0), tensor = S(1)]>,
         !flow.tensor<[4, 2, 8], bf16, [data = S(0), tensor = S(1)]>)
      -> !flow.tensor<[6, 8], bf16, [data = P(sum), tensor = S(0)]>
  %1 = sbp.boxing(%0) {loc = "m.py:3", id = "n2.box0"}
      : (!flow.tensor<[6, 8], bf16, [data = P(sum), tensor = S(0)]>)
      -> !flow.tensor<[6, 8], bf16, [data = B, tensor = S(0)]>
  func.return %1 : !flow.tensor<[6, 8], bf16, [data = B, tensor = S(0)]>
}
}
"""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_a_block_adds_up_over_one_axis_alone_is_not_rounded_before_the_other(
    dtype: str,
) -> None:
    """Over one axis a block adds up, over the other its caller: as by a search on two axes."""
    module = load(BLOCK)
    run_passes(module, parse_passes(f"insert-sum-casts{{dtype={dtype}}},lower-boxing"))
    sums = [op for op in module.walk() if isinstance(op, AllReduceOp | ReduceScatterOp)]
    assert [tensor(op.operands[0]).dtype for op in sums] == [dtype] * 2
    casts = [op for op in module.walk() if isinstance(op, PointwiseOp)]
    # Into the dtype of sums, and back behind the last one.
    assert [tensor(op.outputs[0]).dtype for op in casts] == [dtype, "bf16"]
    x, g = (torch.randn(4, 2, size, generator=DRAW).bfloat16() for size in (6, 8))
    (gradient,) = run_spmd(module, [x, g], Mesh.parse("data=2,tensor=2"))
    whole = torch.einsum("bsi,bso->io", x.float(), g.float())
    torch.testing.assert_close(gradient.float(), whole, rtol=1e-2, atol=3e-2)


def test_summands_that_nothing_adds_up_are_rounded_each() -> None:
    """As of gradients that are added up over several batches before ranks do."""
    head, _, _ = BLOCK.partition("func.func @forward")
    module = load(head.replace("@b0", "@forward") + "}")
    run_passes(module, parse_passes("insert-sum-casts{dtype=f32},lower-boxing"))
    casts = [op for op in module.walk() if isinstance(op, PointwiseOp)]
    assert [tensor(op.outputs[0]).dtype for op in casts] == ["f32", "bf16"]
