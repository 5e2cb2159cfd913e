"""Work that can be counted by hand."""

from __future__ import annotations

from xdsl.ir import Block

from irc.dialects.flow import ContractOp, ExternOp, FlowOp, PointwiseOp, ReduceOp, TransposeOp
from irc.dialects.indexing import TakeOp
from irc.dialects.placement import Mesh
from irc.dialects.searches import SortOp
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp
from irc.ops.linear_loss import BACKWARD, arguments
from irc.ops.work import bytes_moved, flops, local_bytes, local_flops
from irc.sharding.signatures import signatures

MESH = Mesh.parse("data=2,tensor=4")


def build(cls: type[FlowOp], *shapes: tuple[int, ...], **attrs: object) -> FlowOp:
    kinds = [(shape, "f32") for shape in shapes]
    block = Block(arg_types=[TensorType.of(*o) for o in kinds])
    op = cls.make(list(block.args), [TensorType.of(*r) for r in cls.infer(attrs, kinds)], **attrs)
    block.add_op(op)
    return op


def test_work_of_a_matmul_is_two_for_each_product() -> None:
    op = build(ContractOp, (8, 16), (16, 12), spec="mk,kn->mn")
    assert flops(op) == 2 * 8 * 16 * 12
    assert bytes_moved(op) == 4 * (8 * 16 + 16 * 12 + 8 * 12)


def test_a_split_divides_the_work_and_what_is_moved() -> None:
    op = build(ContractOp, (8, 16), (16, 12), spec="mk,kn->mn")
    by = {s.splits: s for s in signatures(op, MESH)}
    assert local_flops(op, by["", ""], MESH) == flops(op)
    assert local_flops(op, by["m", "k"], MESH) == flops(op) // 8
    assert local_flops(op, by["k", "k"], MESH) == flops(op) // 8
    assert local_bytes(op, by["m", "k"], MESH) == 4 * (4 * 4 + 4 * 12 + 4 * 12)


def test_a_split_that_a_strategy_makes_divides_the_work_as_well() -> None:
    """Ranks with some rows of a loss have parts of the gradient of its weight."""
    kinds = [((32,), "f32"), ((32, 8), "bf16"), ((40, 8), "bf16"), ((32,), "i64"), ((32,), "f32")]
    block = Block(arg_types=[TensorType.of(*each) for each in kinds])
    call = arguments(BACKWARD, ("g", "h", "w", "index", "sums"))
    results = [TensorType.of(*each) for each in kinds[1:3]]
    op = ExternOp.make(list(block.args), results, target=BACKWARD, arguments=call)
    block.add_op(op)
    mesh = Mesh.parse("data=4")
    rows = next(s for s in signatures(op, mesh) if s.splits == ("<rule rows>",))
    assert local_flops(op, rows, mesh) == flops(op) // 4


def test_the_busiest_rank_counts_where_shards_are_uneven() -> None:
    op = build(PointwiseOp, (7, 3), fn="exp")
    mesh = Mesh.parse("x=2")
    split = next(s for s in signatures(op, mesh, uneven=True) if s.splits == ("a",))
    assert flops(op) == 10 * 7 * 3
    assert local_flops(op, split, mesh) == 10 * 4 * 3
    assert local_bytes(op, split, mesh) == 4 * 2 * 4 * 3


def test_work_of_a_convolution_is_that_of_its_windows() -> None:
    window = {"strides": (1, 1), "low": (0, 0), "high": (0, 0), "dilations": (1, 1)}
    op = build(ConvolutionOp, (2, 6, 7, 5), (8, 3, 3, 3), groups=2, **window)
    assert flops(op) == 2 * (2 * 8 * 5 * 3) * (3 * 3 * 3)


def test_work_of_attention_is_both_products_and_the_softmax() -> None:
    op = build(AttentionOp, (2, 8, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3), is_causal=False, scale=1.0)
    scores = 2 * 8 * 5 * 7
    assert flops(op) == scores * (2 * 4 + 2 * 3 + 14)
    heads = next(s for s in signatures(op, Mesh.parse("x=2")) if s.splits == ("g",))
    assert local_flops(op, heads, Mesh.parse("x=2")) == flops(op) // 2


def test_views_move_nothing_and_lookups_read_what_they_give() -> None:
    assert bytes_moved(build(TransposeOp, (8, 4), perm=(1, 0))) == 0
    assert flops(build(TransposeOp, (8, 4), perm=(1, 0))) == 0
    block = Block(arg_types=[TensorType.of((1000, 4)), TensorType.of((5,), "i64")])
    op = TakeOp.make(list(block.args), [TensorType.of((5, 4))], dim=0)
    assert bytes_moved(op) == 2 * 4 * 5 * 4 + 8 * 5


def test_reductions_and_sorts_count_their_input() -> None:
    assert flops(build(ReduceOp, (8, 6), fn="sum", dims=(1,), keep_dims=False)) == 48
    assert flops(build(SortOp, (8, 6), dim=1, descending=False)) == 48 * 3
