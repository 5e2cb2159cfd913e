"""Collectives and products in pieces: the same numbers on every rank, and pieces that overlap."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, entry, finish_function
from irc.dialects.comm import AllGatherOp, CollectiveOp, PendingType, ReduceScatterOp, WaitOp
from irc.dialects.dominance import verify_module
from irc.dialects.flow import ContractOp, PointwiseOp, tensor
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.levels import difference, random_inputs
from irc.interpret.spmd import run_spmd
from irc.passes.bucket_collectives import BucketCollectivesPass
from irc.passes.chunk_collectives import ChunkCollectivesPass
from irc.passes.order import OrderPass
from irc.pipeline import run_passes
from irc.sharding.chunks import CHUNKS
from irc.sharding.mesh import mesh_of

CLUSTER = "1x8xH100"


def collective(b: FlowBuilder, cls: type[CollectiveOp], value: SSAValue, dim: int) -> SSAValue:
    """Append a collective over the four ranks of ``tensor``."""
    shape = list(tensor(value).static_shape())
    shape[dim] = shape[dim] * 4 if cls is AllGatherOp else shape[dim] // 4
    kind = TensorType.of(shape, tensor(value).dtype)
    fn = {"fn": "sum"} if cls is ReduceScatterOp else {}
    (pending,) = b.ops(cls, [value], results=[PendingType(kind)], axis="tensor", dim=dim, **fn)
    return b.ops(WaitOp, [pending], results=[kind])[0]


def mlp(
    rows: tuple[int, int] = (4, 8), dim: int = 0, width: int = 16, *, saves: bool = True,
    dtype: str = "f32",
) -> ModuleOp:  # fmt: skip
    """Return what a rank runs of ``down(gelu(up(x)))``, rows of ``x`` divided along a dim."""
    kinds = [(*rows, width), (width, width), (width, width)]
    block = Block(arg_types=[TensorType.of(shape, dtype) for shape in kinds])
    x, up, down = block.args
    b = FlowBuilder(block, "n")
    b.loc = "m.py:1"
    whole = collective(b, AllGatherOp, b.pointwise("sin", x), dim)
    inner = b.pointwise("gelu", b.op(ContractOp, [whole, up], spec="abk,nk->abn"))
    y = b.op(ContractOp, [inner, down], spec="abk,nk->abn")
    result = collective(b, ReduceScatterOp, y, dim)
    saved = [whole, b.op(ContractOp, [whole, inner], spec="abk,abn->kn")] if saves else []
    module = ModuleOp([finish_function("forward", block, [result, *saved])])
    module.attributes["irc.mesh"] = StringAttr("tensor=4")
    verify_module(module)
    return module


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rows", [(4, 8), (1, 16), (16, 1)])
def test_pieces_are_the_same_numbers(
    rows: tuple[int, int], dim: int, degree: int, saves: bool
) -> None:
    module = mlp(rows, dim, saves=saves)
    inputs, mesh = random_inputs(module), mesh_of(module)
    before = run_spmd(module, inputs, mesh, dtype=torch.float64)
    run_passes(module, [ChunkCollectivesPass(degree=degree), OrderPass(cluster=CLUSTER)])
    verify_module(module)
    after = run_spmd(module, inputs, mesh, dtype=torch.float64)
    for old, new in zip(before, after, strict=True):
        assert difference(new, old) < 1e-12
    starts = [op for op in entry(module).body.block.ops if isinstance(op, CollectiveOp)]
    assert len(starts) == 2 * degree


def test_products_between_a_gather_and_a_scatter_stay_apart() -> None:
    """Nothing is joined before the scattered rows, where nothing else reads what is between."""
    module = mlp(saves=False)
    run_passes(module, [ChunkCollectivesPass(degree=2)])
    ops = list(entry(module).body.block.ops)
    assert [op.name for op in ops].count("flow.concat") == 1
    assert len([op for op in ops if isinstance(op, PointwiseOp) and op.plain["fn"] == "gelu"]) == 2


def test_what_does_not_divide_stays_whole() -> None:
    module = mlp((3, 5), width=7)
    text = str(module)
    run_passes(module, [ChunkCollectivesPass(degree=2)])
    assert str(module) == text


def test_only_some() -> None:
    module = mlp()
    name = next(op for op in entry(module).body.block.ops if isinstance(op, WaitOp))
    chosen = name.attributes["id"]
    assert isinstance(chosen, StringAttr)
    run_passes(module, [ChunkCollectivesPass(degree=2, only=chosen.data)])
    starts = [op for op in entry(module).body.block.ops if isinstance(op, CollectiveOp)]
    assert [op.name for op in starts] == ["comm.all_gather"] * 2 + ["comm.reduce_scatter"]


def test_a_price_decides() -> None:
    """Long collectives beside long products are cut, short ones are not, pieces not joined."""
    short, long = mlp(), mlp((1, 2048), width=4096, saves=False, dtype="bf16")
    for module in (short, long):
        run_passes(module, [ChunkCollectivesPass(cluster=CLUSTER)])
    assert CHUNKS not in short.attributes
    assert CHUNKS in long.attributes
    text = str(long)
    run_passes(long, [BucketCollectivesPass(bytes=1 << 30)])
    assert str(long) == text


@pytest.mark.parametrize("degree", [-2, 1])
def test_one_piece_is_no_cut(degree: int) -> None:
    with pytest.raises(IrcError, match="2 pieces or more"):
        run_passes(mlp(), [ChunkCollectivesPass(degree=degree)])
