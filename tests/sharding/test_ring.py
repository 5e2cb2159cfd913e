"""Rings of attention: right, as long as the ring, priced as they run; and bugs that are caught."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.cost.rings import block_seconds, ring_block, ring_price
from irc.dialects.comm import PermuteOp
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.placement import Mesh, Split
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.ops.attention_ops import Form
from irc.ops.strategies import CAUSAL_ROWS, RING
from irc.runtime import attention as reference
from irc.sharding.local import build_local
from irc.sharding.local_ops import local_type
from irc.sharding.ring import Ring
from irc.sharding.ring_ways import KEYS, WAY, WAYS, ZIGZAG
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import NdSignature, signatures

ROWS, HEADS, GROUPS, WIDTH = 24, 4, 2, 3


def forward(causal: bool, rows: int = ROWS, dtype: str = "f32", *, plain: bool = False) -> FlowOp:
    q, kv = (TensorType.of((2, n, rows, WIDTH), dtype) for n in (HEADS, GROUPS))
    block = Block(arg_types=[q, kv, kv])
    sums = TensorType.of((2, HEADS, rows), "f32")
    if plain:
        op: FlowOp = AttentionOp.make(block.args, [q], is_causal=causal, scale=0.5, id="n0")
    else:
        op = ExternOp.make(block.args, [q, sums], id="n0", **Form(causal, 0.5).forward())
    block.add_op(op)
    return op


def backward(causal: bool, rows: int = ROWS) -> FlowOp:
    q, kv = (TensorType.of((2, n, rows, WIDTH)) for n in (HEADS, GROUPS))
    block = Block(arg_types=[q, q, kv, kv, q, TensorType.of((2, HEADS, rows))])
    op = ExternOp.make(block.args, [q, kv, kv], id="n0", **Form(causal, 0.5).backward())
    block.add_op(op)
    return op


def ring_of(op: FlowOp, mesh: Mesh) -> NdSignature:
    rings = [s for s in signatures(op, mesh) if s.strategy == (RING,)]
    assert len(rings) == 1
    return rings[0]


def inputs(causal: bool, op: FlowOp) -> list[torch.Tensor]:
    """Queries, keys and values; for backward also a gradient, and what forward gives."""
    rng = torch.Generator().manual_seed(3)
    rows = op.inputs[0].type.static_shape()[2]  # type: ignore[union-attr]
    q = torch.randn(2, HEADS, rows, WIDTH, generator=rng, dtype=torch.float64)
    k, v = torch.randn(2, 2, GROUPS, rows, WIDTH, generator=rng, dtype=torch.float64)
    if len(op.inputs) == 3:
        return [q, k, v]
    y, sums = run_op(forward(causal, rows), [q, k, v], dtype=torch.float64)
    return [torch.randn(q.shape, generator=rng, dtype=torch.float64), q, k, v, y, sums]


def error(op: FlowOp, mesh: Mesh, whole: list[torch.Tensor]) -> float:
    """The largest error of the ring against the whole op, over all results."""
    signature = ring_of(op, mesh)
    held = [shard(v, p, mesh) for v, p in zip(whole, signature.operands, strict=True)]
    parts = run_ranks(op, signature, mesh, held, dtype=torch.float64)
    expected = run_op(op, whole, dtype=torch.float64)
    return max(
        float((combine(part, placed, mesh, tuple(value.shape)) - value).abs().max())
        for part, placed, value in zip(parts, signature.results, expected, strict=True)
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_a_ring_is_the_whole_op_forward_and_backward(ranks: int, causal: bool) -> None:
    mesh = Mesh.parse(f"seq={ranks}")
    for op in (forward(causal), forward(causal, plain=True), backward(causal)):
        assert error(op, mesh, inputs(causal, op)) < 1e-9


@pytest.mark.parametrize("causal", [True, False])
def test_the_derivative_is_torchs(causal: bool) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(causal, forward(causal)))
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=0.5, enable_gqa=True
    )
    g = torch.randn_like(y)
    expected = torch.autograd.grad(y, (q, k, v), g)
    with torch.no_grad():
        y, sums = run_op(forward(causal), [q, k, v], dtype=torch.float64)
        gradients = run_op(backward(causal), [g, q, k, v, y, sums], dtype=torch.float64)
    for value, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9)


def program(op: FlowOp, ranks: int, steps: int = 0) -> list[FlowOp]:
    mesh = Mesh.parse(f"seq={ranks}")
    signature = ring_of(op, mesh)
    pairs = zip(op.inputs, signature.operands, strict=True)
    block = Block(arg_types=[local_type(value.type, placed, mesh) for value, placed in pairs])
    ops: list[FlowOp] = []
    build_local(op, signature, mesh, list(block.args), ops.append, steps=steps)
    return ops


def test_a_program_grows_with_the_ring_and_sends_as_often_as_it_must() -> None:
    for make, hops in ((forward, lambda p: 2 * (p - 1)), (backward, lambda p: 4 * (p - 1))):
        sizes = {p: Counter(op.name for op in program(make(True), p)) for p in (2, 3, 6, 12)}
        assert all(count["comm.permute"] == hops(p) for p, count in sizes.items())
        totals = {p: count.total() for p, count in sizes.items()}
        step = totals[3] - totals[2]
        assert totals[12] - totals[6] == 6 * step


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_costs_what_its_program_takes_on_compute_and_link(ranks: int) -> None:
    """Priced from four steps; no more than its ops added up, no less than either stream."""
    cost = ClusterCost(PRESETS["8xH100"], Mesh.parse(f"seq={ranks}"))
    for op in (forward(True, 4096), backward(True, 4096)):
        op.attributes[WAY] = StringAttr(KEYS)
        ops = program(op, ranks)
        sent = sum(cost.local_seconds(each) for each in ops if isinstance(each, PermuteOp))
        blocks = sum(cost.local_seconds(each) for each in ops if isinstance(each, ExternOp))
        seconds = cost.op_seconds(op, ring_of(op, cost.mesh))
        assert 0 < sent < seconds
        assert blocks < seconds < sum(map(cost.local_seconds, ops))


def test_steps_after_the_fourth_cost_what_the_fourth_does() -> None:
    cost = ClusterCost(PRESETS["8xH100"], Mesh.parse("seq=8"))
    for op in (forward(True, 2**15, "bf16"), backward(True, 2**15)):
        ring = ring_of(op, cost.mesh)
        for way in WAYS:
            block = ring_block(op, ring, cost, way, 0)
            whole = block_seconds(cost, block)
            assert ring_price(cost, op, ring, way).seconds == pytest.approx(whole, rel=0.02), way


def test_parts_kept_wide_are_computed_at_the_operands_speed() -> None:
    """A causal ring is as slow as its last rank, which skips nothing: p full blocks."""
    mesh = Mesh.parse("seq=8")
    cost = ClusterCost(PRESETS["8xH100"], mesh)
    op = forward(True, 2**17, "bf16")
    op.attributes[WAY] = StringAttr(KEYS)
    rows = next(s for s in signatures(op, mesh) if s.strategy == (CAUSAL_ROWS,))
    ring, alone = cost.op_seconds(op, ring_of(op, mesh)), cost.op_seconds(op, rows)
    assert alone < ring < 2 * alone
    # In zigzag order no rank waits for the last one.
    op.attributes[WAY] = StringAttr(ZIGZAG)
    assert cost.op_seconds(op, ring_of(op, mesh)) < 0.8 * alone


def test_sequences_that_do_not_divide_take_no_ring() -> None:
    mesh = Mesh.parse("seq=5")
    assert not [s for s in signatures(forward(True), mesh, uneven=True) if RING in s.strategy]


def test_a_ring_goes_along_one_axis() -> None:
    mesh = Mesh.parse("a=2,b=2")
    rings = [s for s in signatures(forward(True), mesh) if RING in s.strategy]
    assert rings
    assert all(s.strategy.count(RING) == 1 for s in rings)
    assert any(s.operands[0].axes[0][1] == Split(0) for s in rings), "beside a split batch"


def test_a_wrong_source_in_the_permute_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, original = Mesh.parse("seq=4"), PermuteOp.make

    def in_pairs(*args: Any, targets: tuple[int, ...], **rest: Any) -> FlowOp:
        return original(*args, targets=(1, 0, 3, 2), **rest)

    monkeypatch.setattr(PermuteOp, "make", in_pairs)
    for causal in (True, False):
        for op in (forward(causal), backward(causal)):
            assert error(op, mesh, inputs(causal, op)) > 1e-3


def test_a_missing_rescale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh.parse("seq=4")

    def merge(y: Any, sums: Any, other: Any, others: Any) -> tuple[Any, Any]:
        return y + other, torch.logaddexp(sums, others)

    monkeypatch.setattr(reference, "merge", merge)
    assert error(forward(False), mesh, inputs(False, forward(False))) > 1e-3


def test_a_mask_of_other_columns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh.parse("seq=4")
    right = Ring.start

    def shifted(self: Any, hops: int) -> Any:
        return right(self, (hops + 1) % self.size)

    monkeypatch.setattr(Ring, "start", shifted)
    for op in (forward(True), backward(True)):
        assert error(op, mesh, inputs(True, op)) > 1e-3
