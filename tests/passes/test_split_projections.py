"""Projections split into their parts: the same numbers, weights in slices; or left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from irc.dialects.builder import arguments, entry
from irc.dialects.dominance import verify_module
from irc.frontends.torch.capture import capture
from irc.interpret.levels import execute
from irc.pipeline import run_passes
from irc.plugin import builtin_pass
from irc.program import Program
from irc.training.projections import slices_in
from irc.training.slices import cut

WIDTH, HEADS = 16, 4
Form = Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]


def chunked(qkv: torch.Tensor, kv: int) -> tuple[torch.Tensor, ...]:
    parts = qkv.split((WIDTH, kv, kv), -1)
    return tuple(each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in parts)


def unbound(qkv: torch.Tensor, kv: int) -> tuple[torch.Tensor, ...]:
    b, t, _ = qkv.shape
    return qkv.view(b, t, 3, HEADS, 4).permute(2, 0, 3, 1, 4).unbind(0)


def by_heads(qkv: torch.Tensor, kv: int) -> tuple[torch.Tensor, ...]:
    """All heads behind one another: those of queries, of keys, of values."""
    heads = qkv.unflatten(-1, (-1, 4)).transpose(1, 2)
    return heads.split((HEADS, kv // 4, kv // 4), 1)


def interleaved(qkv: torch.Tensor, kv: int) -> tuple[torch.Tensor, ...]:
    """As Megatron-LM has it: of each head the three."""
    heads = qkv.unflatten(-1, (HEADS, 12)).transpose(1, 2)
    return heads.chunk(3, -1)


def overlapping(qkv: torch.Tensor, kv: int) -> tuple[torch.Tensor, ...]:
    parts = qkv[..., :WIDTH], qkv[..., 8 : 8 + kv], qkv[..., -kv:]
    return tuple(each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in parts)


class Layer(nn.Module):
    """Attention whose projection is cut in some form."""

    def __init__(self, form: Form, kv: int, bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * kv, bias=bias)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.form, self.kv = form, kv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.form(self.qkv(x), self.kv)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(seen.transpose(1, 2).reshape(x.shape))


class Conv1D(nn.Module):
    """GPT-2's: weights of inputs x results, and the rows of a batch in one dim."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH)), nn.Parameter(torch.randn(48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.b, x.view(-1, WIDTH), self.w).view(*x.shape[:-1], 3 * WIDTH)
        q, k, v = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in y.split(WIDTH, 2))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


def split(program: Program, mesh: str = "data=2,tensor=2") -> None:
    run_passes(program.module, [builtin_pass("canonicalize")()])
    run_passes(program.module, [builtin_pass("split-projections")(mesh=mesh)])
    verify_module(program.module)


def captured(module: nn.Module) -> tuple[Program, torch.Tensor]:
    torch.manual_seed(0)
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    return capture(module, (x,)).program, x


def difference(program: Program, x: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, of the largest value: sums are added in another order."""
    tensors = cut(slices_in(entry(program.module)), program.tensors)
    inputs = [x if role == "input" else tensors[name]
             for role, name, _ in arguments(entry(program.module))]  # fmt: skip
    return float((execute(program.module, inputs)[0] - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("form", "kv", "bias"),
    [(chunked, WIDTH, True), (chunked, 8, False), (unbound, WIDTH, True), (by_heads, 8, True)],
)
def test_parts_have_weights_of_their_own(form: Form, kv: int, bias: bool, layers: int) -> None:
    module = nn.Sequential(*(Layer(form, kv, bias) for _ in range(layers)))
    program, x = captured(module)
    split(program)
    slices = slices_in(entry(program.module))
    names = {name for name in program.tensors if ".qkv." in name}
    assert slices.keys() == names
    assert len(names) == layers * (2 if bias else 1)
    assert slices["0.qkv.weight"].starts == (0, WIDTH, WIDTH + kv)
    assert slices["0.qkv.weight"].names[0] == f"0.qkv.weight:0-{WIDTH}"
    assert not names & {name for _, name, _ in arguments(entry(program.module))}
    with torch.no_grad():
        assert difference(program, x, module(x)) < 1e-13


def test_a_weight_of_inputs_by_results_is_cut_along_its_second_dim() -> None:
    module = Conv1D()
    program, x = captured(module)
    split(program)
    assert {name: own.dim for name, own in slices_in(entry(program.module)).items()} == {
        "w": 1, "b": 0,
    }  # fmt: skip
    with torch.no_grad():
        assert difference(program, x, module(x)) < 1e-13


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Layer(chunked, WIDTH, True), Layer(chunked, WIDTH, True)
        self.two.qkv = self.one.qkv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


@pytest.mark.parametrize(
    ("module", "mesh"),
    [
        (Layer(interleaved, WIDTH, True), "tensor=2"),
        (Layer(overlapping, 8, True), "tensor=2"),
        (Tied(), "tensor=2"),
        (Layer(chunked, WIDTH, True), "data=4"),
        (Layer(chunked, WIDTH, True), "pipe=2,tensor=1"),
    ],
)
def test_what_is_no_part_of_its_own_is_left_alone(module: nn.Module, mesh: str) -> None:
    program, x = captured(module)
    split(program, mesh)
    assert not slices_in(entry(program.module))
    with torch.no_grad():
        assert difference(program, x, module(x)) < 1e-13
