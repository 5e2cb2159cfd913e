"""Layers of experts: every way to split one gives its numbers, whatever the routing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc import capture
from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, entry, results
from irc.dialects.comm import CombineRowsOp, DispatchRowsOp, MarkedRowsOp
from irc.dialects.flow import ExternOp, FlowOp, id_of, tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.exports import export_plan
from irc.frontends.torch.capture import Captured
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.interpret.spmd import run_spmd
from irc.ops.strategies import TRAVELLING, TRAVELLING_BACK
from irc.ops.work import flops, local_flops
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.runtime.launch import run_plan
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import NdSignature, match_signature, signatures

TOKENS, EXPERTS, CHOICES, WIDTH, INNER = 16, 4, 2, 3, 5

ROUTINGS = {
    "all kinds": [[0, 1], [2, 3], [3, 1], [1, 2]] * 4,
    "all tokens to one expert": [[2, 2]] * 16,
    "one rank has no token": [[0, 3], [3, 0], [0, 1], [1, 3]] * 4,
    "one rank's tokens go to one other": [[3, 2]] * 4 + [[0, 1]] * 12,
    "experts that nobody holds": [[9, 0], [-1, 3], [4, 4], [2, 7]] * 4,
}


def layer(gradients: Sequence[int] = ()) -> FlowOp:
    """A layer of experts, or its derivative for some operands."""
    shapes = [
        ((TOKENS, WIDTH), "f32"), ((TOKENS, CHOICES), "i64"), ((TOKENS, CHOICES), "f32"),
        ((EXPERTS, 2, INNER, WIDTH), "f32"), ((EXPERTS, WIDTH, INNER), "f32"),
    ]  # fmt: skip
    places = [{"operand": i} for i in range(5)]
    call = {"target": "irc::experts", "arguments": json.dumps([[*places, "silu", EXPERTS], {}])}
    result_shapes = [((TOKENS, WIDTH), "f32")]
    if gradients:
        result_shapes, shapes = [shapes[i] for i in gradients], [*shapes, *result_shapes]
        arguments = json.dumps(["flow.extern", call, 5, [0], list(gradients)])
        call = {"target": "irc::vjp", "arguments": arguments}
    block = Block(arg_types=[TensorType.of(*kind) for kind in shapes])
    op = ExternOp.make(
        block.args, [TensorType.of(*kind) for kind in result_shapes], id="n0", **call
    )
    block.add_op(op)
    return op


def values(op: FlowOp, routing: list[list[int]]) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(tensor(v).static_shape(), generator=rng, dtype=torch.float64) for v in op.inputs
    ]
    tensors[1] = torch.tensor(routing)
    return tensors


def is_right(op: FlowOp, signature: NdSignature, mesh: Mesh, whole: Sequence[torch.Tensor]) -> bool:
    expected = run_op(op, whole, dtype=torch.float64)
    held = [shard(v, p, mesh) for v, p in zip(whole, signature.operands, strict=True)]
    outputs = run_ranks(op, signature, mesh, held, dtype=torch.float64)
    return all(
        torch.allclose(combine(parts, placed, mesh, value.shape), value, rtol=1e-12, atol=1e-12)
        for value, parts, placed in zip(expected, outputs, signature.results, strict=True)
    )


def travelling(op: FlowOp, mesh: Mesh) -> list[NdSignature]:
    names = {TRAVELLING, TRAVELLING_BACK}
    return [s for s in signatures(op, mesh) if names & set(s.strategy)]


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=list(ROUTINGS))
@pytest.mark.parametrize("mesh", ["expert=4", "data=2,expert=2", "expert=2,data=2"])
def test_every_split_is_right_whatever_the_routing(mesh: str, routing: list[list[int]]) -> None:
    on = Mesh.parse(mesh)
    for op in (layer(), layer([0, 2, 3, 4])):
        whole, candidates = values(op, routing), travelling(op, on)
        assert candidates
        for signature in candidates:
            assert is_right(op, signature, on, whole), f"{op.plain['target']}\n{signature}"


@pytest.mark.parametrize("routing", list(ROUTINGS.values())[1:4], ids=list(ROUTINGS)[1:4])
def test_own_experts_are_right_whatever_the_routing(routing: list[list[int]]) -> None:
    mesh = Mesh.parse("expert=4")
    for op in (layer(), layer([0, 2, 3, 4])):
        whole = values(op, routing)
        (signature,) = (s for s in signatures(op, mesh) if s.strategy == ("own-experts",))
        assert is_right(op, signature, mesh, whole)


def test_gradients_that_nobody_wants_are_not_sent() -> None:
    mesh = Mesh.parse("expert=4")
    for wanted in ([3], [0], [2, 4]):
        op = layer(wanted)
        (signature,) = travelling(op, mesh)
        assert is_right(op, signature, mesh, values(op, ROUTINGS["all kinds"]))


@pytest.mark.parametrize("bug", ["a rank sends too little", "ranks come in another order"])
def test_a_wrong_exchange_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from irc.interpret import collectives

    mesh, op = Mesh.parse("expert=4"), layer()
    (signature,) = travelling(op, mesh)
    known = dict(collectives.COLLECTIVES)

    def dispatch(attrs: Any, parts: Any, marks: Any, coming: Any) -> Any:
        if bug == "a rank sends too little":
            marks = [mask & (torch.arange(mask.shape[1]) > 0) for mask in marks]
            return known["comm.dispatch_rows"](attrs, parts, marks, coming)
        return [value.flip(0) for value in known["comm.dispatch_rows"](attrs, parts, marks, coming)]

    monkeypatch.setattr(collectives, "COLLECTIVES", {**known, "comm.dispatch_rows": dispatch})
    assert not is_right(op, signature, mesh, values(op, ROUTINGS["all kinds"]))


def inner_ops(op: FlowOp, signature: NdSignature, mesh: Mesh) -> Iterator[FlowOp]:
    from irc.sharding.local import build_local
    from irc.sharding.local_ops import local_type

    placed = zip(op.inputs, signature.operands, strict=True)
    block = Block(arg_types=[local_type(v.type, p, mesh) for v, p in placed])
    build_local(op, signature, mesh, list(block.args), block.add_op)
    yield from block.ops  # type: ignore[misc]


def test_the_expected_share_of_rows_is_that_of_a_fair_router() -> None:
    mesh = Mesh.parse("expert=2")
    (signature,) = travelling(layer(), mesh)
    exchanges = [op for op in inner_ops(layer(), signature, mesh) if isinstance(op, MarkedRowsOp)]
    assert [type(op) for op in exchanges] == [DispatchRowsOp, CombineRowsOp]
    chosen = list(combinations(range(EXPERTS), CHOICES))
    visits = sum(any(expert < EXPERTS // 2 for expert in pair) for pair in chosen)
    for op in exchanges:
        assert op.plain["fill"] == pytest.approx(visits / len(chosen))


def test_an_exchange_is_priced_by_what_is_expected_to_travel() -> None:
    cost = ClusterCost(find_cluster("8xH100"), Mesh.parse("expert=4"))
    (signature,) = travelling(layer(), cost.mesh)
    (sent, _) = (
        op for op in inner_ops(layer(), signature, cost.mesh) if isinstance(op, MarkedRowsOp)
    )
    seconds: list[float] = []
    for fill in (0.0, 0.25, 1.0):
        kind = sent.outputs[0].type
        dispatch = DispatchRowsOp.make(sent.inputs, [kind], axis="expert", fill=fill)
        assert isinstance(dispatch, DispatchRowsOp)
        seconds.append(cost.exchange_seconds(dispatch))
    assert 0 < seconds[0] < seconds[1] < seconds[2]


def test_a_gradient_is_priced_as_about_three_of_the_layer() -> None:
    forward, backward, mesh = layer(), layer([0, 2, 3, 4]), Mesh.parse("expert=4")
    assert flops(backward) == 3 * flops(forward)
    (split,) = travelling(backward, mesh)
    local = [op for op in inner_ops(backward, split, mesh) if isinstance(op, ExternOp)]
    assert [flops(op) for op in local] == [pytest.approx(flops(backward) / 4, rel=0.01)]
    assert local_flops(backward, signatures(backward, mesh)[0], mesh) == flops(backward)


class Router(nn.Module):
    """A router and its layer of experts, stored as Hugging Face does."""

    def __init__(self, width: int, inner: int, count: int, choices: int) -> None:
        super().__init__()
        self.choices, dtype = choices, torch.bfloat16
        self.router = nn.Linear(width, count, bias=False, dtype=dtype, device="meta")
        self.up = nn.Parameter(torch.empty(count, 2 * inner, width, dtype=dtype, device="meta"))
        self.down = nn.Parameter(torch.empty(count, width, inner, dtype=dtype, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, index = self.router(x).softmax(-1).topk(self.choices, -1)
        count, both, width = self.up.shape
        up = self.up.view(count, 2, both // 2, width)
        output = torch.ops.irc.experts(x, index, weights, up, self.down, "silu", count)
        return (x + output).float().square().sum()


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        # Mixtral 8x7B: a token visits a quarter of the ranks; to gather all tokens is dearer.
        ((4096, 14336, 8, 2), TRAVELLING),
        # Many choices of small experts: most ranks see most tokens, and a gather needs no packing.
        ((2048, 1408, 64, 6), "own-experts"),
    ],
    ids=["2 of 8", "6 of 64"],
)
def test_tokens_travel_where_few_ranks_want_each(sizes: tuple[int, ...], chosen: str) -> None:
    width, inner, count, choices = sizes
    model = Router(width, inner, count, choices)
    x = torch.empty(32768, width, dtype=torch.bfloat16, device="meta")
    module = capture(model, (x,)).program.module
    CanonicalizePass().apply(context(), module)
    mesh, budget = Mesh.parse("expert=8"), count * 3 * width * inner * 2 // 8 + 2**25
    AutoShardPass(
        mesh=str(mesh), cluster="8xH100", inputs="any", pins="x = [expert = S(0)]",
        stored_bytes=budget,
    ).apply(context(), module)  # fmt: skip
    (op,) = externs(module, "irc::experts")
    signature = match_signature(op, mesh)
    print(signature)
    assert signature is not None
    assert signature.strategy == (chosen,)


transformers = pytest.importorskip("transformers")
IDS = torch.arange(16).reshape(2, 8) * 5 % 96
CALL = {"input_ids": IDS, "labels": IDS}


def mixtral() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=96, num_local_experts=4, use_cache=False,
    )  # fmt: skip
    # Grouped matmuls of torch know no float64.
    config._experts_implementation = "eager"
    return transformers.MixtralForCausalLM(config).eval()


def externs(module: ModuleOp, target: str) -> list[ExternOp]:
    every = [op for op in module.walk() if isinstance(op, ExternOp)]
    return [op for op in every if op.plain["target"] == target]


def pinned(module: ModuleOp, axis: str) -> str:
    """Pins that let the tokens of every layer travel, forward and backward."""
    lines: list[str] = []
    for target in ("irc::experts", "irc::vjp"):
        for op in externs(module, target):
            if "irc::experts" in str(op.plain):
                split = [f"[{axis} = S(0)]"] * (len(op.inputs) + len(op.outputs))
                sides = (", ".join(split[: len(op.inputs)]), ", ".join(split[len(op.inputs) :]))
                lines.append(f"pin op *{id_of(op)} = {sides[0]} -> {sides[1]}")
    return "\n".join(lines)


def whole_values(captured: Captured) -> list[torch.Tensor]:
    leaves, program = iter(captured.flatten((), CALL)), captured.program
    names = [name for _, name, _ in arguments(entry(program.module))]
    return [program.tensors[n] if n in program.tensors else next(leaves) for n in names]


@pytest.mark.parametrize(
    "mesh", ["expert=4", pytest.param("data=2,expert=2", marks=pytest.mark.slow)]
)
def test_an_unmodified_mixtral_sends_its_tokens_to_their_experts(mesh: str) -> None:
    model, on = mixtral().double(), Mesh.parse(mesh)  # norms and the router compute in float32
    captured = capture(model, (), CALL)
    module, inputs = captured.program.module, whole_values(captured)
    DifferentiatePass(loss="loss").apply(context(), module)
    CanonicalizePass().apply(context(), module)
    names = [name for role, name in results(entry(module)) if role == "gradient"]
    pins = pinned(module, "expert")
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    LowerBoxingPass().apply(context(), module)
    moved = [op for op in module.walk() if isinstance(op, MarkedRowsOp)]
    # Tokens there and back; for the gradients, tokens and theirs there, the tokens' back.
    assert len(moved) == 5 * (2 if len(externs(module, "irc::experts")) == 2 else 1)
    gradients = run_spmd(module, inputs, on)[-len(names) :]
    model(**CALL)["loss"].backward()
    known = dict(model.named_parameters())
    assert len(names) == len(known)
    for name, value in zip(names, gradients, strict=True):
        torch.testing.assert_close(value, known[name].grad, rtol=1e-4, atol=1e-7, msg=name)


SMALL = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 96, "use_cache": False,
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "Qwen2Moe": {
        "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    },
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8},
    "Olmoe": {"num_experts": 4, "eos_token_id": None},
    "Phimoe": {"num_local_experts": 4},
    "GraniteMoe": {"num_local_experts": 4},
    "DeepseekV3": {
        "n_routed_experts": 4, "moe_intermediate_size": 24, "n_shared_experts": 1, "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    },
    # A gate of its own and biases: grouped matmuls, split by groups.
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
    # Matrices are stored [experts, width, 2 * inner].
    "Llama4": {"num_local_experts": 4, "intermediate_size_mlp": 40, "head_dim": 8},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["expert=4", "data=2,expert=2"])
@pytest.mark.parametrize("form", FORMS)
def test_mixtures_of_hugging_face_are_split_by_experts(form: str, mesh: str) -> None:
    torch.manual_seed(0)
    name = "TextConfig" if form == "Llama4" else "Config"
    choices = {"num_experts_per_tok": 1 if form == "Llama4" else 2}
    config = getattr(transformers, form + name)(**SMALL, **choices, **FORMS[form])
    model, call = getattr(transformers, f"{form}ForCausalLM")(config).eval(), {"input_ids": IDS}
    captured = capture(model, (), call)
    module = captured.program.module
    leaves, known = iter(captured.flatten((), call)), captured.program.tensors
    names = [name for _, name, _ in arguments(entry(module))]
    inputs = [known[n] if n in known else next(leaves) for n in names]
    CanonicalizePass().apply(context(), module)
    pins = "*.experts.*_proj = [expert = S(0)]"
    AutoShardPass(mesh=mesh, cluster="demo-gpus", pins=pins).apply(context(), module)
    LowerBoxingPass().apply(context(), module)
    outputs = captured.unflatten(run_spmd(module, inputs, Mesh.parse(mesh)))
    torch.testing.assert_close(outputs["logits"], model(**call)["logits"])


@pytest.mark.distributed
@pytest.mark.slow
def test_four_processes_exchange_tokens(tmp_path: Path) -> None:
    model = mixtral()
    module = capture(model, (), CALL).program.module
    CanonicalizePass().apply(context(), module)
    pins = pinned(module, "expert")
    export_plan(
        model, (), CALL, out=tmp_path / "plan", mesh="expert=4", cluster="demo-gpus", pins=pins
    )
    plan = load_plan(tmp_path / "plan").plan
    started = [action.op for action in plan.actions if isinstance(action, Start)]
    # Two layers, in two pieces each by price.
    assert started.count("comm.dispatch_rows") == started.count("comm.combine_rows") == 4
    report = run_plan(tmp_path / "plan")
    print(report)
    assert report.ok
    assert report.comparison is not None
    assert report.comparison.relative < 1e-4
