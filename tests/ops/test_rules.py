# ruff: noqa: E501 - one row of a table is one line
"""The rule of every op, as text, and the factors of reshapes by definition."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Block

from irc.dialects import (
    flow,
    flow_ops,
    indexing,
    literals,
    packed_products,
    scans,
    searches,
    windows,
)
from irc.dialects.flow import FlowOp
from irc.dialects.size import symbol
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.errors import IrcError
from irc.ops.derivatives import DERIVATIVES
from irc.ops.infer import INFER, STATED
from irc.ops.refusals import REASONS
from irc.ops.rules import RULES, rule_of
from irc.ops.rules_layout import factorise
from irc.ops.work import FLOPS

i64, f32 = "i64", "f32"


def build(op: type[FlowOp], *operands: Any, result: Any = None, **attrs: Any) -> FlowOp:
    kinds = [o if isinstance(o[0], tuple) else (o, f32) for o in (o or ((),) for o in operands)]
    kinds = [((), f32) if o == ((),) else o for o in kinds]
    block = Block(arg_types=[TensorType.of(*o) for o in kinds])
    results = [result] if result else op.infer(attrs, kinds)
    results = [r if isinstance(r[0], tuple) else (r, f32) for r in results]
    built = op.make(list(block.args), [TensorType.of(*r) for r in results], **attrs)
    block.add_op(built)
    return built


def window(**changed: Any) -> dict[str, Any]:
    return {"strides": (1, 1), "low": (0, 0), "high": (0, 0), "dilations": (1, 1), **changed}


def point(fn: str, *operands: Any, **more: Any) -> FlowOp:
    return build(flow.PointwiseOp, *operands, fn=fn, **more)


# fmt: off
EXPECTED: list[tuple[FlowOp, str]] = [
    (point("add", (8, 4), (4,)), "(a b, b) -> (a b) linear(0 1)"),
    (point("mul", (8, 1, 4), (8, 1)), "(a 1 c, b 1) -> (a b c) linear(0) linear(1)"),
    (point("exp", (8, 1)), "(a 1) -> (a 1) monotone(0)"),
    (point("gelu", (8, 4)), "(a b) -> (a b)"),
    (point("cast", (4,), result=((4,), "f64")), "(a) -> (a) linear(0) monotone(0)"),
    (point("cast", (4,), result=((4,), "f16")), "(a) -> (a) monotone(0)"),
    (point("cast", (4,), result=((4,), "i64")), "(a) -> (a)"),
    (point("div", (4,), (4,)), "(a, a) -> (a) linear(0)"),
    (point("div", ((4,), i64), ((4,), i64)), "(a, a) -> (a)"),
    (point("where", ((4,), "i1"), (4,), (4,)), "(a, a, a) -> (a) linear(1 2)"),
    (build(flow.ContractOp, (2, 8, 4), (2, 4, 6), spec="bmk,bkn->bmn"), "(b m k, b k n) -> (b m n) sum(k) linear(0) linear(1)"),
    (build(packed_products.GroupedContractOp, (5, 8), (3, 2, 8, 64, 1), ((5,), "i64")), "(a b, c d e f 1, h) -> (i j) whole(a b c d e f h i j)"),
    (build(packed_products.GroupedOuterOp, (5, 8), (5, 3), ((5,), "i64"), count=4), "(a b, c d, e) -> (f g h) whole(a b c d e f g h)"),
    (build(packed_products.PackedContractOp, (2, 8), ((3, 8, 16), "i8"), (3, 1, 16), bits=8), "(a b, c d e, f 1 h) -> (i j) whole(a b c d e f h i j)"),
    (build(flow.ReduceOp, (8, 4), fn="sum", dims=(1,), keep_dims=True), "(a b) -> (a 1) sum(b) linear(0)"),
    (build(flow.ReduceOp, (8, 4), fn="max", dims=(0, 1), keep_dims=False), "(a b) -> (.) max(a b)"),
    (build(flow.ReduceOp, (8, 4), fn="prod", dims=(0,), keep_dims=False), "(a b) -> (b) whole(a)"),
    (build(flow.ReduceOp, ((8, 4), "i1"), fn="any", dims=(0,), keep_dims=False), "(a b) -> (b) max(a)"),
    (build(flow.ReduceOp, ((8, 4), "i1"), fn="all", dims=(0,), keep_dims=False), "(a b) -> (b) min(a)"),
    (build(searches.ArgReduceOp, (8, 4), fn="max", dim=0, keep_dims=True), "(a b) -> (1 b) whole(a)"),
    (build(scans.CumulativeOp, (8, 4), fn="sum", dim=0, exclusive=False, reverse=False), "(a b) -> (a b) whole(a) linear(0)"),
    (build(scans.CumulativeOp, (8, 4), fn="max", dim=0, exclusive=False, reverse=False), "(a b) -> (a b) whole(a)"),
    (build(searches.SortOp, (8, 4), dim=1, descending=False), "(a b) -> (a b, a b) whole(b)"),
    (build(searches.TopKOp, (8, 4), dim=1, k=2, largest=True), "(a b) -> (a 1, a 1) whole(b)"),
    (build(flow.ReshapeOp, (8, 12), result=(8, 3, 4)), "(a [b c]) -> (a b c) linear(0) monotone(0)"),
    (build(flow.ReshapeOp, (2, 3, 4), result=(6, 4)), "(a b c) -> ([a b] c) linear(0) monotone(0)"),
    (build(flow.ReshapeOp, (3, 4, 5), result=(2, 6, 5)), "(a b c) -> (d e c) whole(a b d e) linear(0) monotone(0)"),
    (build(flow.TransposeOp, (8, 3, 4), perm=(2, 0, 1)), "(a b c) -> (c a b) linear(0) monotone(0)"),
    (build(flow.BroadcastOp, (8, 1), result=(2, 8, 4)), "(b 1) -> (a b c) linear(0) monotone(0)"),
    (build(flow.SliceOp, (8, 4, 6), starts=(0, 1, 0), stops=(-1, 3, 6), steps=(1, 1, 2)), "(a 1 1) -> (a 1 1) linear(0) monotone(0)"),
    (build(flow.PadOp, (8, 4), low=(0, 1), high=(0, 0), value=0.0), "(a 1) -> (a 1) linear(0) monotone(0)"),
    (build(flow.PadOp, (8, 4), low=(0, 1), high=(0, 0), value=1.0), "(a 1) -> (a 1) monotone(0)"),
    (build(flow.PadOp, (8, 4), low=(0, -1), high=(0, 0), value=1.0), "(a 1) -> (a 1) linear(0) monotone(0)"),
    (build(flow.ConcatOp, (8, 4), (8, 3), dim=1), "(a 1, a 1) -> (a 1) linear(0 1) monotone(0 1)"),
    (build(indexing.TakeOp, (9, 4), ((5, 2), i64), dim=0), "(1 b, c d) -> (c d b) linear(0) monotone(0)"),
    (build(indexing.GatherOp, (9, 4), ((9, 2), i64), dim=1), "(a 1, a b) -> (a b) linear(0) monotone(0)"),
    (build(indexing.GatherOp, (9, 4), ((7, 2), i64), dim=1), "(1 1, 1 b) -> (1 b) linear(0) monotone(0)"),
    (build(indexing.ScatterOp, (9, 4), ((9, 2), i64), (9, 2), dim=1, fn="sum"), "(a 1, a 1, a 1) -> (a 1) linear(0 2)"),
    (build(indexing.ScatterOp, (9, 4), ((9, 2), i64), (9, 2), dim=1, fn="prod"), "(a 1, a 1, a 1) -> (a 1)"),
    (build(windows.ConvolutionOp, (2, 6, 5, 5), (8, 6, 3, 3), **window(groups=1)),
     "(n c 1 1, o c k0 k1) -> (n o y0 y1) sum(c k0 k1) whole(k0 k1 y0 y1) linear(0) linear(1)"),
    (build(windows.ConvolutionOp, (2, 6, 5, 5), (8, 6, 3, 3), (8,), **window(groups=1)),
     "(n c 1 1, o c k0 k1, o) -> (n o y0 y1) sum(c k0 k1) whole(k0 k1 y0 y1 c) linear(0 2) linear(1 2)"),
    (build(windows.ConvolutionOp, (2, 6, 5, 5), (8, 3, 3, 3), **window(groups=2)),
     "(n [g c] 1 1, [g o] c k0 k1) -> (n [g o] y0 y1) sum(c k0 k1) whole(k0 k1 y0 y1) linear(0) linear(1) size(g=2)"),
    (build(windows.PoolOp, (2, 6, 4, 4), result=(2, 6, 2, 2), fn="max", window=(2, 2), count_padding=False, **window(strides=(2, 2))),
     "(a b 1 1) -> (a b y0 y1) whole(y0 y1)"),
    (build(AttentionOp, (2, 8, 6, 4), (2, 2, 5, 4), (2, 2, 5, 4), is_causal=False, scale=1.0),
     "(b0 [g r] s d, b0 g t d, b0 g t e) -> (b0 [g r] s e) sum(t d) whole(t d e) linear(2) size(g=2)"),
    (build(AttentionOp, (2, 8, 6, 4), (2, 8, 6, 4), (2, 8, 6, 4), (6, 6), is_causal=True, scale=1.0),
     "(b0 g s d, b0 g t d, b0 g t e, s t) -> (b0 g s e) sum(t d) whole(t d e s) linear(2)"),
    (build(literals.IotaOp, result=((4, 6), i64), dim=0), "() -> (a b) whole(a)"),
    (build(literals.ConstantOp, result=(4, 6), value=(1.0,)), "() -> (a b)"),
    (build(literals.ConstantOp, result=(2, 2), value=(1.0, 2.0, 3.0, 4.0)), "() -> (a b) whole(a b)"),
    (build(literals.RandomOp, ((), i64), result=(4, 6), distribution="uniform", stream=0), "(.) -> (a b) whole(a b)"),
    (build(flow.ExternOp, (4, 6), result=(6,), target="aten::x", arguments="[]"), "(a b) -> (c) whole(a b c)"),
    (build(flow.ExternOp, (4, 6), result=(4,), target="aten::x", arguments="[]", rule="(a b)->(a) sum(b)"), "(a b) -> (a) sum(b)"),
]
# fmt: on


@pytest.mark.parametrize(("op", "text"), EXPECTED, ids=[text for _, text in EXPECTED])
def test_rule_of_an_op(op: FlowOp, text: str) -> None:
    rule = rule_of(op)
    assert str(rule) == text


def test_every_planned_op_has_a_rule() -> None:
    planned = {op for op in flow_ops.OPS if op.name not in ("flow.fusion", "flow.yield")}
    assert set(RULES) == {op.name for op in planned if op.RECORD is None}
    assert {op.name for op, _ in EXPECTED} == {op.name for op in planned}


def test_a_stated_rule_must_fit_the_shapes() -> None:
    op = build(
        flow.ExternOp,
        (4, 6),
        result=(5,),
        target="aten::x",
        arguments="[]",
        rule="(a b)->(a) sum(b)",
    )
    with pytest.raises(IrcError, match="does not fit aten::x") as caught:
        rule_of(op)
    assert caught.value.because == ("factor 'a' is 4 and 5",)


def test_named_sizes_keep_their_factors() -> None:
    b, s = symbol("B"), symbol("S")
    rule = rule_of(build(flow.ReshapeOp, (b, s, 12), result=(b * s, 3, 4)))
    assert str(rule) == "(a b [c d]) -> ([a b] c d) linear(0) monotone(0)"
    assert rule.factor_sizes([(b, s, 12)], [(b * s, 3, 4)])["b"] == s


def place(
    flat: int, shape: tuple[int, ...], sizes: list[list[tuple[int, Any, bool]]]
) -> dict[int, int]:
    """Return the value of each factor at a flat index: the definition, digit by digit."""
    digits: dict[int, int] = {}
    for size, dim in zip(reversed(shape), reversed(sizes), strict=True):
        flat, index = divmod(flat, size)
        for key, factor, _ in reversed(dim):
            index, digits[key] = divmod(index, factor)
    return digits


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)


@given(shapes, st.data())
def test_shared_factors_of_a_reshape_index_the_same_elements(
    source: tuple[int, ...], data: st.DataObject
) -> None:
    rest, target = prod(source), [1] * data.draw(st.integers(0, 1))
    while rest > 1:
        target.append(data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0])))
        rest //= target[-1]
    left, right = factorise(source, tuple(target))
    for dims, shape in ((left, source), (right, target)):
        assert [prod(size for _, size, _ in dim) for dim in dims] == list(shape)
    shared = {key for dim in left for key, _, both in dim if both}
    assert shared == {key for dim in right for key, _, both in dim if both}
    for flat in range(prod(source)):
        a, b = place(flat, source, left), place(flat, tuple(target), right)
        assert all(a[key] == b[key] for key in shared)


@pytest.mark.parametrize(("p", "q"), list(product((2, 3, 4), repeat=2)))
def test_a_prefix_that_both_shapes_have_is_always_found(p: int, q: int) -> None:
    left, right = factorise((p * q, 5), (p, q * 5))
    assert left[0][0][1:] == (p, True)
    assert right[0][0][1:] == (p, True)


TABLES = (RULES, INFER, FLOPS, DERIVATIVES, REASONS, STATED)


def test_an_op_with_a_record_stands_in_no_table() -> None:
    """All that is known of it is beside its definition."""
    recorded = {op.name for op in flow_ops.OPS if op.RECORD is not None}
    assert {"flow.take", "flow.scatter", "flow.cumulative", "flow.pool"} <= recorded
    assert [recorded & set(table) for table in TABLES] == [set()] * len(TABLES)
