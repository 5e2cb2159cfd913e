"""Convolutions and pools as kernels against torch in float64: shapes, borders, groups, dtypes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.backends.cpu import emit, info_of
from irc.backends.cpu.convolution.windows import make_blocking, read_windows
from irc.backends.cpu.features import AVX512, Features, host
from irc.backends.cpu.loops.nest import read, simplify
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.interpret.levels import execute, random_inputs
from irc.pipeline import Options, default_pipeline, run_passes

Conv = Callable[..., nn.Module]

SHAPES: list[tuple[Conv, tuple[int, ...], dict[str, Any]]] = [
    (nn.Conv2d, (2, 16, 14, 14), {"out": 32, "kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (1, 3, 33, 31), {"out": 40, "kernel_size": 7, "stride": 2, "padding": 3}),
    (nn.Conv2d, (1, 16, 15, 13), {"out": 100, "kernel_size": 1, "stride": 2}),
    (nn.Conv2d, (3, 17, 7, 5), {"out": 33, "kernel_size": (3, 1), "padding": (2, 0)}),
    (nn.Conv2d, (1, 8, 13, 11), {"out": 70, "kernel_size": 3, "dilation": 2, "padding": 2}),
    (nn.Conv2d, (1, 1, 9, 9), {"out": 5, "kernel_size": 5, "padding": 4}),
    (nn.Conv2d, (1, 4, 1, 1), {"out": 2, "kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (1, 4, 3, 3), {"out": 1, "kernel_size": 3}),
    (nn.Conv2d, (2, 32, 9, 7), {"out": 64, "kernel_size": 3, "groups": 2, "padding": 1}),
    (nn.Conv2d, (1, 12, 9, 7), {"out": 24, "kernel_size": 3, "groups": 12, "padding": 1}),
    (nn.Conv2d, (1, 19, 9, 7), {"out": 19, "kernel_size": 3, "groups": 19, "stride": 2}),
    (nn.Conv1d, (2, 7, 41), {"out": 35, "kernel_size": 5, "stride": 3, "padding": 2}),
    (nn.Conv1d, (1, 1, 600), {"out": 64, "kernel_size": 10, "stride": 5}),
    (nn.Conv3d, (1, 5, 5, 6, 7), {"out": 33, "kernel_size": 3, "padding": 1, "stride": (1, 2, 1)}),
]  # fmt: skip


def convolution(make: Conv, shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    rest = {name: value for name, value in options.items() if name != "out"}
    return make(shape[1], options["out"], **rest)


def error(module: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """The error of irc and that of eager, relative to the largest value in float64."""
    dtype = x.dtype
    with torch.no_grad():
        got, eager = irc.compile(module.eval())(x), module(x)
        wanted = module.double()(x.double())
        module.to(dtype)
    scale = float(wanted.abs().max())
    return tuple(float((y.double() - wanted).abs().max()) / scale for y in (got, eager))  # type: ignore[return-value]


@pytest.mark.parametrize(("make", "shape", "options"), SHAPES)
def test_float32(make: Conv, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = convolution(make, shape, options)
    compiled, _ = error(module, torch.randn(shape))
    assert compiled < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("channels", [1, 16, 17])
def test_other_floats(dtype: torch.dtype, channels: int) -> None:
    torch.manual_seed(1)
    module = nn.Conv2d(channels, 35, 3, padding=1, stride=2).to(dtype)
    compiled, eager = error(module, torch.randn(1, channels, 9, 8).to(dtype))
    assert compiled <= 2 * eager + 1e-14


def test_what_follows_is_one_kernel_with_it() -> None:
    torch.manual_seed(2)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Conv2d(16, 48, 3, padding=1), nn.BatchNorm2d(48)
            self.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
            self.skip = nn.Conv2d(16, 48, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(self.norm(self.inner(x)) + self.skip(x))

    x = torch.randn(2, 16, 9, 10)
    assert error(Block(), x)[0] < 2e-6
    names = [kernel.sym_name.data for kernel in kernels(Block().eval(), x)]
    convolutions = sorted(name.partition("_")[2] for name in names if "convolution" in name)
    assert convolutions == ["convolution_add", "convolution_add_silu"]
    assert not any("add" in name and "convolution" not in name for name in names[1:])


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, 2, ceil_mode=True),
        nn.MaxPool2d(3, 1, dilation=2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, 2)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_pools(pool: nn.Module, turned: bool) -> None:
    x = torch.randn(2, 19, 9, 8)
    before = nn.Conv2d(19, 19, 1) if turned else nn.Identity()
    assert error(nn.Sequential(before, pool), x)[0] < 1e-6


def test_a_long_sum_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a panel follow one another, tiles are kept between them."""
    monkeypatch.setattr("irc.backends.cpu.convolution.windows.PANEL_BYTES", 1 << 13)
    torch.manual_seed(3)
    module, x = nn.Conv2d(24, 70, 3, padding=1), torch.randn(1, 24, 9, 8)
    assert error(module, x)[0] < 2e-6
    (kernel,) = [k for k in kernels(module, x) if k.template.data == "convolution"]
    windows = read_windows(simplify(read(kernel)))
    assert windows is not None
    assert 1 < make_blocking(windows, AVX512).chunk < windows.num_taps


def test_nan_and_infinity_pass_through() -> None:
    x = torch.randn(1, 3, 8, 8)
    x[0, 0, 2, 2], x[0, 1, 5, 5] = float("nan"), float("-inf")
    module = nn.Sequential(nn.Conv2d(3, 40, 3, padding=1), nn.MaxPool2d(3, 2, 1)).eval()
    with torch.no_grad():
        got, wanted = irc.compile(module)(x), module(x)
    torch.testing.assert_close(got, wanted, equal_nan=True, atol=1e-5, rtol=1e-5)


def test_strided_images() -> None:
    module = nn.Conv2d(6, 40, 3, padding=1).eval()
    whole = torch.randn(2, 12, 20, 9)
    for x in (
        whole[:, ::2],
        whole[:, :6, ::2],
        whole[:, 3:9].transpose(2, 3),
        whole[:, :1].expand(-1, 6, -1, -1),
    ):
        with torch.no_grad():
            torch.testing.assert_close(irc.compile(module)(x), module(x), atol=1e-5, rtol=1e-5)


def test_a_written_weight_is_seen() -> None:
    module, x = nn.Conv2d(8, 40, 3).eval(), torch.randn(1, 8, 6, 6)
    fast = irc.compile(module)
    with torch.no_grad():
        fast(x)
        module.weight.mul_(2)
        torch.testing.assert_close(fast(x), module(x), atol=1e-5, rtol=1e-5)


def kernels(module: nn.Module, x: torch.Tensor, target: str = "cpu") -> list[KernelOp]:
    program = irc.capture(module, (x,)).program
    run_passes(program.module, default_pipeline(Options(target=target)))
    return [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_other_machines(
    run: Any, reference: Any, features: Features | None, dtype: torch.dtype, threads: int
) -> None:
    """Kernels written for older machines, against the interpreter."""
    module = nn.Conv2d(17, 70, 3, padding=1, stride=2).eval().to(dtype)
    candidates = kernels(module, torch.randn(1, 17, 9, 8).to(dtype))
    (kernel,) = [k for k in candidates if k.template.data == "convolution"]
    kinds = [arg.type for arg in kernel.args[: kernel.num_inputs.value.data]]
    assert all(isinstance(kind, BufferType) for kind in kinds)
    inputs = [torch.randn(kind.num_elements).to(dtype) for kind in kinds]  # type: ignore[attr-defined]
    for got, wanted in zip(
        run(kernel, inputs, threads, features), reference(kernel, inputs), strict=True
    ):
        scale = float(wanted.abs().max())
        allowed = 2.0**-8 if dtype == torch.bfloat16 else 2e-6
        assert float((got.double() - wanted).abs().max()) <= allowed * scale
    tiled = dtype == torch.bfloat16 and (features or host()).tiles
    wanted_template = "convolution tiles" if tiled else "convolution"
    assert info_of(emit(kernel, features)).template == wanted_template


def test_every_stage_computes_the_same() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 33, 3, padding=1, stride=2), nn.SiLU(),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(33, 6, (1, 3)), nn.AvgPool2d(2, 1, 1),
    ).eval()  # fmt: skip
    program = irc.capture(net, (torch.randn(1, 3, 15, 16),)).program
    inputs = random_inputs(program.module)
    before = execute(program.module, inputs)
    run_passes(program.module, default_pipeline(Options()), verify_each="exec")
    (after,), (wanted,) = execute(program.module, inputs), before
    assert float((after - wanted).abs().max()) < 1e-12 * float(wanted.abs().max())
    program.module.verify()


def test_gpus_leave_windows_to_their_library() -> None:
    module = nn.Sequential(nn.Conv2d(4, 40, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval()
    names = [k.sym_name.data for k in kernels(module, torch.randn(1, 4, 8, 8), "sm_90")]
    assert not any("convolution" in name or "max" in name for name in names)


@pytest.mark.parametrize("size", [1, 5, 7, 14, 56])
def test_tiles_cover_the_places_with_little_waste(size: int) -> None:
    (kernel,) = [
        k for k in kernels(nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(1, 64, size, size))
        if k.template.data == "convolution"
    ]  # fmt: skip
    windows = read_windows(simplify(read(kernel)))
    assert windows is not None
    plan = make_blocking(windows, AVX512)
    assert plan.all_tiles * plan.rows >= size * size
    assert plan.all_tiles * plan.rows <= size * size * 1.05 or size < 7
    assert plan.blocks * plan.tiles >= plan.all_tiles


def test_channels_apart_behind_places() -> None:
    """What follows may part the channels of a group into two loops around the places."""
    torch.manual_seed(5)

    class Parted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(12, 48, (1, 3), groups=12, padding=(0, 2), bias=False)
            self.shift = nn.Parameter(torch.randn(12, 1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.shift.expand(12, 2, 2).reshape(48, 1, 1)

    compiled, _ = error(Parted(), torch.randn(1, 12, 6, 5))
    assert compiled < 2e-6


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.conv1d(x, w, padding=1) + w[:, :, :1],
        lambda x, w: F.conv1d(x, w, padding=1) * F.conv1d(w, w, padding=1)[:, :, :1],
        lambda x, w: F.conv1d(w, w),
    ],
    ids=["read by what follows", "twice", "the image itself"],
)
def test_a_weight_that_is_read_for_itself_too(function: Callable[..., torch.Tensor]) -> None:
    x, w = torch.randn(6, 6, 9), torch.randn(6, 6, 3)
    expected = function(x.double(), w.double())
    torch.testing.assert_close(irc.compile(function)(x, w).double(), expected, atol=1e-5, rtol=1e-5)
