"""`irc.place`: what a module's own code asks for is what the plan does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import irc
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ReshapeOp, tensor
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.interpret.spmd import run_spmd
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from tests.training.models import program_of

SHARD = 'canonicalize,auto-shard{mesh="tensor=2" cluster=demo-gpus report=false}'


class Annotated(nn.Module):
    """Two layers of one block, and a weight that is stored in parts."""

    def __init__(self, wish: str = "[tensor = S(1)]") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.out = nn.Linear(6, 4)
        self.wish = wish
        irc.place(self.out.weight, "[tensor = S(0)]")

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(irc.place(layer(x), self.wish))
        return self.out(x)


def placed(value: object, axis: int = 0) -> object:
    placement = tensor(value).placement  # type: ignore[arg-type]
    assert isinstance(placement, Placement)
    return placement.axes[axis][1]


def test_values_and_parameters_are_placed_as_asked() -> None:
    torch.manual_seed(0)
    module, x = Annotated(), torch.randn(3, 6)
    program = program_of(module, x)
    run_passes(program.module, parse_passes(SHARD))
    pinned = [
        op
        for func in functions(program.module).values()
        for op in func.body.block.ops
        if isinstance(op, ReshapeOp) and op.pin is not None
    ]
    assert pinned
    assert {placed(op.outputs[0]) for op in pinned} == {Split(1)}
    held = {name: value for _, name, value in arguments(entry(program.module))}
    assert placed(held["out.weight"]) == Split(0)
    run_passes(program.module, parse_passes("lower-boxing"))
    mesh = Mesh.parse("tensor=2")
    (output,) = run_spmd(program.module, [*program.tensors.values(), x], mesh)
    torch.testing.assert_close(output, module(x))


def test_without_the_wish_the_plan_is_another() -> None:
    program = program_of(Annotated("[tensor = B]"), torch.randn(3, 6))
    run_passes(program.module, parse_passes(SHARD))
    ops = [op for op in program.module.walk() if isinstance(op, ReshapeOp) and op.pin is not None]
    assert {placed(op.outputs[0]) for op in ops} == {B}


def test_text_keeps_the_wish() -> None:
    module = program_of(Annotated(), torch.randn(3, 6)).module
    run_passes(module, parse_passes("canonicalize"))
    again = load(dump(module))
    assert dump(again) == dump(module)
    assert 'pin = "[tensor = S(1)]"' in dump(again)


def test_on_one_device_and_in_eager_it_does_nothing() -> None:
    module, x = Annotated(), torch.randn(3, 6)
    assert irc.place(x, "B") is x
    with torch.no_grad():
        torch.testing.assert_close(irc.compile(module)(x), module(x))


def test_gradients_pass_through() -> None:
    module, x = Annotated(), torch.randn(3, 6, requires_grad=True)
    want = torch.autograd.grad(module(x).square().sum(), x)[0]
    gradient = torch.autograd.grad(irc.compile(module)(x).square().sum(), x)[0]
    torch.testing.assert_close(gradient, want)


def test_a_wish_that_cannot_be_is_refused() -> None:
    with pytest.raises(IrcError, match="placement"):
        irc.place(torch.zeros(2), "[tensor = Q]")
    program = program_of(Annotated("[rows = S(0)]"), torch.randn(3, 6))
    with pytest.raises(IrcError) as error:
        run_passes(program.module, parse_passes(SHARD))
    assert error.value.code == "mesh-mismatch"
