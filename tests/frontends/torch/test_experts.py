"""Mixtures of experts of unmodified Hugging Face models: captured whole, split over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import ExternOp, tensor
from irc.dialects.placement import Mesh, Partial
from irc.dialects.text import context
from irc.frontends.torch.activations import activation
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.differentiate import DifferentiatePass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.runtime.experts import experts

transformers = pytest.importorskip("transformers")
IDS = torch.arange(14).reshape(2, 7) * 5 % 96
CALL = {"input_ids": IDS, "labels": IDS}


def mixtral(implementation: str | None = None, **changed: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        num_local_experts=4,
        use_cache=False,
        **changed,
    )
    if implementation:
        config._experts_implementation = implementation
    return transformers.MixtralForCausalLM(config).eval()


def values(captured: Captured) -> list[torch.Tensor]:
    """All arguments of the program, in order."""
    inputs, program = iter(captured.flatten((), CALL)), captured.program
    names = [name for _, name, _ in arguments(entry(program.module))]
    return [program.tensors[n] if n in program.tensors else next(inputs) for n in names]


def layers(module: ModuleOp) -> list[ExternOp]:
    externs = [op for op in module.walk() if isinstance(op, ExternOp)]
    return [op for op in externs if op.plain["target"] == "irc::experts"]


def split_experts(layer: ExternOp) -> list[str]:
    """The axes over which a layer's experts are split, so that its result is partial."""
    gate_up, down, result = (tensor(v).placement for v in (*layer.inputs[3:], layer.outputs[0]))
    assert gate_up is not None
    assert down is not None
    assert result is not None
    axes = list(down.split_axes(0))
    assert axes == list(gate_up.split_axes(0))
    assert all(result[axis] == Partial("sum") for axis in axes)
    return axes


@pytest.mark.parametrize("implementation", [None, "eager", "batched_mm", "grouped_mm"])
def test_an_unmodified_model_is_captured(implementation: str | None) -> None:
    model = mixtral(implementation)
    captured = capture(model, (), CALL)
    assert set(captured.externs) == {"irc::experts"}
    outputs = captured.unflatten(run_function(captured.program.module, values(captured)))
    expected = model(**CALL)
    torch.testing.assert_close(outputs["logits"], expected["logits"])
    torch.testing.assert_close(outputs["loss"], expected["loss"])


def with_own_gate(model: nn.Module) -> nn.Module:
    for layer in model.model.layers:
        layer.mlp.experts.__class__ = type(
            "Own", (type(layer.mlp.experts),), {"_apply_gate": _gate}
        )
    return model


def test_a_layer_with_a_gate_of_its_own_keeps_its_form() -> None:
    captured = capture(with_own_gate(mixtral("eager")), (), CALL)
    assert "irc::experts" not in captured.externs
    outputs = captured.unflatten(run_function(captured.program.module, values(captured)))
    expected = with_own_gate(mixtral("grouped_mm"))(**CALL)
    torch.testing.assert_close(outputs["logits"], expected["logits"])


def _gate(self: Any, both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return self.act_fn(gate) * (up + 1)


@pytest.mark.parametrize("mesh", ["data=2,tensor=2", "expert=4"])
def test_experts_are_split_over_ranks(mesh: str) -> None:
    model = mixtral()
    captured = capture(model, (), CALL)
    module, inputs = captured.program.module, values(captured)
    CanonicalizePass().apply(context(), module)
    AutoShardPass(mesh=mesh, cluster="demo-gpus").apply(context(), module)
    for layer in layers(module):
        assert split_experts(layer)
    LowerBoxingPass().apply(context(), module)
    outputs = captured.unflatten(run_spmd(module, inputs, Mesh.parse(mesh)))
    expected = model(**CALL)
    torch.testing.assert_close(outputs["logits"], expected["logits"])
    torch.testing.assert_close(outputs["loss"], expected["loss"])


def test_split_experts_get_their_gradients() -> None:
    model, mesh = mixtral(), Mesh.parse("data=2,tensor=2")
    captured = capture(model, (), CALL)
    module, inputs = captured.program.module, values(captured)
    DifferentiatePass(loss="loss").apply(context(), module)
    CanonicalizePass().apply(context(), module)
    names = [name for role, name in results(entry(module)) if role == "gradient"]
    AutoShardPass(mesh=str(mesh), cluster="demo-gpus").apply(context(), module)
    assert all(map(split_experts, layers(module)))
    LowerBoxingPass().apply(context(), module)
    gradients = run_spmd(module, inputs, mesh)[-len(names) :]
    model(**CALL)["loss"].backward()
    known = dict(model.named_parameters())
    assert len(names) == len(known)
    for name, value in zip(names, gradients, strict=True):
        torch.testing.assert_close(value, known[name].grad, rtol=1e-4, atol=1e-6, msg=name)


def test_indices_outside_count_nothing() -> None:
    torch.manual_seed(0)
    hidden, gate_up, down = torch.randn(5, 3), torch.randn(4, 2, 6, 3), torch.randn(4, 3, 6)
    index, weights = torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    whole = experts(hidden, index, weights, gate_up, down, "relu", 4)
    parts = [
        experts(hidden, index - i, weights, gate_up[i : i + 2], down[i : i + 2], "relu", 4)
        for i in (0, 2)
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    nowhere = torch.full_like(index, 9)
    none = experts(hidden, nowhere, weights, gate_up, down, "relu", 4)
    assert not none.any()


def test_activations_by_name() -> None:
    assert activation(nn.GELU(approximate="tanh")) == "gelu_tanh"
    assert activation(nn.SiLU()) == "silu"
    assert activation(nn.Mish()) == ""
