"""Constraints by use: what they say of a program, of its step, and what is wrong with them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp

from irc.constraints.chunks import parse_chunks
from irc.constraints.steps import called_pins, parse_steps, pinned_count, pinned_recompute
from irc.constraints.uses import applied, parse_uses
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ContractOp
from irc.dialects.placement import Mesh
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.passes.auto_shard import AutoShardPass
from irc.train import training_program
from irc.training.recompute import POLICY, SAVED
from tests.training.models import TARGETS, TOKENS, program_of, small_gpt

MESH = Mesh.parse("data=2,tensor=2")


class Layer(nn.Module):
    """A norm, and two products with a gelu between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 64, bias=False)
        self.down = nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two layers behind a look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the last layer gives."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def net() -> ModuleOp:
    return program_of(Net(), torch.zeros(4, 8, dtype=torch.long)).module


def products(func: FuncOp) -> list[str]:
    """Return how the results of products lie."""
    placements: list[str] = []
    for op in func.body.block.ops:
        if isinstance(op, ContractOp):
            kind = op.outputs[0].type
            assert isinstance(kind, TensorType)
            placements.append(str(kind.placement))
    return placements


@pytest.mark.parametrize(
    ("text", "products_are"),
    [
        ("use layers.*.up = column-parallel; use layers.*.down = row-parallel", ["S(2)", "P(sum)"]),
        ("use layers.*.up = row-parallel over data", ["P(sum)"]),
        ("use layers.0-layers.1 = row-parallel", ["P(sum)", "P(sum)"]),
    ],
)
def test_products_are_used_as_asked(text: str, products_are: list[str]) -> None:
    module = net()
    AutoShardPass(mesh=str(MESH), cluster="demo-gpus", pins=text).apply(context(), module)
    module.verify()
    axis = "data" if "over data" in text else "tensor"
    blocks = [func for name, func in functions(module).items() if name != "forward"]
    for placed, wanted in zip(products(blocks[0]), products_are, strict=False):
        assert f"{axis} = {wanted}" in placed


def test_results_norms_and_look_ups() -> None:
    text = """
    use *.norm = sequence-parallel
    result layers.*.down = [tensor = S(1)]
    use embed = row-parallel
    """
    said = [str(own) for own in applied(net(), MESH, parse_uses(text))]
    assert sum("[tensor = S(1)]" in each for each in said) >= 2
    assert any("forward/" in each and "[tensor = P(sum)]" in each for each in said)
    assert "pin embed.weight = [tensor = S(0)]" in said


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("use layers.*.up = columns", "constraint-syntax", "column-parallel"),
        ("use layers.*.upp = column-parallel", "input-mismatch", "layers.1.up"),
        ("use layers.0.up = column-parallel", "input-mismatch", "name all of them"),
        ("use layers.*.up = column-parallel over rows", "mesh-mismatch", "rows"),
        ("use layers.*.norm = row-parallel", "input-mismatch", "nothing that the program"),
        ("result layers.*.up = (S(0)), (B) -> (S(0))", "placement-syntax", "no signature"),
        ("use layers.*.up column-parallel", "constraint-syntax", "use NAME = column-parallel"),
    ],
)
def test_what_is_wrong_is_said(text: str, code: str, says: str) -> None:
    with pytest.raises(IrcError) as raised:
        applied(net(), MESH, parse_uses(text))
    assert raised.value.code == code
    assert says in str(raised.value)


def test_layers_have_policies_of_their_own() -> None:
    names = [name for name, _ in small_gpt(3).named_parameters()]
    layer = next(name for name in names if ".1." in name).partition(".1.")[0]
    text = f"recompute {layer}.{{0,2}} = full; recompute {layer}.2 = every second matmul"
    policy = pinned_recompute("none", text, names)
    assert policy == f"none; {layer}.{{0,2}} = full; {layer}.2 = every-second-matmul"
    program = training_program(
        program_of(small_gpt(3), TOKENS, TARGETS), optimizer=None, recompute=policy
    )
    program.module.verify()
    said = [
        str(func.attributes[POLICY])
        for name, func in functions(program.module).items()
        if POLICY in func.attributes and name != "forward"
    ]
    assert sorted(said) == ['"every-second-matmul"', '"full"', '"none"']


@pytest.mark.parametrize(("said", "layers"), [("first 1", {0}), ("every 2", {1, 3})])
def test_layers_are_counted_in_the_order_of_the_program(said: str, layers: set[int]) -> None:
    """Not of backward, and without what stands around them."""
    policies = ("none", f"none; {said} = full")
    plain, program = (
        training_program(program_of(small_gpt(4), TOKENS, TARGETS), optimizer=None, recompute=each)
        for each in policies
    )
    func, known = entry(program.module), functions(program.module)
    full = {n for n, own in known.items() if own.attributes.get(POLICY) == StringAttr("full")}
    names = {value: name for _, name, value in arguments(func)}
    calls = [op for op in func.body.block.ops if isinstance(op, CallOp)]
    read = [v for op in calls if op.callee.string_value() in full for v in op.operands]
    numbers = {int(match[1]) for v in read if (match := re.search(r"\.(\d+)\.", names.get(v, "")))}
    assert numbers == layers
    if 0 not in layers:  # whose input is of the entry
        assert func.attributes[SAVED] == entry(plain.module).attributes[SAVED]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("recompute l.* = every third matmul", "constraint-syntax", "every-second-matmul"),
        ("recompute every 0 = full", "constraint-syntax", "none"),
        ("recompute m.* = full", "input-mismatch", "l.0"),
        ("micro-batches = 0", "constraint-syntax", "1 micro-batch or more"),
        ("micro-batches = 2; micro-batches = 4", "constraint-syntax", "2 micro-batches and 4"),
        ("micro-batches = 2", "option-value", "micro_batches=8"),
    ],
)
def test_a_step_that_cannot_be(text: str, code: str, says: str) -> None:
    names = ["l.0.weight", "l.1.weight"]
    with pytest.raises(IrcError) as raised:
        pinned_recompute(f"{pinned_count(8, text)}", text, names)
    assert raised.value.code == code
    assert says in str(raised.value)


def test_micro_batches() -> None:
    assert pinned_count(None, "micro-batches = 4; x = S(0)") == 4
    assert pinned_count(4, "micro-batches = 4") == 4
    assert parse_steps("x = S(0)").micro_batches is None


def test_what_is_of_a_step_is_refused_of_a_call() -> None:
    for text in ("micro-batches=4", "x = S(0); recompute l.* = full"):
        with pytest.raises(IrcError, match="is of a step of training, and this is a call"):
            called_pins(text)
    assert called_pins({"x": "S(0)"}) == '"x" = S(0)'


def test_words_may_stand_before_a_tab() -> None:
    assert parse_uses("use\tl.up = column-parallel")
    assert parse_chunks("chunk\tl.up = 4")
    assert parse_steps("recompute\tl.up = full").recompute
