"""What a good engineer would choose for a step of training, found unaided: one test each.

The programs are whole steps, loss, gradients and AdamW, of real sizes on published hardware; none
is run. Each test prints why: the cost of the plan against that of another one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod

import pytest
import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import B, Partial, Split
from irc.dialects.sbp import BoxingOp
from irc.errors import IrcError
from tests.search.plans import BF16, Plan, empty, model, placed, tokens, trained

WIDTH, HEADS, VOCABULARY = 4096, 32, 32000
COLUMNS = ("attention.q", "attention.k", "attention.v", "mlp.up")
ROWS = ("attention.o", "mlp.down")
MATRICES = {(WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)}


def held(plan: Plan, name: str, axis: int = 0) -> set[object]:
    """How a parameter and its optimiser states lie."""
    named = {n: v for _, n, v in arguments(entry(plan.module))}
    own = [v for n, v in named.items() if n == name or n.endswith(f".{name}")]
    return {placed(v, axis) for v in own}


def moves(plan: Plan, axis: int = 0) -> Iterator[tuple[object, object, tuple[int, ...]]]:
    """Each boxing's change on an axis, and the shape."""
    for op in plan.module.walk():
        if isinstance(op, BoxingOp):
            source, target = (placed(v, axis) for v in (op.inputs[0], op.outputs[0]))
            if source != target:
                yield source, target, tensor(op.outputs[0]).static_shape()


def in_phase(plan: Plan, phase: str, name: str) -> list[FlowOp]:
    named = plan.ops(name)
    return [op for op in named if f'phase = "{phase}"' in str(op)]


def test_training_pairs_columns_with_rows() -> None:
    """Megatron (arXiv:1909.08053): two all-reduces a layer in forward, two in backward."""
    batch = tokens(1, 1024), tokens(1, 1024)
    plan = trained(model(2, WIDTH, HEADS, VOCABULARY), *batch, mesh="tensor=8")
    whole = trained(
        model(2, WIDTH, HEADS, VOCABULARY), *batch, mesh="tensor=8",
        pins="body.*.weight = [tensor = B]",
    )  # fmt: skip
    plan.reason(whole)
    for name in COLUMNS:
        assert held(plan, f"body.layers.0.{name}.weight") == {Split(0)}, name
    for name in ROWS:
        assert held(plan, f"body.layers.0.{name}.weight") == {Split(1)}, name
    # No weight and no gradient of a matrix moves; activations are only added up.
    assert not [shape for *_, shape in moves(plan) if shape in MATRICES]
    inner = Counter((a, b) for a, b, shape in moves(plan) if shape == (1, 1024, WIDTH))
    assert inner[Partial("sum"), B] >= 4
    assert plan.seconds < whole.seconds


def norms(plan: Plan, length: int) -> set[object]:
    """How the forward norms' sums of squares lie."""
    sums = in_phase(plan, "forward", "flow.reduce")
    own = [op.outputs[0] for op in sums if tensor(op.outputs[0]).shape == (1, length, 1)]
    return {placed(value) for value in own}


def test_training_norms_are_sequence_parallel_when_they_pay() -> None:
    """Korthikanti et al. 2022: reduce-scatter and all-gather around them, in backward too."""

    def plan(length: int) -> Plan:
        batch = tokens(1, length), tokens(1, length)
        net = model(2, WIDTH, HEADS, VOCABULARY)
        return trained(net, *batch, mesh="tensor=8", cluster="8xA100")

    many, few = plan(2048), plan(128)
    many.reason()
    few.reason()
    assert norms(many, 2048) == {Split(1)}
    assert norms(few, 128) == {B}
    transitions = Counter((a, b) for a, b, shape in moves(many) if shape == (1, 2048, WIDTH))
    assert transitions[Partial("sum"), Split(1)] >= 4
    assert transitions[Split(1), B] >= 4
    assert not transitions[Partial("sum"), B]


def gathers(plan: Plan) -> Counter[tuple[int, ...]]:
    """How often a matrix is made whole, by shape."""
    return Counter(
        shape
        for a, b, shape in moves(plan)
        if isinstance(a, Split) and b == B and shape in MATRICES
    )


def data_parallel(optimizer: str, memory_bytes: int | None = None) -> Plan:
    batch = tokens(32, 2048), tokens(32, 2048)
    net = model(2, WIDTH, HEADS, VOCABULARY)
    return trained(net, *batch, mesh="data=8", optimizer=optimizer, memory_bytes=memory_bytes)


def smallest_budget(optimizer: str) -> int:
    with pytest.raises(IrcError) as error:
        data_parallel(optimizer, 2**30)
    said = re.search(r"memory_bytes=(\d+)$", str(error.value))
    assert said is not None
    return int(said[1])


@pytest.mark.slow
def test_data_parallel_training_splits_what_memory_asks_for() -> None:
    """ZeRO (arXiv:1910.02054): none, 1 and 2, and 3, as memory gets short; batches stay split."""
    plain, split = data_parallel("sgd"), data_parallel("adamw")
    short = data_parallel("adamw", smallest_budget("adamw"))
    plain.reason()
    split.reason()
    short.reason(split)
    matrices = [f"body.layers.0.{name}.weight" for name in (*COLUMNS, *ROWS)]
    # Without states all is whole, and gradients take an all-reduce.
    assert all(held(plain, name) == {B} for name in matrices)
    assert not gathers(plain)
    # States are split (ZeRO-1), gradients reduce-scattered (2); the weights, whole from forward to
    # backward, are gathered once a step: an eighth of the update, and no more traffic.
    states = [n for role, n, v in arguments(entry(split.module)) if role == "state"]
    moments = [n for n in states if any(n.endswith(m) for m in matrices)]
    assert len(moments) == 2 * len(matrices)
    assert all(held(split, name) <= {Split(0), Split(1)} for name in matrices)
    reduced = Counter(b for a, b, s in moves(split) if a == Partial("sum") and s in MATRICES)
    assert set(reduced) <= {Split(0), Split(1)}
    assert sum(gathers(split).values()) == 2 * len(matrices)
    # ZeRO-3: gathered for forward and again for backward.
    assert sum(gathers(short).values()) > sum(gathers(split).values())
    assert short.report["bytes_held"] < split.report["bytes_held"]
    assert short.seconds >= split.seconds
    for plan in (plain, split, short):
        (attention,) = [op for op in plan.ops("flow.extern") if len(op.outputs) == 2]
        assert placed(attention.outputs[0]) == Split(0)


@pytest.mark.parametrize("tied", [False, True])
def test_the_training_loss_is_vocabulary_parallel(tied: bool) -> None:
    batch, size = (tokens(1, 4096), tokens(1, 4096)), 131072
    plan = trained(model(1, WIDTH, HEADS, size, tied=tied), *batch, mesh="tensor=8")
    name = "embed.weight" if tied else "head.weight"
    whole = trained(
        model(1, WIDTH, HEADS, size, tied=tied), *batch, mesh="tensor=8",
        pins=f"{name} = [tensor = B]",
    )  # fmt: skip
    plan.reason(whole)
    assert held(plan, name) == {Split(0)}
    # Logits and their gradients never move: a row's maximum and sum do, forward and back.
    logits = [s for *_, s in moves(plan) if s[-1:] == (size,) and prod(s[:-1]) == 4096]
    assert not logits
    rows = Counter((a, b) for a, b, shape in moves(plan) if shape == (4096, 1))
    assert rows[Partial("max"), B] == 1
    assert rows[Partial("sum"), B] >= 1
    assert plan.seconds < whole.seconds


class Mixture(nn.Module):
    """The layer of Mixtral 8x7B as Hugging Face has it: weights [e, 2f, h]."""

    def __init__(self) -> None:
        super().__init__()
        config = MixtralConfig(hidden_size=4096, intermediate_size=14336, num_local_experts=8)
        self.moe = MixtralSparseMoeBlock(config).to(BF16)

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        y = self.moe(x)
        y = y[0] if isinstance(y, tuple) else y
        return (y.float() ** 2).mean()


@pytest.mark.parametrize(
    ("mesh", "axis"), [("expert=8", 0), pytest.param("data=2,expert=4", 1, marks=pytest.mark.slow)]
)
def test_a_mixture_of_experts_trains_expert_parallel(mesh: str, axis: int) -> None:
    with torch.device("meta"):
        net = Mixture()
    plan = trained(net, empty(1, 4096, 4096), mesh=mesh)
    plan.reason()
    for name in ("moe.experts.gate_up_proj", "moe.experts.down_proj"):
        (lie,) = held(plan, name, axis)
        assert isinstance(lie, Split) and lie.dim == 0
    calls = {op.plain["target"]: op for op in plan.ops("flow.extern")}
    layer, backward = calls["irc::experts"], calls["irc::vjp"]
    # Gradients of the experts stay with them.
    own = (*layer.inputs[3:5], *backward.inputs[3:5], *backward.outputs[-2:])
    assert all(isinstance(how := placed(v, axis), Split) and how.dim == 0 for v in own)
