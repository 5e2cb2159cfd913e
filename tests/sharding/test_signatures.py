"""Which signatures an op has, and which it has not."""

from __future__ import annotations

import pytest
from xdsl.ir import Block

from irc.dialects.flow import ContractOp, FlowOp, PointwiseOp, ReduceOp, ReshapeOp
from irc.dialects.indexing import TakeOp
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.size import symbol
from irc.dialects.types import TensorType
from irc.ops.rule import RuleError
from irc.sharding.signatures import (
    axis_signatures,
    find_signature,
    is_replicated,
    match_signature,
    signatures,
)

MESH = Mesh.parse("data=2,tensor=2")
P = Partial()


def typed(
    cls: type[FlowOp], operands: list[TensorType], result: TensorType, **attrs: object
) -> FlowOp:
    block = Block(arg_types=operands)
    op = cls.make(list(block.args), [result], id="n0", **attrs)
    block.add_op(op)
    return op


def matmul(m: int = 8, k: int = 4, n: int = 6, dtype: str = "f32") -> FlowOp:
    kinds = [TensorType.of(shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    return typed(ContractOp, kinds[:2], kinds[2], spec="mk,kn->mn")


def test_matmul_has_the_signatures_of_the_book() -> None:
    texts = {str(s) for s in axis_signatures(matmul())}
    assert texts == {
        "(B, B) -> (B)",
        "(S(0), B) -> (S(0))",
        "(B, S(1)) -> (S(1))",
        "(S(1), S(0)) -> (P(sum))",
        "(P(sum), B) -> (P(sum))",
        "(B, P(sum)) -> (P(sum))",
    }


def test_all_b_comes_first_and_the_order_is_fixed() -> None:
    once, again = signatures(matmul(), MESH), signatures(matmul(), MESH)
    assert once == again
    assert is_replicated(axis_signatures(matmul())[0])
    assert all(p.is_replicated for p in (*once[0].operands, *once[0].results))
    assert len(set(once)) == len(once)


def test_only_even_splits_unless_asked() -> None:
    op = matmul(m=7, k=4, n=6)
    splits = {s.splits for s in signatures(op, MESH)}
    assert not any("m" in split for split in splits)
    assert ("k", "k") in splits
    assert ("n", "n") not in splits  # 6 rows divide by 2, not by 4
    uneven = {s.splits for s in signatures(op, MESH, uneven=True)}
    assert {("m", "m"), ("n", "n"), ("m", "k")} <= uneven


def test_a_merged_dim_is_never_uneven() -> None:
    op = typed(ReshapeOp, [TensorType.of((6, 4))], TensorType.of((24,)))
    mesh = Mesh.parse("x=4")
    assert not any(s.splits == ("a",) for s in signatures(op, mesh, uneven=True))


def test_a_maximum_is_never_taken_of_nothing() -> None:
    op = typed(
        ReduceOp, [TensorType.of((6,))], TensorType.of(()), fn="max", dims=(0,), keep_dims=False
    )
    assert not any(s.splits == ("a",) for s in signatures(op, Mesh.parse("x=4"), uneven=True))
    assert any(s.splits == ("a",) for s in signatures(op, Mesh.parse("x=6"), uneven=True))


def test_axes_that_split_one_dim_apply_in_mesh_order() -> None:
    both = next(s for s in signatures(matmul(), MESH) if s.splits == ("m", "m"))
    assert both.operands[0] == Placement((("data", Split(0)), ("tensor", Split(0, 1))))
    assert both.results == both.operands[:1]


def test_an_axis_of_size_one_only_broadcasts() -> None:
    choices = signatures(matmul(), Mesh.parse("data=1,tensor=2"))
    assert {s.operands[0]["data"] for s in choices} == {B}
    (alone,) = signatures(matmul(), Mesh.parse(""))
    assert alone.operands == (Placement(()),) * 2


def test_dtypes_without_sums_or_maxima_have_no_such_partials() -> None:
    copy = typed(PointwiseOp, [TensorType.of((4,), "i1")], TensorType.of((4,), "i1"), fn="copy")
    kinds = {p for s in axis_signatures(copy) for p in s.results}
    assert P not in kinds
    assert Partial("max") in kinds
    wave = typed(PointwiseOp, [TensorType.of((4,), "c64")], TensorType.of((4,), "c64"), fn="copy")
    kinds = {p for s in axis_signatures(wave) for p in s.results}
    assert P in kinds
    assert Partial("max") not in kinds


def test_kinds_of_partial_do_not_mix_in_one_tensor() -> None:
    copy = typed(PointwiseOp, [TensorType.of((4,))], TensorType.of((4,)), fn="copy")
    for signature in signatures(copy, MESH):
        assert len({p for p in signature.results[0] if isinstance(p, Partial)}) <= 1


def test_the_limit_keeps_all_b_and_drops_partial_operands_first() -> None:
    op = matmul(8, 8, 8)
    mesh = Mesh.parse("a=2,b=2,c=2")
    everything = signatures(op, mesh, limit=10**6)
    kept = signatures(op, mesh, limit=64)
    assert len(everything) > 100
    assert len(kept) == 64
    assert kept[0] == everything[0]
    assert not any(p.partial_axes() for s in kept for p in s.operands)


def test_a_table_split_by_rows_is_a_strategy() -> None:
    op = typed(
        TakeOp, [TensorType.of((8, 4)), TensorType.of((3,), "i64")], TensorType.of((3, 4)), dim=0
    )
    (masked,) = [s for s in axis_signatures(op) if s.strategy != "rule"]
    assert str(masked) == "(S(0), B) -> (P(sum)) by masked-take"
    mixed = [s for s in signatures(op, MESH) if s.strategy == ("rule", "masked-take")]
    assert {s.splits[0] for s in mixed} == {"", "b"}


def test_placements_in_types_name_their_signature() -> None:
    rows = Placement.of(data=Split(0), tensor=B)
    inner = Placement.of(data=Split(0), tensor=Split(1))
    weight = Placement.of(data=B, tensor=Split(0))
    partial = Placement.of(data=Split(0), tensor=P)
    op = typed(
        ContractOp,
        [TensorType.of((8, 4), "f32", inner), TensorType.of((4, 6), "f32", weight)],
        TensorType.of((8, 6), "f32", partial),
        spec="mk,kn->mn",
    )
    signature = match_signature(op, MESH)
    assert signature is not None
    assert signature.splits == ("m", "k")
    assert find_signature(op, MESH, (inner, weight), (rows,)) is None


@pytest.mark.parametrize(("size", "legal"), [(8, True), (6, False)])
def test_uneven_merged_dims_match_nothing(size: int, legal: bool) -> None:
    split = Placement.of(x=Split(0))
    op = typed(
        ReshapeOp,
        [TensorType.of((size, 4), "f32", split)],
        TensorType.of((size * 4,), "f32", split),
    )
    assert (match_signature(op, Mesh.parse("x=4")) is not None) == legal


def test_named_sizes_must_be_bound() -> None:
    kinds = TensorType.of((symbol("B"),))
    op = typed(PointwiseOp, [kinds], kinds, fn="exp")
    with pytest.raises(RuleError, match="'B'"):
        axis_signatures(op)
