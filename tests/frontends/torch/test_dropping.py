"""Attention with dropout: drawn once, from irc's counter, and differentiable."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from xdsl.ir import Operation

from irc.dialects.builder import functions, results
from irc.dialects.literals import RandomOp
from irc.frontends.torch.capture import capture
from irc.interpret.flow import run_function
from irc.passes.differentiate import DifferentiatePass
from irc.pipeline import run_passes
from irc.program import Program

P = 0.4


class Attention(nn.Module):
    """Attention whose values are a parameter."""

    def __init__(self, groups: int, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q = nn.Parameter(torch.randn(2, 4, 5, 3).double())
        self.k = nn.Parameter(torch.randn(2, groups, 5, 3).double())
        self.v = nn.Parameter(torch.randn(2, groups, 5, 6).double())
        self.causal = causal

    def forward(self, mask: Tensor) -> Tensor:
        """Return one number."""
        output = F.scaled_dot_product_attention(
            self.q, self.k, self.v, None if self.causal else mask, P, self.causal, enable_gqa=True
        )
        return (output**2).sum()

    def dropped(self, mask: Tensor, kept: Tensor) -> Tensor:
        """Do the same with a mask of what is kept."""
        heads = self.q.shape[1] // self.k.shape[1]
        k, v = (x.repeat_interleave(heads, 1) for x in (self.k, self.v))
        seen = torch.ones(5, 5, dtype=torch.bool).tril() if self.causal else mask
        scores = self.q @ k.transpose(-1, -2) * 3**-0.5
        chances = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return ((torch.where(kept, chances / (1 - P), 0) @ v) ** 2).sum()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_the_mask_that_was_drawn(groups: int, causal: bool) -> None:
    module = Attention(groups, causal)
    mask = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[..., 0] = True
    captured = capture(module, (mask,))
    assert not captured.externs
    program = captured.program
    run_passes(program.module, [DifferentiatePass()])
    drawn: list[Tensor] = []

    def keep(key: str, index: int, value: Tensor, op: object) -> None:
        if isinstance(op, RandomOp):
            drawn.append(value.reshape(2, 4, 5, 5) >= P)

    values = program.bind(dict.fromkeys(program.input_names, mask))
    outputs = run_function(program.module, values, dtype=torch.float64, trace=keep)
    (kept,) = drawn
    loss = module.dropped(mask, kept)
    loss.backward()
    torch.testing.assert_close(outputs[0], loss.detach())
    for name, value in module.named_parameters():
        position = results(functions(program.module)["forward"]).index(("gradient", name))
        torch.testing.assert_close(outputs[position], value.grad, rtol=1e-9, atol=1e-9)


def test_layers_that_drop_are_one_function_with_a_seed_for_each_call() -> None:
    """Each call draws other numbers, in this step and in the next."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(6, 18)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(2, 1, 5, 18).split(6, -1)
            return x + F.scaled_dot_product_attention(q, k, v, dropout_p=P).view(2, 5, 6)

    module = nn.Sequential(Layer(), Layer(), Layer())
    program = capture(module, (torch.randn(2, 5, 6),)).program
    assert list(functions(program.module)) == ["block_0", "forward"]
    drawn: list[Tensor] = []

    def trace(_name: str, _index: int, value: Tensor, op: Operation) -> None:
        if isinstance(op, RandomOp):
            drawn.append(value)

    for seed in (0, 1):
        tensors = {**program.tensors, "seed": torch.tensor(seed)}
        inputs = {program.input_names[0]: torch.randn(2, 5, 6)}
        values = Program(program.module, tensors).bind(inputs)
        run_function(program.module, values, trace=trace)
    assert len(drawn) == 6
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
