"""Traps of shards and partial values (T-1 to T-14), where no other test stands in them.

What each trap is, and which tests catch it, is in `test_traps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from xdsl.ir import Block

from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, ReshapeOp
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.ops.functions import POINTWISE
from irc.runtime import library
from irc.sharding.shards import chunk_lengths, combine, shard
from irc.sharding.signatures import axis_signatures, signatures


def build(
    cls: type[FlowOp],
    *kinds: tuple[tuple[int, ...], str],
    result: tuple[tuple[int, ...], str] | None = None,
    **attrs: object,
) -> FlowOp:
    block = Block(arg_types=[TensorType.of(*kind) for kind in kinds])
    result_kinds = [result] if result else cls.infer(attrs, kinds)
    op = cls.make(
        list(block.args), [TensorType.of(*kind) for kind in result_kinds], id="n0", **attrs
    )
    block.add_op(op)
    op.verify()
    return op


def placed(op: FlowOp) -> list[tuple[tuple[object, ...], tuple[object, ...]]]:
    return [(s.operands, s.results) for s in axis_signatures(op)]


def balanced(size: int, parts: int) -> list[int]:
    """OneFlow's split: the first ``size % parts`` ranks get one more."""
    return [size // parts + (rank < size % parts) for rank in range(parts)]


def test_boundaries_are_those_of_ceil_chunks_for_every_size() -> None:
    differ = 0
    for size, parts in product(range(1, 41), range(1, 9)):
        lengths = list(chunk_lengths(size, [parts]))
        expected = [len(part) for part in torch.arange(size).chunk(parts)]
        assert lengths == expected + [0] * (parts - len(expected))
        same = size % parts in (0, parts - 1) or size < parts
        assert (lengths == balanced(size, parts)) == same
        differ += not same
        mesh, placement = Mesh.of({"a": parts}), Placement.of(a=Split(0))
        whole = torch.arange(size)
        assert combine(shard(whole, placement, mesh), placement, mesh, (size,)).equal(whole)
    assert differ > 50


def test_shards_of_one_rule_are_not_joined_by_another() -> None:
    mesh, placement, whole = Mesh.of({"a": 4}), Placement.of(a=Split(0)), torch.arange(6)
    ours = shard(whole, placement, mesh)
    theirs = list(whole.split(balanced(6, 4)))
    assert [len(part) for part in ours] != [len(part) for part in theirs]
    with pytest.raises(ValueError, match="its shard of"):
        combine(theirs, placement, mesh, (6,))


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7])
def test_tiny_and_empty_shards_reduce_right_or_not_at_all(fn: str, rows: int) -> None:
    """On four ranks: fewer rows than ranks, and six rows, of which the last rank has none."""
    mesh = Mesh.of({"a": 4})
    op = build(ReduceOp, ((rows, 3), "f32"), fn=fn, dims=(0,), keep_dims=False)
    whole = [-torch.rand(rows, 3, dtype=torch.float64) - 1]
    (expected,) = run_op(op, whole, dtype=torch.float64)
    for signature in signatures(op, mesh, uneven=True):
        if signature.operands[0].partial_axes():
            continue
        held = [shard(whole[0], signature.operands[0], mesh)]
        (parts,) = run_ranks(op, signature, mesh, held, dtype=torch.float64)
        joined = combine(parts, signature.results[0], mesh, (3,))
        assert torch.allclose(joined, expected), signature


@pytest.mark.parametrize("fn", ["max", "prod"])
def test_shards_padded_with_zeros_would_be_seen(fn: str) -> None:
    """No shard is padded: a maximum of negative numbers, or a product, would show it."""
    op = build(ReduceOp, ((7, 3), "f32"), fn=fn, dims=(1,), keep_dims=False)
    wide = build(ReduceOp, ((7, 4), "f32"), fn=fn, dims=(1,), keep_dims=False)
    x = -torch.rand(7, 3, dtype=torch.float64) - 1
    (expected,) = run_op(op, [x], dtype=torch.float64)
    (padded,) = run_op(wide, [torch.nn.functional.pad(x, (0, 1))], dtype=torch.float64)
    assert not torch.allclose(padded, expected)
    mesh = Mesh.of({"a": 4})
    rows = next(s for s in signatures(op, mesh, uneven=True) if s.splits == ("a",))
    lengths = [len(part) for part in shard(x, rows.operands[0], mesh)]
    assert lengths == [2, 2, 2, 1]
    (parts,) = run_ranks(op, rows, mesh, [shard(x, rows.operands[0], mesh)], dtype=torch.float64)
    assert [len(part) for part in parts] == lengths


def test_two_axes_on_one_dim_are_not_one_axis() -> None:
    """Merging (a, b) into a * b moves data unless the sizes happen to agree."""
    differ: list[int] = []
    for size, a, b in product(range(1, 40), (2, 3, 4), (2, 3, 4)):
        nested = list(chunk_lengths(size, [a, b]))
        outer = torch.arange(size).chunk(a)
        expected = [len(part) for whole in outer for part in _chunks(whole, b)]
        assert nested == expected + [0] * (a * b - len(expected))
        if nested != list(chunk_lengths(size, [a * b])):
            differ.append(size)
    assert 6 in differ
    assert len(differ) > 50


def _chunks(value: torch.Tensor, parts: int) -> list[torch.Tensor]:
    chunks = list(value.chunk(parts))
    return chunks + [value[:0]] * (parts - len(chunks))


def test_orders_of_application_are_different_placements() -> None:
    """In some versions of DTensor a strided shard equals a shard of its dim: caches go wrong."""
    one = Placement((("a", Split(0)), ("b", Split(0, 1))))
    other = Placement((("a", Split(0, 1)), ("b", Split(0))))
    assert one != other
    assert len({one: 1, other: 2}) == 2
    mesh = Mesh.parse("a=2,b=2")
    assert not torch.equal(*(torch.cat(shard(torch.arange(8), p, mesh)) for p in (one, other)))


def test_only_the_major_factor_of_a_reshape_carries_a_shard() -> None:
    heads = build(ReshapeOp, ((6, 4 * 3), "f32"), result=((6, 4, 3), "f32"))
    columns, by_head = (Split(1),), (Split(1),)
    for ranks, fits in ((2, True), (4, True), (3, False), (6, False), (12, False)):
        choices = signatures(heads, Mesh.of({"a": ranks}), uneven=True)
        split = [s for s in choices if (s.operands[0]["a"],) == columns]
        assert bool(split) == fits, ranks
        assert all((s.results[0]["a"],) == by_head for s in split)
    flat = build(ReshapeOp, ((6, 4), "f32"), result=((24,), "f32"))
    assert ((Split(1),), (Split(0),)) not in placed(flat)
    assert ((Split(0),), (Split(0),)) in placed(flat)


def values(arity: int, seed: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(50, generator=rng, dtype=torch.float64) + 0.01 for _ in range(arity)]


@pytest.mark.parametrize("fn", POINTWISE)
def test_functions_that_pass_partial_values_are_linear_or_monotone(fn: str) -> None:
    """The whitelist, measured: f(a + b) = f(a) + f(b), f(max) = max of f."""
    row = POINTWISE[fn]
    if fn == "cast":
        return
    for group in row.linear:
        a, b = values(row.arity, 1), values(row.arity, 2)
        b = [y if i in group else x for i, (x, y) in enumerate(zip(a, b, strict=True))]
        both = [x + y if i in group else x for i, (x, y) in enumerate(zip(a, b, strict=True))]
        if fn == "where":
            for operands in (a, b, both):
                operands[0] = a[0] > 0
        assert torch.allclose(call(fn, both), call(fn, a) + call(fn, b)), f"{fn} {group}"
    if row.monotone:
        x, y = values(1, 1)[0].abs(), values(1, 2)[0].abs()
        assert torch.equal(call(fn, [x.maximum(y)]), call(fn, [x]).maximum(call(fn, [y])))


def call(fn: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    return library.run("flow.pointwise", {"fn": fn}, operands, [((50,), "f64")])[0]


@pytest.mark.parametrize("fn", ["abs", "relu", "exp", "pow", "maximum", "remainder"])
def test_functions_that_are_not_linear_take_no_sums(fn: str) -> None:
    op = build(PointwiseOp, *[((4,), "f32")] * POINTWISE[fn].arity, fn=fn)
    assert all(Partial("sum") not in operands for operands, _ in placed(op))


def test_partial_sums_add_and_scale_and_nothing_else() -> None:
    part = Partial("sum")
    pair = [((4,), "f32"), ((4,), "f32")]
    taken = {
        fn: {
            operands for operands, _ in placed(build(PointwiseOp, *pair, fn=fn)) if part in operands
        }
        for fn in ("add", "mul", "div")
    }
    # Never a sum and a whole value added, two sums multiplied, or a sum below the line.
    assert taken["add"] == {(part, part)}
    assert taken["mul"] == {(part, B), (B, part)}
    assert taken["div"] == {(part, B)}
    integers = [((4,), "i64"), ((4,), "i64")]
    assert not any(
        part in operands for operands, _ in placed(build(PointwiseOp, *integers, fn="div"))
    )


def test_a_partial_sum_is_only_widened_never_rounded() -> None:
    part = ((Partial("sum"),), (Partial("sum"),))
    for source, target, passes in (
        ("bf16", "f32", True), ("f32", "f64", True), ("f16", "f32", True),
        ("f32", "bf16", False), ("f32", "f16", False), ("f16", "bf16", False),
    ):  # fmt: skip
        op = build(PointwiseOp, ((4,), source), result=((4,), target), fn="cast")
        assert (part in placed(op)) == passes, f"{source} to {target}"


def test_rounding_parts_is_not_rounding_the_sum() -> None:
    """Why: what the rule would allow gives other numbers."""
    parts = torch.tensor([256.0, 1.0, 1.0, 1.0])
    rounded = sum(part.bfloat16() for part in parts)
    assert isinstance(rounded, torch.Tensor)
    assert rounded.float() != parts.sum().bfloat16().float()


def test_a_whole_value_becomes_a_sum_on_the_first_rank_alone() -> None:
    """Exact for integers and bools' counts, where an even share would round."""
    mesh, placement = Mesh.of({"a": 4}), Placement.of(a=Partial("sum"))
    for whole in (torch.tensor([7, -3]), torch.tensor([0.1, 1e-30])):
        parts = shard(whole, placement, mesh)
        assert torch.equal(parts[0], whole)
        assert not any(part.any() for part in parts[1:])
        assert torch.equal(combine(parts, placement, mesh, (2,)), whole)
