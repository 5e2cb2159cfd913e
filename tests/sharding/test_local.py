"""Local programs, as lower-boxing builds them: one for all ranks."""

from __future__ import annotations

import pytest
from xdsl.ir import Block

from irc.dialects.comm import RankIndexOp
from irc.dialects.flow import FlowOp, PointwiseOp, SliceOp, id_of, loc_of, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.types import OpaqueType, TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp
from irc.ops.attention_ops import Form, form_of
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.signatures import NdSignature, signatures

MESH = Mesh.parse("data=2,tensor=2")


def typed(
    cls: type[FlowOp], operands: list[TensorType], result: TensorType, **attrs: object
) -> FlowOp:
    block = Block(arg_types=operands)
    op = cls.make(list(block.args), [result], id="n7", loc="m.py:3", **attrs)
    block.add_op(op)
    return op


def built(
    op: FlowOp, splits: tuple[str, ...], mesh: Mesh = MESH
) -> tuple[list[FlowOp], NdSignature]:
    signature = next(s for s in signatures(op, mesh) if s.splits == splits)
    pairs = zip(op.inputs, signature.operands, strict=True)
    block = Block(arg_types=[local_type(value.type, p, mesh) for value, p in pairs])
    ops: list[FlowOp] = []
    results = build_local(op, signature, mesh, list(block.args), ops.append)
    for local_op in ops:
        local_op.verify()
    assert list(ops[-1].outputs) == results
    return ops, signature


def test_by_a_rule_the_op_runs_on_local_types() -> None:
    op = typed(
        PointwiseOp, [TensorType.of((8, 6)), TensorType.of((6,))], TensorType.of((8, 6)), fn="add"
    )
    (local_op,), signature = built(op, ("a", "b"))
    assert tensor(local_op.outputs[0]) == TensorType.of((4, 3))
    assert (id_of(local_op), loc_of(local_op)) == ("n7", "m.py:3")
    assert [str(a) for a in local_op.attributes["sbp"]] == [  # type: ignore[attr-defined]
        f"#sbp.placement<{signature.results[0]}>"
    ]


def test_a_masked_take_asks_for_its_rank_and_gives_zeros() -> None:
    op = typed(
        TakeOp, [TensorType.of((8, 6)), TensorType.of((5,), "i64")], TensorType.of((5, 6)), dim=0
    )
    ops, _ = built(op, ("<masked-take>", "<masked-take>"))
    assert [o.axis for o in ops if isinstance(o, RankIndexOp)] == ["data", "tensor"]
    (take,) = [o for o in ops if isinstance(o, TakeOp)]
    assert tensor(take.inputs[0]).shape == (2, 6)
    assert ops[-1].plain == {"fn": "where"}
    assert id_of(ops[-1]) == "n7"
    ids = [id_of(o) for o in ops]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "n7.0"
    assert {loc_of(o) for o in ops} == {"m.py:3"}


def test_a_split_count_starts_where_the_shard_starts() -> None:
    op = typed(IotaOp, [], TensorType.of((3, 8), "f32"), dim=1)
    ops, _ = built(op, ("", "<offset-iota>"))
    assert tensor(ops[-1].outputs[0]) == TensorType.of((3, 4), "f32")
    assert [o.axis for o in ops if isinstance(o, RankIndexOp)] == ["tensor"]


def test_causal_rows_are_masked_by_their_logical_number() -> None:
    kind = TensorType.of((2, 8, 4))
    op = typed(AttentionOp, [kind] * 3, kind, is_causal=True, scale=0.5)
    ops, signature = built(op, ("g", "<causal-rows>"))
    assert str(signature.operands[0]) == "[data = S(0), tensor = S(1)]"
    assert str(signature.operands[1]) == "[data = S(0), tensor = B]"
    assert form_of(ops[-1].plain, 4) == Form(True, 0.5, start=3, with_sums=False)
    # No mask of all rows and columns: how far the first row is from the first column.
    assert tensor(ops[-1].inputs[3]) == TensorType.of((), "i64")


def test_a_slice_takes_the_whole_shard_where_it_took_the_whole_dim() -> None:
    op = typed(
        SliceOp,
        [TensorType.of((8, 6))],
        TensorType.of((8, 2)),
        starts=(0, 1),
        stops=(8, 3),
        steps=(1, 1),
    )
    (local_op,), _ = built(op, ("a", ""))
    assert local_op.plain["stops"] == (-1, 3)
    assert tensor(local_op.outputs[0]).shape == (4, 2)


def test_a_rank_convolves_its_groups() -> None:
    window = {"strides": (1,), "low": (0,), "high": (0,), "dilations": (1,)}
    op = typed(
        ConvolutionOp,
        [TensorType.of((2, 8, 5)), TensorType.of((12, 2, 3))],
        TensorType.of((2, 12, 3)),
        groups=4,
        **window,
    )
    (local_op,), _ = built(op, ("g", "g"))
    assert local_op.plain["groups"] == 1
    assert [tensor(v).shape for v in (*local_op.inputs, *local_op.outputs)] == [
        (2, 2, 5),
        (3, 2, 3),
        (2, 3, 3),
    ]


def test_local_types_of_even_uneven_and_opaque_values() -> None:
    split = Placement.of(data=Split(0), tensor=B)
    assert local_type(TensorType.of((8,), "i64", split), split, MESH) == TensorType.of((4,), "i64")
    with pytest.raises(ValueError, match="does not split evenly"):
        local_type(TensorType.of((7,)), split, MESH)
    assert local_type(TensorType.of((7,)), split, MESH, {"data": 1, "tensor": 0}) == TensorType.of(
        (3,)
    )
    assert local_type(OpaqueType(), split, MESH) == OpaqueType()
