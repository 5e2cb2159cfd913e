"""Grouped products: rows by the matrix that an index names, in the library and as kernels."""

# pyright: basic

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from xdsl.context import Context

import irc
import irc.frontends.torch.experts
from irc.backends.cpu import emit, info_of
from irc.backends.cpu.features import AVX2, AVX512, BASELINE, Features
from irc.calls.compiled import dispatcher_of
from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp
from irc.dialects.task import KernelOp
from irc.frontends.torch.capture import capture
from irc.interpret.levels import execute
from irc.passes.lower_externs import LowerExternsPass
from irc.pipeline import Options, default_pipeline, run_passes

SIZES = [
    # tokens, experts, width, inner, choices
    (1, 4, 33, 65, 1),
    (7, 4, 32, 48, 2),
    (13, 3, 17, 31, 3),
    (64, 8, 40, 64, 2),
    (40, 2, 128, 130, 1),
    (3, 70, 8, 8, 2),
]


class Layer(nn.Module):
    """A layer of experts whose routing is an input."""

    def __init__(self, experts: int, width: int, inner: int, parts: int = 2, act: str = "silu"):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, parts, inner, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, width, inner) / inner**0.5)
        self.act, self.experts = act, experts

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        call = torch.ops.irc.experts
        return call(x, index, weights, self.gate_up, self.down, self.act, self.experts)


def call_of(tokens: int, experts: int, width: int, choices: int) -> tuple[Tensor, ...]:
    """Rows, indices of which some name no expert, and weights."""
    index = torch.randint(-1, experts + 2, (tokens, choices))
    return torch.randn(tokens, width), index, torch.rand(tokens, choices)


def libraries(module: Any) -> list[str]:
    """The library calls of the plan of a compiled module's only version."""
    dispatcher: Any = dispatcher_of(module)
    (version,) = dispatcher.versions
    actions: Any = version._executor.plan.actions
    return [action.op for action in actions if hasattr(action, "op")]


@pytest.mark.parametrize(("tokens", "experts", "width", "inner", "choices"), SIZES)
def test_a_layer_is_native_and_right(
    tokens: int, experts: int, width: int, inner: int, choices: int
) -> None:
    torch.manual_seed(0)
    layer = Layer(experts, width, inner)
    operands = call_of(tokens, experts, width, choices)
    with torch.no_grad():
        fast = irc.compile(layer)
        output = fast(*operands)
        x, index, weights = operands
        wanted = layer.double()(x.double(), index, weights.double())
    assert not libraries(fast)
    scale = max(float(wanted.abs().max()), 1e-3)
    assert float((output - wanted).abs().max()) <= 3e-6 * scale


@pytest.mark.parametrize(("parts", "act"), [(1, "relu"), (2, "gelu"), (2, "gelu_tanh")])
def test_bfloat16_and_activations(parts: int, act: str) -> None:
    torch.manual_seed(1)
    layer = Layer(5, 34, 66, parts, act).bfloat16()
    operands = [v.bfloat16() if v.is_floating_point() else v for v in call_of(21, 5, 34, 2)]
    with torch.no_grad():
        fast = irc.compile(layer)
        output, eager = fast(*operands).double(), layer(*operands).double()
        doubles = [v.double() if v.is_floating_point() else v for v in operands]
        wanted = layer.double()(*doubles)
    assert not libraries(fast)
    # Rounded where eager rounds; sums of products are not rounded on their way.
    assert (output - wanted).abs().max() <= 1.5 * (eager - wanted).abs().max()


class Grouped(nn.Module):
    """Torch's grouped matmul."""

    def __init__(self, groups: int, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, k, n))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return functional.grouped_mm(x, self.weight, offs=ends)


@pytest.mark.parametrize(
    "ends", [[3, 6, 9, 24], [0, 0, 24, 24], [5, 5, 7, 24], [1, 4, 6, 7], [24, 24, 24, 24]]
)
def test_torchs_grouped_matmul(ends: Sequence[int]) -> None:
    torch.manual_seed(2)
    module, x = Grouped(4, 16, 72).bfloat16(), torch.randn(24, 16).bfloat16()
    offsets = torch.tensor(ends, dtype=torch.int32)
    with torch.no_grad():
        fast = irc.compile(module)
        output = fast(x, offsets)
        starts = [0, *ends[:-1]]
        x, weight = x.double(), module.weight.double()
        parts = [x[a:b] @ w for a, b, w in zip(starts, ends, weight, strict=True)]
        wanted = torch.cat([*parts, torch.zeros(24 - ends[-1], 72)])
    assert not libraries(fast)
    torch.testing.assert_close(output.double(), wanted, rtol=2**-8, atol=1e-6)


def test_weights_that_change_stay_in_the_library() -> None:
    """Packing pays where it is done once: matrices that are inputs are multiplied as they lie."""
    torch.manual_seed(3)
    layer, operands = Layer(3, 8, 12), call_of(6, 3, 8, 2)

    def call(x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return torch.ops.irc.experts(x, index, weights, up, down, "silu", 3)

    with torch.no_grad():
        fast: Any = irc.compile(call)
        output = fast(*operands, layer.gate_up, layer.down)
        torch.testing.assert_close(output, layer(*operands))


def lowered(dtype: torch.dtype) -> KernelOp:
    """A grouped kernel of a layer."""
    layer, (x, index, weights) = Layer(4, 40, 100).to(dtype), call_of(24, 4, 40, 2)
    program = capture(layer, (x.to(dtype), index, weights.to(dtype))).program.module
    run_passes(program, default_pipeline(Options()))
    kernels = [op for op in program.walk() if isinstance(op, KernelOp)]
    return next(op for op in kernels if op.template.data == "grouped")


@pytest.mark.parametrize("features", [AVX512, AVX2, BASELINE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_machine_has_the_emitter(features: Features, dtype: torch.dtype) -> None:
    info = info_of(emit(lowered(dtype=dtype), features))
    assert info.template == "grouped"
    assert not info.checks


def test_a_long_sum_is_cut_into_parts() -> None:
    """A panel of 5,000 x 64 floats does not stay in the second cache."""
    torch.manual_seed(4)
    layer, operands = Layer(2, 5000, 35, 1, "relu"), call_of(90, 2, 5000, 1)
    with torch.no_grad():
        output = irc.compile(layer)(*operands)
        x, index, weights = operands
        wanted = layer.double()(x.double(), index, weights.double())
    assert float((output - wanted).abs().max() / wanted.abs().max()) < 3e-6


def test_the_interpreter_agrees_with_the_library() -> None:
    torch.manual_seed(5)
    layer, operands = Layer(3, 6, 10), call_of(9, 3, 6, 2)
    module = capture(layer, operands).program.module
    LowerExternsPass().apply(Context(), module)
    module.verify()
    assert not any(isinstance(op, ExternOp) for op in module.walk())
    names, inputs = dict(layer.named_parameters()), iter(operands)
    values = [
        next(inputs) if role == "input" else names[name].detach()
        for role, name, _ in arguments(entry(module))
    ]
    with torch.no_grad():
        output = execute(module, values)[0]
        torch.testing.assert_close(output.float(), layer(*operands))
