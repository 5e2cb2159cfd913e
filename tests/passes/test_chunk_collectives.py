"""Collectives and products in pieces: the same numbers on every rank, and pieces that overlap."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, entry, finish_function
from irc.dialects.comm import AllGatherOp, CollectiveOp, PendingType, ReduceScatterOp, WaitOp
from irc.dialects.dominance import verify_module
from irc.dialects.flow import ContractOp, PointwiseOp, id_of, tensor
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
    ops = list(entry(module).body.block.ops)
    assert len([op for op in ops if isinstance(op, CollectiveOp)]) == 2 * degree
    ids = [id_of(op) for op in ops if id_of(op)]
    assert len(set(ids)) == len(ids)


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


def waits(module: ModuleOp) -> list[str]:
    """Ids of the gather and of the scatter."""
    return [id_of(op) for op in entry(module).body.block.ops if isinstance(op, WaitOp)]


def test_only_some() -> None:
    module = mlp()
    gather, _ = waits(module)
    run_passes(module, [ChunkCollectivesPass(degree=2, only=gather)])
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


@pytest.mark.parametrize(
    ("degree", "because"), [(0, "nothing is cut by price"), (3, "3 equal pieces")]
)
def test_what_was_to_be_cut_and_stays_whole_says_why(degree: int, because: str) -> None:
    module = mlp()
    with pytest.raises(IrcError, match="stays whole") as error:
        run_passes(module, [ChunkCollectivesPass(only=waits(module)[0], degree=degree)])
    assert error.value.code == "option-value" and because in error.value.because[0]


def test_a_name_that_nothing_has_is_no_option() -> None:
    module = mlp()
    name = waits(module)[0]
    with pytest.raises(IrcError, match=f"no collective '{name}x'") as error:
        run_passes(module, [ChunkCollectivesPass(degree=2, only=f"{name}x")])
    assert name in error.value.help
    # Another function of the program may have it.
    text = str(module)
    run_passes(module, [ChunkCollectivesPass(degree=2, only=f"{name}x", is_part=True)])
    assert str(module) == text


def test_a_second_run_adds_to_what_is_told() -> None:
    module = mlp()
    gather, scatter = waits(module)
    run_passes(module, [ChunkCollectivesPass(degree=2, only=each) for each in (scatter, gather)])
    told = module.attributes[CHUNKS]
    assert isinstance(told, ArrayAttr) and len(told.data) == 2
    with pytest.raises(IrcError, match="in 2 pieces, not 4"):
        run_passes(module, [ChunkCollectivesPass(degree=4, only=gather)])


def test_what_begins_with_others_stays_whole() -> None:
    module = mlp()
    for op in entry(module).body.block.ops:
        if isinstance(op, CollectiveOp):
            count = {name: IntegerAttr(1, i64) for name in ("bucket_size", "bucket_bytes")}
            op.properties |= {"bucket": StringAttr(id_of(op)), **count}
    text = str(module)
    run_passes(module, [ChunkCollectivesPass(degree=2)])
    assert str(module) == text


def test_a_wait_far_behind_its_start_is_priced_with_it() -> None:
    module = mlp((1, 2048), width=4096, saves=False, dtype="bf16")
    block = entry(module).body.block
    idle = next(op for op in block.ops if isinstance(op, PointwiseOp))
    wait = next(op for op in block.ops if isinstance(op, WaitOp))
    block.insert_ops_before([idle.clone() for _ in range(510)], wait)
    run_passes(module, [ChunkCollectivesPass(cluster=CLUSTER)])
    verify_module(module)


@pytest.mark.parametrize(("sums", "pieces"), [(False, 1), (True, 2)])
def test_many_ops_before_a_scatter(sums: bool, pieces: int) -> None:
    """A product 400 ops away is out of sight, and one beside each op is near all the way."""
    block = Block(arg_types=[TensorType.of((4, 8, 16)), TensorType.of((16, 16))])
    x, w = block.args
    b = FlowBuilder(block, "n")
    y = b.op(ContractOp, [x, w], spec="abk,nk->abn")
    for _ in range(400):
        beside = [b.op(ContractOp, [x, w], spec="abk,nk->abn")] if sums else []
        y = b.pointwise("add" if sums else "sin", y, *beside)
    module = ModuleOp([finish_function("forward", block, [collective(b, ReduceScatterOp, y, 0)])])
    module.attributes["irc.mesh"] = StringAttr("tensor=4")
    run_passes(module, [ChunkCollectivesPass(degree=2)])
    verify_module(module)
    starts = [op for op in entry(module).body.block.ops if isinstance(op, CollectiveOp)]
    assert len(starts) == pieces


def named_mlp() -> ModuleOp:
    """Return the same with the weights as parameters of modules."""
    module = mlp()
    names = [("input", "x"), ("parameter", "l.0.up.weight"), ("parameter", "l.0.down.weight")]
    attrs = [argument_attrs(role, name) for role, name in names]
    entry(module).properties["arg_attrs"] = ArrayAttr(attrs)
    return module


@pytest.mark.parametrize(
    ("pins", "degrees"),
    [
        ("chunk l.*.up = 4", {"comm.all_gather": 4}),
        ("chunk l.0 = 2", {"comm.all_gather": 2, "comm.reduce_scatter": 2}),
        ("chunk l.0 = 4; chunk *.down = 1", {"comm.all_gather": 4}),
    ],
)
def test_modules_say_into_how_many_pieces(pins: str, degrees: dict[str, int]) -> None:
    module = named_mlp()
    run_passes(module, [ChunkCollectivesPass(pins=pins)])
    said = str(module.attributes[CHUNKS])
    for op, degree in degrees.items():
        assert f'op = "{op}", axis = "tensor", degree = {degree} : i64' in said
    assert said.count("degree") == len(degrees)


@pytest.mark.parametrize(
    ("pins", "code", "says"),
    [
        ("chunk l.0.up = 3", "chunk-whole", "stays whole"),
        ("chunk l.1 = 2", "input-mismatch", "l.0.up.weight"),
        ("chunk l.0 = 0", "constraint-syntax", "0 pieces"),
    ],
)
def test_pieces_that_cannot_be(pins: str, code: str, says: str) -> None:
    with pytest.raises(IrcError) as raised:
        run_passes(named_mlp(), [ChunkCollectivesPass(pins=pins)])
    assert raised.value.code == code
    assert says in str(raised.value)
