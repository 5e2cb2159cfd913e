"""Gradients of convolutions as kernels against torch in float64: geometry, dtypes, layout."""

# pyright: basic
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import irc
from irc.backends.cpu import emit, info_of
from irc.backends.cpu.convolution.outer import make_blocking, read_sums
from irc.backends.cpu.features import AVX2, AVX512, BASELINE, Features
from irc.backends.cpu.loops.nest import read, simplify
from irc.calls.compiled import dispatcher_of
from irc.dialects.task import KernelOp
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, default_pipeline, run_passes

ALL = (True, True, True)
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 14, 14), (32, 16, 3, 3), {"padding": 1}),
    ((2, 3, 33, 31), (40, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 16, 15, 13), (100, 16, 1, 1), {"stride": 2}),
    ((3, 17, 7, 5), (33, 17, 3, 1), {"padding": 2}),
    ((1, 8, 13, 11), (70, 8, 3, 3), {"padding": 2, "dilation": 2}),
    ((1, 1, 9, 9), (5, 1, 5, 5), {"padding": 4}),
    ((1, 4, 3, 3), (1, 4, 3, 3), {}),
    ((2, 4, 1, 1), (2, 4, 3, 3), {"padding": 1}),
    ((2, 32, 9, 7), (64, 16, 3, 3), {"padding": 1, "groups": 2}),
    ((2, 12, 9, 7), (24, 1, 3, 3), {"padding": 1, "groups": 12}),
    ((2, 19, 9, 7), (19, 1, 3, 3), {"stride": 2, "groups": 19}),
    ((2, 7, 41), (35, 7, 5), {"stride": 3, "padding": 2}),
    ((1, 5, 5, 6, 7), (33, 5, 3, 3, 3), {"padding": 1}),
    ((2, 16, 9, 7), (16, 24, 3, 3), {"stride": 2, "padding": 1, "transposed": True, "extra": 1}),
    ((2, 8, 9, 7), (8, 3, 2, 2), {"stride": 2, "transposed": True, "groups": 2}),
]  # fmt: skip


class Backward(nn.Module):
    """The gradients of a convolution's image, kernel and bias, of one y."""

    def __init__(
        self, ndim: int, mask: tuple[bool, ...] = ALL, stride: int = 1, padding: int = 0,
        dilation: int = 1, groups: int = 1, *, transposed: bool = False, extra: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        numbers = ([n] * ndim for n in (stride, padding, dilation))
        self.rest = (*numbers, transposed, [extra] * ndim, groups)
        self.mask = mask

    def forward(self, g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        call = torch.ops.aten.convolution_backward
        gradients = call(g, x, w, [g.shape[1]], *self.rest, list(self.mask))
        return tuple(value for value, wanted in zip(gradients, self.mask, strict=True) if wanted)


def case(
    x: tuple[int, ...], w: tuple[int, ...], dtype: torch.dtype = torch.float32,
    mask: tuple[bool, ...] = ALL, **options: Any,
) -> tuple[Backward, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    torch.manual_seed(0)
    module = Backward(len(w) - 2, mask, **options)
    image, kernel = torch.randn(x).to(dtype), torch.randn(w).to(dtype)
    y = torch.ops.aten.convolution(image.double(), kernel.double(), None, *module.rest)
    return module, (torch.randn(y.shape).to(dtype), image, kernel)


def libraries(module: Any) -> list[str]:
    dispatcher: Any = dispatcher_of(module)
    (version,) = dispatcher.versions
    return [step.op for step in version._executor.plan.actions if hasattr(step, "op")]


def errors(module: Backward, values: tuple[Tensor, ...]) -> list[float]:
    """Of each gradient, relative to the largest in float64; no library computes any."""
    fast = irc.compile(module)
    with torch.no_grad():
        gradients, wanted = fast(*values), module(*(v.double() for v in values))
    assert libraries(fast) == []
    return [
        float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-9))
        for a, b in zip(gradients, wanted, strict=True)
    ]


@pytest.mark.parametrize(("x", "w", "options"), CASES)
def test_float32(x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]) -> None:
    module, values = case(x, w, **options)
    assert max(errors(module, values)) < 3e-6


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 0.02), (torch.float16, 0.003), (torch.float64, 1e-14)]
)
@pytest.mark.parametrize("groups", [1, 6])
def test_other_floats(dtype: torch.dtype, most: float, groups: int) -> None:
    mask = (False, True, False)
    module, values = case((2, 6, 9, 8), (18, 6 // groups, 3, 3), dtype, mask, padding=1,
                          stride=2, groups=groups)  # fmt: skip
    assert max(errors(module, values)) < most


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_geometry(data: st.DataObject) -> None:
    """Strides, padding, dilation, taps, groups and odd sizes."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    groups, n = draw(1, 3), draw(1, 3)
    c, o, stride, dilation, padding = draw(1, 9), draw(1, 19), draw(1, 3), draw(1, 2), draw(0, 3)
    taps = (draw(1, 4), draw(1, 3))
    least = [dilation * (k - 1) + 1 - 2 * padding for k in taps]
    sizes = [max(1, low) + draw(0, 9) for low in least]
    module, values = case(
        (n, c * groups, *sizes), (o * groups, c, *taps), stride=stride, padding=padding,
        dilation=dilation, groups=groups,
    )  # fmt: skip
    assert max(errors(module, values)) < 1e-5


def test_an_empty_batch_has_zeros_for_its_kernel() -> None:
    module, values = case((0, 16, 9, 7), (24, 16, 3, 3))
    with torch.no_grad():
        image, kernel, bias = irc.compile(module)(*values)
    assert image.shape == (0, 16, 9, 7)
    assert kernel.shape == (24, 16, 3, 3)
    assert not kernel.any()
    assert not bias.any()


def test_strided_images_and_gradients() -> None:
    module, (g, x, w) = case((2, 16, 10, 12), (24, 16, 3, 3), padding=1)
    for at, first in product((g, g.to(memory_format=torch.channels_last)), (x, x.flip(0))):
        turned = first.transpose(2, 3).contiguous().transpose(2, 3)
        assert max(errors(module, (at, turned, w))) < 3e-6


def outer_kernels(module: nn.Module, values: tuple[Tensor, ...]) -> list[KernelOp]:
    program = capture(module, values).program
    run_passes(program.module, default_pipeline(Options()))
    kernels = [op for op in program.module.walk() if isinstance(op, KernelOp)]
    return [op for op in kernels if op.template.data == "outer"]


@pytest.mark.parametrize("features", [AVX512, AVX2, BASELINE])
@pytest.mark.parametrize(("x", "w", "options"), [CASES[0], CASES[1], CASES[8], CASES[9]])
def test_each_machine_has_the_template(
    features: Features, x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    module, values = case(x, w, mask=(False, True, False), **options)
    (kernel,) = outer_kernels(module, values)
    assert info_of(emit(kernel, features)).template == "outer"


def test_register_tiles_fit_the_registers() -> None:
    module, values = case((8, 64, 14, 14), (128, 64, 3, 3), mask=(False, True, False), padding=1)
    (kernel,) = outer_kernels(module, values)
    sums = read_sums(simplify(read(kernel)))
    assert sums is not None
    for features, registers in ((AVX512, 32), (AVX2, 16)):
        plan = make_blocking(sums, features)
        assert plan.rows * plan.vectors + plan.vectors + 1 <= registers
        assert plan.rows * plan.vectors >= registers // 2
