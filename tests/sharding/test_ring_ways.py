"""Ways to go round a ring of attention: the same numbers, and as much work on every rank."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.cost.rings import ring_block, ring_prices
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.ops.attention_ops import Form
from irc.ops.strategies import RING
from irc.sharding.ring_ways import KEYS, TOKENS, WAY, WAYS, ZIGZAG, ZIGZAG_TOKENS, ways_of
from irc.sharding.ring_work import RingWork, ring_work
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import NdSignature, signatures


def forward(
    causal: bool, rows: int, heads: int = 3, groups: int = 3, dtype: str = "f32",
    *, plain: bool = False,
) -> FlowOp:  # fmt: skip
    q, kv = (TensorType.of((3, n, rows, 4), dtype) for n in (heads, groups))
    block = Block(arg_types=[q, kv, kv])
    if plain:
        op: FlowOp = AttentionOp.make(block.args, [q], is_causal=causal, scale=0.5, id="n0")
    else:
        sums = TensorType.of((3, heads, rows), "f32")
        op = ExternOp.make(block.args, [q, sums], id="n0", **Form(causal, 0.5).forward())
    block.add_op(op)
    return op


def backward(
    causal: bool, rows: int, heads: int = 3, groups: int = 3, dtype: str = "f32"
) -> FlowOp:
    q, kv = (TensorType.of((3, n, rows, 4), dtype) for n in (heads, groups))
    block = Block(arg_types=[q, q, kv, kv, q, TensorType.of((3, heads, rows))])
    op = ExternOp.make(block.args, [q, kv, kv], id="n0", **Form(causal, 0.5).backward())
    block.add_op(op)
    return op


def ring_of(op: FlowOp, mesh: Mesh) -> NdSignature:
    return next(s for s in signatures(op, mesh) if s.strategy == (RING,))


def inputs(op: FlowOp, causal: bool) -> list[torch.Tensor]:
    """Queries, keys and values; for backward also a gradient, and what forward gives."""
    rng = torch.Generator().manual_seed(3)
    shapes = [value.type.static_shape() for value in op.inputs]  # type: ignore[union-attr]
    q, k, v = (
        torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in (shapes if len(shapes) == 3 else shapes[1:4])
    )
    if len(shapes) == 3:
        return [q, k, v]
    rows, heads, groups = shapes[1][2], shapes[1][1], shapes[2][1]
    y, sums = run_op(forward(causal, rows, heads, groups), [q, k, v], dtype=torch.float64)
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


@pytest.mark.parametrize(
    ("ranks", "groups"), [(2, 3), (3, 3), (4, 1), pytest.param(8, 3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_every_way_is_plain_attention_forward_and_backward(
    ranks: int, groups: int, causal: bool
) -> None:
    """Batch and heads are odd; in float64."""
    mesh, rows = Mesh.parse(f"seq={ranks}"), 6 * ranks
    ops = [forward(causal, rows, groups=groups), backward(causal, rows, groups=groups)]
    if ranks == 2:
        ops.append(forward(causal, rows, groups=groups, plain=True))
    for op in ops:
        whole = inputs(op, causal)
        ways = ways_of(op, ring_of(op, mesh), mesh)
        assert ways == (list(WAYS) if causal else [KEYS, TOKENS])
        for way in ways[1:]:  # that keys travel is tested in test_ring.py
            op.attributes[WAY] = StringAttr(way)
            assert error(op, mesh, whole) < 1e-10, (way, op.name)


def work(op: FlowOp, ranks: int, way: str) -> RingWork:
    cost = ClusterCost(PRESETS["8xH100"], Mesh.parse(f"seq={ranks}"))
    return ring_work(ring_block(op, ring_of(op, cost.mesh), cost, way, 0), "seq", ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zigzag_is_equal_work_and_a_plain_causal_ring_is_not(ranks: int) -> None:
    for op in (forward(True, 256), backward(True, 256)):
        for way in (ZIGZAG, ZIGZAG_TOKENS):
            even = work(op, ranks, way)
            for numbers in (even.flops, even.on_bytes, even.back_bytes, even.received_bytes):
                assert len(set(numbers)) == 1, (way, numbers)
        for way in (KEYS, TOKENS):
            uneven = work(op, ranks, way).flops
            assert len(set(uneven)) == ranks
            # All see as many pairs in sum, and the busiest up to twice the mean.
            assert sum(uneven) == sum(even.flops)
            assert max(uneven) > 1.4 * even.flops[0]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tokens_use_both_directions_and_are_equal_on_all_ranks(ranks: int) -> None:
    one = work(forward(False, 256, dtype="f32"), ranks, TOKENS)
    for numbers in (one.flops, one.on_bytes, one.back_bytes, one.received_bytes):
        assert len(set(numbers)) == 1
    # The last result goes on: round the ring, its rows are the next rank's.
    block = 3 * 3 * 256 // ranks * 4
    assert one.on_bytes[0] == 4 * ((ranks - 1) * block + block + block // 4)
    assert one.back_bytes[0] == 4 * (ranks - 2) * (block + block // 4)
    keys = work(forward(False, 256), ranks, KEYS)
    assert keys.back_bytes == (0,) * ranks
    assert keys.sent_bytes[0] == pytest.approx(one.sent_bytes[0], rel=0.2)


def test_zigzag_halves_the_time_of_a_long_causal_ring() -> None:
    cost = ClusterCost(PRESETS["8xH100"], Mesh.parse("seq=8"))
    q = TensorType.of((1, 32, 2**17, 128), "bf16")
    block = Block(arg_types=[q] * 3)
    op = AttentionOp.make(block.args, [q], is_causal=True, scale=0.1, id="n0")
    block.add_op(op)
    prices = ring_prices(cost, op, ring_of(op, cost.mesh))
    seconds = {way: price.seconds for way, price in prices.items()}
    assert seconds[ZIGZAG] < 0.62 * seconds[KEYS]
    assert cost.op_seconds(op, ring_of(op, cost.mesh)) == min(seconds.values())
    op.attributes[WAY] = StringAttr(KEYS)
    assert cost.op_seconds(op, ring_of(op, cost.mesh)) == seconds[KEYS]


def test_where_launches_decide_the_first_way_is_as_quick_as_any() -> None:
    cost = ClusterCost(PRESETS["8xH100"], Mesh.parse("seq=8"))
    q = TensorType.of((1, 2, 64, 32), "bf16")
    block = Block(arg_types=[q] * 3)
    op = AttentionOp.make(block.args, [q], is_causal=True, scale=0.1, id="n0")
    block.add_op(op)
    ring = ring_of(op, cost.mesh)
    prices = ring_prices(cost, op, ring)
    assert set(prices) == set(WAYS)
    for way, price in prices.items():
        assert prices[KEYS].seconds <= 1.01 * price.seconds, way
