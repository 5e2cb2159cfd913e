"""What a good engineer would choose where the sequence decides: crossovers, Ulysses and rings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import B, Split
from irc.dialects.sbp import BoxingOp
from irc.ops.attention_ops import ATTENTION, BACKWARD
from irc.ops.custom import DECLARED, Declaration, declaration
from irc.ops.strategies import RING
from tests.search.plans import (
    BF16,
    Attention,
    Layers,
    Plan,
    empty,
    model,
    placed,
    sharded,
    tokens,
    trained,
)

WIDTH, HEADS = 4096, 32


class Projection(nn.Module):
    """A matmul whose result is wanted whole: a sum over ranks would not do."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.w = nn.Linear(width, features, bias=False, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        return self.w(x).relu().sum()


@pytest.mark.parametrize("features", [2048, 4096, 8192])
def test_column_and_sequence_parallel_cross_over_at_tokens_equal_features(features: int) -> None:
    """Tokens are split, and so are the weights: gather the smaller (AutoParallel's rule)."""
    pins = "x = [tensor = S(0)]; w.weight = [tensor = S(0)]"

    def plan(tokens: int) -> Plan:
        planned = sharded(
            Projection(4096, features), empty(tokens, 4096), mesh="tensor=8", pins=pins
        )
        planned.reason()
        return planned

    (fewer,) = plan(features * 3 // 4).ops("flow.contract")
    assert (placed(fewer.inputs[0]), placed(fewer.inputs[1])) == (B, Split(0))
    (more,) = plan(features * 5 // 4).ops("flow.contract")
    assert (placed(more.inputs[0]), placed(more.inputs[1])) == (Split(0), B)


def test_long_attention_goes_from_sequence_to_heads() -> None:
    """Ulysses (arXiv:2309.14509): all-to-all before and after, and no activation is gathered."""
    x = empty(1, 131072, WIDTH)
    plan = sharded(
        Attention(WIDTH, HEADS), x, mesh="tensor=8", inputs="any", pins="x = [tensor = S(1)]"
    )
    plan.reason()
    (attention,) = plan.ops("flow.attention")
    assert {placed(v) for v in (*attention.inputs, *attention.outputs)} == {Split(1)}
    moves = [(a, b) for a, b, _ in plan.boxings(x.numel())][:-1]  # the last makes the result whole
    assert len(moves) == 4
    assert all(isinstance(a, Split) and isinstance(b, Split) for a, b in moves)


def test_long_attention_of_few_heads_splits_rows() -> None:
    """Heads that no axis divides: rows stay split, and what is causal goes round in zigzag order.

    Of gathered keys the last rank would see all: twice the mean.
    """
    plan = sharded(
        Attention(512, 4), empty(1, 131072, 512), mesh="tensor=8", inputs="any",
        pins="x = [tensor = S(1)]",
    )  # fmt: skip
    plan.reason()
    (attention,) = plan.ops("flow.attention")
    assert {placed(v) for v in (*attention.inputs, *attention.outputs)} == {Split(2)}


class Scaled(nn.Module):
    """A matmul of something trained, so that its gradient goes on past it."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width, dtype=BF16, device="meta"))
        self.w = nn.Linear(width, features, bias=False, dtype=BF16, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        """Return a sum of squares: partial sums would have to be added up first."""
        return (self.w(x * self.scale).float() ** 2).sum()


@pytest.mark.parametrize("features", [4096, 16384])
def test_training_crosses_over_at_tokens_equal_features(features: int) -> None:
    """Forward gathers the smaller; backward gives its gradient back by a reduce-scatter."""
    pins = "x = [tensor = S(0)]; w.weight = [tensor = S(0)]"

    def plan(tokens: int) -> Plan:
        net, x = Scaled(4096, features), empty(tokens, 4096)
        planned = trained(net, x, mesh="tensor=8", pins=pins, optimizer="sgd")
        planned.reason()
        return planned

    def forward(plan: Plan) -> FlowOp:
        return next(op for op in plan.ops("flow.contract") if 'phase = "forward"' in str(op))

    fewer, more = (forward(plan(int(features * part))) for part in (0.5, 2))
    assert (placed(fewer.inputs[0]), placed(fewer.inputs[1])) == (B, Split(0))
    assert (placed(more.inputs[0]), placed(more.inputs[1])) == (Split(0), B)


def attentions(plan: Plan) -> tuple[FlowOp, FlowOp]:
    """Forward and backward attention."""
    by_target = {op.plain["target"]: op for op in plan.ops("flow.extern")}
    return by_target["irc::attention"], by_target["irc::attention_backward"]


def test_long_training_goes_from_sequence_to_heads_and_back() -> None:
    """Ulysses in both directions: four all-to-alls each, and no activation is ever gathered."""
    batch = tokens(1, 131072), tokens(1, 131072)
    plan = trained(model(2, WIDTH, HEADS, 32000), *batch, mesh="seq=8")
    plan.reason()
    for op in attentions(plan):
        assert {placed(v) for v in (*op.inputs, *op.outputs)} == {Split(1)}
    moved = [
        (
            placed(op.inputs[0]),
            placed(op.outputs[0]),
            'phase = "backward"' in str(op.inputs[0].owner),
        )
        for op in plan.module.walk()
        if isinstance(op, BoxingOp) and 131072 in tensor(op.outputs[0]).static_shape()[:-1]
    ]
    turned = [(a, b, back) for a, b, back in moved if isinstance(a, Split) and isinstance(b, Split)]
    assert sum(not back for *_, back in turned) >= 4
    assert sum(back for *_, back in turned) >= 4
    wide = [tensor(op.outputs[0]).static_shape() for op in plan.module.walk()
            if isinstance(op, BoxingOp) and placed(op.outputs[0]) == B]  # fmt: skip
    assert not [shape for shape in wide if 131072 in shape and shape[-1] == WIDTH]


class Body(nn.Module):
    """Layers and the mean square of what they give."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.body = Layers(layers, width, heads)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean square."""
        return (self.body(x).float() ** 2).mean()


def few_heads() -> Plan:
    with torch.device("meta"):
        net = Body(1, 1024, 4)
    x = empty(1, 524288, 1024)
    return trained(net, x, mesh="seq=8", inputs="any", pins="x = [seq = S(1)]")


def test_long_training_of_few_heads_goes_round_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that no axis divides (trap T-27: not replicated): rows stay split in both directions.

    A ring (arXiv:2310.01889) in zigzag order has equal work on all ranks, and no key and no
    gradient of one is ever whole; gathered keys leave rows split as well, but cost more of both.
    """
    ring = few_heads()
    ring.reason()
    for op in attentions(ring):
        assert {placed(v) for v in (*op.inputs, *op.outputs)} == {Split(2)}
    monkeypatch.setitem(DECLARED, BACKWARD, _without_rings(BACKWARD))
    monkeypatch.setitem(DECLARED, ATTENTION, _without_rings(ATTENTION))
    gathered = few_heads()
    gathered.reason(ring)
    forward, backward = attentions(gathered)
    assert placed(forward.inputs[1]) == B
    assert placed(forward.outputs[0]) == placed(backward.outputs[0]) == Split(2)
    assert 0.5 * gathered.seconds < ring.seconds < gathered.seconds
    # Kernels write gradients where they are kept: what a ring spares is the keys that it lacks.
    assert ring.report["bytes_held"] < 0.98 * gathered.report["bytes_held"]


def _without_rings(target: str) -> Declaration:
    known = declaration(target)
    assert known is not None and known.strategies is not None
    every = known.strategies
    return replace(known, strategies=lambda *call: [s for s in every(*call) if s.name != RING])
