"""Grouped matmuls: captured from torch, split by rows, groups, columns and the summed dim."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from xdsl.ir import Block, Operation

from irc import capture
from irc.dialects.builder import entry, results
from irc.dialects.flow import ExternOp, FlowOp, id_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function, run_op
from irc.interpret.sharded import run_ranks
from irc.interpret.spmd import run_spmd
from irc.ops.grouped import GROUPS
from irc.ops.work import flops, local_flops
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.runtime.grouped import grouped_mm
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import signatures

GROUPS_OF = {
    "even": [3, 6, 9, 12],
    "all rows in one group": [0, 0, 12, 12],
    "a group without rows": [5, 5, 7, 12],
    "rows of no group": [1, 4, 6, 7],
}


def grouped(gradients: Sequence[int] = ()) -> FlowOp:
    kinds = [((12, 4), "f32"), ((4, 4, 6), "f32"), ((4,), "i32")]
    call = {
        "target": "aten::_grouped_mm",
        "arguments": json.dumps([[{"operand": i} for i in range(3)], {}]),
    }
    result_kinds = [((12, 6), "f32")]
    if gradients:
        result_kinds, kinds = [kinds[i] for i in gradients], [*kinds, *result_kinds]
        arguments = json.dumps(["flow.extern", call, 3, [0], list(gradients)])
        call = {"target": "irc::vjp", "arguments": arguments}
    block = Block(arg_types=[TensorType.of(*kind) for kind in kinds])
    op = ExternOp.make(block.args, [TensorType.of(*kind) for kind in result_kinds], id="n0", **call)
    block.add_op(op)
    return op


def values(op: FlowOp, offsets: list[int]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(tensor(v).static_shape(), generator=rng, dtype=torch.float64) for v in op.inputs
    ]
    tensors[2] = torch.tensor(offsets, dtype=torch.int32)
    return tensors


@pytest.mark.parametrize("offsets", GROUPS_OF.values(), ids=list(GROUPS_OF))
@pytest.mark.parametrize("mesh", ["expert=4", "data=2,expert=2"])
def test_every_split_gives_the_whole_product(mesh: str, offsets: list[int]) -> None:
    on = Mesh.parse(mesh)
    for op in (grouped(), grouped([0, 1]), grouped([1])):
        whole = values(op, offsets)
        expected = run_op(op, whole, dtype=torch.float64)
        choices = signatures(op, on)
        assert any(GROUPS in name for s in choices for name in s.strategy)
        for signature in choices:
            held = [shard(v, p, on) for v, p in zip(whole, signature.operands, strict=True)]
            outputs = run_ranks(op, signature, on, held, dtype=torch.float64)
            for value, parts, placed in zip(expected, outputs, signature.results, strict=True):
                joined = combine(parts, placed, on, value.shape)
                assert torch.allclose(joined, value, rtol=1e-12, atol=1e-12), signature


@pytest.mark.parametrize("offsets", list(GROUPS_OF.values())[:3], ids=list(GROUPS_OF)[:3])
def test_the_reference_is_torch(offsets: list[int]) -> None:
    torch.manual_seed(0)
    ends = torch.tensor(offsets, dtype=torch.int32)
    # Torch's kernel wants strides of 16 bytes.
    x, weight = torch.randn(12, 8, requires_grad=True), torch.randn(4, 8, 16, requires_grad=True)
    product = grouped_mm(x, weight, ends)
    expected = functional.grouped_mm(x, weight, offs=ends)
    torch.testing.assert_close(product, expected)
    g = torch.randn_like(product)
    ours, theirs = (torch.autograd.grad(y, [x, weight], g) for y in (product, expected))
    torch.testing.assert_close(ours, theirs)
    blocks = torch.randn(4, 3, 8)
    torch.testing.assert_close(grouped_mm(blocks, weight), functional.grouped_mm(blocks, weight))
    sums = torch.randn(16, 12)
    torch.testing.assert_close(
        grouped_mm(sums, x, ends), functional.grouped_mm(sums.contiguous(), x, offs=ends)
    )


def test_work_is_that_of_one_matrix_a_row() -> None:
    op, mesh = grouped(), Mesh.parse("expert=4")
    assert flops(op) == 2 * 12 * 4 * 6
    columns = next(s for s in signatures(op, mesh) if s.splits == ("k",))
    assert local_flops(op, columns, mesh) == flops(op) // 4


class Experts(torch.nn.Module):
    """Rows sorted by expert, as the grouped implementations of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        # While it traces, torch takes grouped matmuls of bfloat16 alone.
        self.up = torch.nn.Parameter(torch.randn(4, 8, 16, dtype=torch.bfloat16))
        self.down = torch.nn.Parameter(torch.randn(4, 16, 8, dtype=torch.bfloat16))

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        order = torch.argsort(expert, stable=True)
        count = (expert[:, None] == torch.arange(4)).sum(0)
        ends = count.cumsum(0).to(torch.int32)
        inner = functional.silu(functional.grouped_mm(x[order], self.up, offs=ends))
        expert_outputs = functional.grouped_mm(inner, self.down, offs=ends)
        return (
            (x + torch.zeros_like(expert_outputs).index_add(0, order, expert_outputs))
            .float()
            .square()
            .mean()
        )


def is_call(op: Operation, target: str) -> bool:
    return isinstance(op, ExternOp) and op.plain["target"] == target


@pytest.mark.parametrize("mesh", ["expert=4", "data=2,expert=2"])
def test_a_module_with_grouped_matmuls_is_split_by_experts(mesh: str) -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(16, 8, dtype=torch.bfloat16)
    expert = torch.tensor([2, 2, 2, 0, 1, 2, 0, 2, 2, 1, 2, 2, 0, 2, 2, 1])
    captured = capture(model, (x, expert))
    assert "aten::_grouped_mm" in captured.externs
    module, wide = captured.program.module, torch.float64
    inputs = [*captured.program.tensors.values(), x, expert]
    (loss,) = run_function(module, inputs, dtype=wide)
    torch.testing.assert_close(loss.float(), model(x, expert), rtol=0.02, atol=0)
    DifferentiatePass(loss=results(entry(module))[0][1]).apply(context(), module)
    CanonicalizePass().apply(context(), module)
    expected = run_function(module, inputs, dtype=wide)
    products = [op for op in module.walk() if is_call(op, "aten::_grouped_mm")]
    placed = "[expert = B], [expert = S(0)], [expert = B] -> [expert = P(sum)]"
    pins = "\n".join(f"pin op *{id_of(op)} = {placed}" for op in products)
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    LowerBoxingPass().apply(context(), module)
    assert sum(is_call(op, "irc::grouped_rows") for op in module.walk()) == len(products) == 2
    outputs = run_spmd(module, inputs, Mesh.parse(mesh), dtype=wide)
    assert len(outputs) == len(expected) == 3
    for value, whole in zip(outputs, expected, strict=True):
        torch.testing.assert_close(value, whole, rtol=1e-9, atol=1e-12)
    model(x, expert).backward()
    for (role, name), value in zip(results(entry(module)), expected, strict=True):
        if role == "gradient":
            g = model.get_parameter(name).grad
            assert g is not None
            assert (value - g).abs().max() < 0.03 * g.abs().max()
