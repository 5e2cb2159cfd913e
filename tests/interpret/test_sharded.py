"""A sharded program on all virtual ranks against the same program in torch."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ContractOp, PointwiseOp, ReduceOp
from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.sharded import run_sharded

MESH = Mesh.parse("data=2,tensor=2")
P = Partial()


def kind(shape: tuple[int, ...], data: AxisPlacement, tensor: AxisPlacement) -> TensorType:
    return TensorType.of(shape, "f32", Placement.of(data=data, tensor=tensor))


def megatron(*, bias_before_the_sum: bool = False) -> ModuleOp:
    """Column-parallel then row-parallel matmul, rows over data, in a block that is called twice."""
    hidden = kind((6, 8), Split(0), Split(1))
    partial, whole = kind((6, 4), Split(0), P), kind((6, 4), Split(0), B)
    columns, rows = kind((4, 8), B, Split(1)), kind((8, 4), B, Split(0))
    bias = kind((4,), B, B)
    block = Block(arg_types=[whole, columns, rows, bias])
    x, up, down, shift = block.args
    b = FlowBuilder(block, prefix="b")
    h = b.op(ContractOp, [x, up], result=hidden, spec="mk,kn->mn")
    h = b.op(PointwiseOp, [h], result=hidden, fn="gelu")
    y = b.op(ContractOp, [h, down], result=partial, spec="mk,kn->mn")
    if bias_before_the_sum:
        y = b.op(PointwiseOp, [y, shift], result=partial, fn="add")
        y = b.op(BoxingOp, [y], result=whole)
    else:
        y = b.op(BoxingOp, [y], result=whole)
        y = b.op(PointwiseOp, [y, shift], result=whole, fn="add")
    layer = finish_function("layer", block, [y])

    block = Block(arg_types=[kind((6, 4), B, B), columns, rows, bias])
    b = FlowBuilder(block)
    x = b.op(BoxingOp, [block.args[0]], result=whole)
    for _ in range(2):
        (x,) = b.call("layer", [x, *block.args[1:]], [whole])
    total = b.op(ReduceOp, [x], result=kind((4,), P, B), fn="sum", dims=(0,), keep_dims=False)
    return ModuleOp([finish_function("forward", block, [x, total]), layer])


def inputs() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=rng) for s in ((6, 4), (4, 8), (8, 4), (4,))]


def reference(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    for _ in range(2):
        x = torch.nn.functional.gelu(x @ up) @ down + bias
    return x


def test_ranks_together_compute_the_program() -> None:
    doubles = [t.double() for t in inputs()]
    output, total = run_sharded(megatron(), inputs(), MESH, dtype=torch.float64)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, reference(*doubles))
    torch.testing.assert_close(total, reference(*doubles).sum(0))


def test_the_trace_gives_logical_values_by_path() -> None:
    seen: dict[str, tuple[int, ...]] = {}
    run_sharded(
        megatron(),
        inputs(),
        MESH,
        trace=lambda name, i, value, op: seen.update({name: tuple(value.shape)}),
    )
    assert seen["n1/b0"] == (6, 8)
    assert seen["n2/b4"] == (6, 4)
    assert seen["n3"] == (4,)


def test_a_bias_on_a_partial_sum_is_refused_with_its_place() -> None:
    with pytest.raises(IrcError) as caught:
        run_sharded(megatron(bias_before_the_sum=True), inputs(), MESH)
    assert caught.value.code == "no-signature"
    assert "flow.pointwise (b3)" in caught.value.message
    assert "tensor = P(sum)" in caught.value.message
