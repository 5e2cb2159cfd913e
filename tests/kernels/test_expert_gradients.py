"""Training of experts: their gradients as grouped products and grouped sums, without a library."""

# pyright: basic
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
import irc.frontends.torch.experts
from irc.backends.cpu import emit, info_of
from irc.backends.cpu.features import AVX2, AVX512, BASELINE
from irc.calls.compiled import dispatcher_of
from irc.dialects.task import KernelOp
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, default_pipeline, make_plan, run_passes
from irc.runtime.executors import executor_of
from irc.runtime.experts import experts as reference
from irc.train import training_program


class Layer(nn.Module):
    """A layer of experts with a router of its own, and a loss."""

    def __init__(self, experts: int, width: int, inner: int, parts: int, act: str) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, parts, inner, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, width, inner) / inner**0.5)
        self.router, self.act, self.experts = nn.Linear(width, 2), act, experts

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        weights = self.router(x).sigmoid()
        call = torch.ops.irc.experts if x.dtype != torch.float64 else reference
        output = call(x, index, weights, self.gate_up, self.down, self.act, self.experts)
        return output.square().mean()


@pytest.mark.parametrize(
    ("experts", "width", "inner", "parts", "act", "tokens"),
    [(4, 32, 48, 2, "silu", 64), (3, 17, 31, 1, "gelu", 40), (2, 33, 65, 2, "gelu_tanh", 17),
     (5, 16, 16, 2, "relu", 96)],
)  # fmt: skip
def test_steps_of_training(
    experts: int, width: int, inner: int, parts: int, act: str, tokens: int
) -> None:
    torch.manual_seed(0)
    module, x = Layer(experts, width, inner, parts, act), torch.randn(tokens, width)
    index = torch.randint(-1, experts + 1, (tokens, 2))  # some name no expert
    index[index == 1] = 0  # and one expert has no rows
    program = training_program(capture(module, (x, index)).program, optimizer=None)
    plan = make_plan(program, Options(), keep_ir=False)
    assert not [step for step in plan.plan.actions if hasattr(step, "op")]
    assert "outer groups" in str([info_of(t).template for t in plan.kernel_sources().values()])
    wide = copy.deepcopy(module).double()
    wide(x.double(), index).backward()
    _, *gradients = executor_of(plan, program.tensors)(x, index)
    for value, parameter in zip(gradients, wide.parameters(), strict=True):
        assert parameter.grad is not None
        largest = float(parameter.grad.abs().max())
        assert float((value.double() - parameter.grad).abs().max()) < 1e-5 * largest


class Products(nn.Module):
    """The three forms that grouped matmuls have in forward and backward graphs."""

    def forward(self, x: Tensor, w: Tensor, g: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        rows = F.grouped_mm(x, w, offs=ends)
        back = F.grouped_mm(g, w.transpose(-2, -1), offs=ends)
        return rows, back, F.grouped_mm(x.t(), g, offs=ends)


@pytest.mark.parametrize("ends", [[5, 5, 40, 64], [0, 33, 33, 64], [64, 64, 64, 64]])
def test_grouped_matmuls_of_weights_that_change(ends: list[int]) -> None:
    torch.manual_seed(0)
    half = torch.bfloat16
    x, g = torch.randn(64, 40).to(half), torch.randn(64, 24).to(half)
    w, offs = torch.randn(4, 40, 24).to(half), torch.tensor(ends, dtype=torch.int32)
    fast = irc.compile(Products())
    with torch.no_grad():
        outputs = fast(x, w, g, offs)
    dispatcher: Any = dispatcher_of(fast)
    (version,) = dispatcher.versions
    assert not [s for s in version._executor.plan.actions if hasattr(s, "op")]
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    a, b, c = x.double(), g.double(), w.double()
    wanted = (
        torch.cat([a[i:j] @ m for (i, j), m in zip(spans, c, strict=True)]),
        torch.cat([b[i:j] @ m.T for (i, j), m in zip(spans, c, strict=True)]),
        torch.stack([a[i:j].T @ b[i:j] for i, j in spans]),
    )
    for value, want in zip(outputs, wanted, strict=True):
        assert float((value.double() - want).abs().max()) < 0.01 * float(want.abs().max())


class Outer(nn.Module):
    """Columns times rows, grouped."""

    def forward(self, x: Tensor, g: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x.t(), g, offs=ends)


@pytest.mark.parametrize("features", [AVX512, AVX2, BASELINE])
def test_each_machine_has_the_template(features: Any) -> None:
    half = torch.bfloat16
    ends = torch.tensor([3, 16], dtype=torch.int32)
    inputs = (torch.randn(16, 24).to(half), torch.randn(16, 40).to(half), ends)
    program = capture(Outer(), inputs).program
    run_passes(program.module, default_pipeline(Options()))
    (kernel,) = (
        op for op in program.module.walk()
        if isinstance(op, KernelOp) and op.template.data == "outer"
    )  # fmt: skip
    assert info_of(emit(kernel, features)).template == "outer groups"
