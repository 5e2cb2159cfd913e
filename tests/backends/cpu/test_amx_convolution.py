"""Convolutions by tile registers (AMX) against float64: tails, borders, padding, threads."""

# pyright: basic

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu import emit, info_of
from irc.backends.cpu.convolution import amx_rows
from irc.backends.cpu.convolution.amx_plan import Rows, divide_places, lay_out
from irc.backends.cpu.convolution.windows import Windows, read_windows
from irc.backends.cpu.features import host
from irc.backends.cpu.loops.nest import read, simplify
from irc.backends.cpu.native import compile_kinds, machine
from irc.backends.cpu.variants import VARIANTS
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.pipeline import Options, default_pipeline, run_passes

AMX, DOTS = (VARIANTS[f"x86-64-v4-{name}"] for name in ("amx", "dots"))
has_tiles = pytest.mark.skipif(not host().tiles, reason="this machine has no tile registers")

CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "whole lines": (nn.Conv2d, (2, 64, 9, 7), {"out": 130, "kernel_size": 3, "padding": 1}),
    "one panel": (nn.Conv2d, (1, 32, 8, 8), {"out": 64, "kernel_size": 3, "padding": 1}),
    "parts of a sum": (nn.Conv2d, (1, 160, 5, 5), {"out": 70, "kernel_size": 3, "padding": 1}),
    "strided": (nn.Conv2d, (1, 96, 13, 11), {"out": 72, "kernel_size": 1, "stride": 2}),
    "even tail": (nn.Conv2d, (1, 48, 9, 11), {"out": 40, "kernel_size": 3, "stride": 2}),
    "odd tail": (nn.Conv2d, (1, 37, 7, 5), {"out": 100, "kernel_size": 3, "dilation": 2,
                                            "padding": 2}),
    "first layer": (nn.Conv2d, (1, 3, 25, 21), {"out": 40, "kernel_size": 7, "stride": 2,
                                               "padding": 3}),
    "groups": (nn.Conv2d, (1, 64, 6, 7), {"out": 64, "kernel_size": 3, "groups": 2}),
    "one dim": (nn.Conv1d, (2, 34, 21), {"out": 35, "kernel_size": 5, "padding": 2}),
    "three dims": (nn.Conv3d, (1, 16, 4, 5, 6), {"out": 33, "kernel_size": 2, "padding": 1}),
}  # fmt: skip


class Followed(nn.Module):
    """A convolution, and what follows it in its kernel."""

    def __init__(self, make: type[nn.Module], channels: int, options: dict[str, Any]) -> None:
        super().__init__()
        rest = {name: value for name, value in options.items() if name != "out"}
        self.inner = make(channels, options["out"], **rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


@cache
def convolved(name: str, dtype: torch.dtype = torch.bfloat16) -> KernelOp:
    make, shape, options = CASES[name]
    module = Followed(make, shape[1], options).to(dtype).eval()
    program = irc.capture(module, (torch.randn(shape).to(dtype),)).program
    run_passes(program.module, default_pipeline(Options()))
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    (convolution,) = [kernel for kernel in kernels if kernel.template.data == "convolution"]
    return convolution


def windows_of(kernel: KernelOp) -> Windows:
    windows = read_windows(simplify(read(kernel)))
    assert windows is not None
    return windows


def operands(kernel: KernelOp) -> list[torch.Tensor]:
    """Random operands; NaN beside each, and where a packed weight holds nothing."""
    w, tensors = windows_of(kernel), list[torch.Tensor]()
    for number in range(kernel.num_inputs.value.data):
        kind = kernel.args[number].type
        assert isinstance(kind, BufferType)
        size = kind.num_elements
        whole = torch.full((size + 4096,), float("nan")).bfloat16()
        values = whole[2048 : 2048 + size]
        values.copy_(torch.randn(size))
        if number == w.weight.buffer:
            pairs = -(-w.channels // 2)
            groups = prod(w.sizes(w.groups))
            panels = values.view(groups, -1, w.num_taps, pairs, w.panel, 2)
            if w.channels % 2:
                panels[:, :, :, -1, :, 1] = float("nan")
            if rest := w.nest.extents[w.n] % w.panel:
                panels[:, -1, :, :, rest:] = float("nan")
        tensors.append(values)
    return tensors


def error(run: Any, reference: Any, kernel: KernelOp, threads: int) -> float:
    """The largest error relative to the largest value; NaN where one is."""
    inputs = operands(kernel)
    (got,), (wanted,) = run(kernel, inputs, threads), reference(kernel, inputs)
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@has_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_windows_equal_float64(name: str, threads: int, run: Any, reference: Any) -> None:
    kernel = convolved(name)
    assert info_of(emit(kernel)).template == "convolution tiles"
    assert error(run, reference, kernel, threads) <= 2.0**-8


@has_tiles
@pytest.mark.parametrize("planted", ["mask", "padding", "gather"])
def test_a_wrong_tail_is_caught(
    planted: str, run: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = amx_rows._line

    def unmasked(f: Any, rows: Any, sources: Any, number: int) -> Any:
        """The tail of a tap without its last channels."""
        return line(f, rows, sources[:-1] if len(sources) > 1 else sources, number)

    if planted == "mask":
        monkeypatch.setattr(amx_rows, "_line", unmasked)
    elif planted == "padding":
        monkeypatch.setattr(Rows, "padded", False)
    else:
        monkeypatch.setattr(Rows, "taps_at_a_time", 1)
    assert not error(run, reference, convolved("even tail"), 1) <= 2.0**-8


@has_tiles
def test_infinity_stays_where_it_is(run: Any, reference: Any) -> None:
    """Zeros that fill a tile multiply zeros, not the neighbours of what is summed."""
    for name in ("first layer", "odd tail"):
        kernel = convolved(name)
        inputs = operands(kernel)
        image = inputs[windows_of(kernel).image.buffer]
        image[len(image) // 2] = float("inf")
        (got,), (wanted,) = run(kernel, inputs, 1), reference(kernel, inputs)
        assert torch.equal(got.isfinite(), wanted.isfinite()), name


@has_tiles
def test_sizes_that_a_call_brings() -> None:
    torch.manual_seed(0)
    inner = nn.Conv2d(24, 70, 3, padding=1)
    module = nn.Sequential(inner, nn.ReLU()).bfloat16().eval()
    fast = irc.compile(module, dynamic=True)
    assert inner.bias is not None
    with torch.no_grad():
        exact = inner.weight.double(), inner.bias.double()
        for batch in (2, 3, 1, 5):
            x = torch.randn(batch, 24, 9, 7).bfloat16()
            wanted = nn.functional.conv2d(x.double(), *exact, padding=1).relu()
            assert float((fast(x).double() - wanted).abs().max()) <= 2.0**-8 * float(wanted.max())


@pytest.mark.parametrize("name", ["parts of a sum", "odd tail", "groups", "three dims"])
def test_any_machine_writes_code_for_tiles(name: str) -> None:
    text = emit(convolved(name), AMX.features)
    assert "tdpbf16ps" in text and "tilerelease" in text
    module = llvm.parse_assembly(text)
    module.verify()
    assert "tdpbf16ps" in machine(AMX.features).emit_assembly(module)


def test_other_windows_use_vectors() -> None:
    for name, dtype, features in [
        ("whole lines", torch.bfloat16, DOTS.features),
        ("whole lines", torch.float32, AMX.features),
        ("whole lines", torch.float16, AMX.features),
    ]:
        text = emit(convolved(name, dtype), features)
        assert info_of(text).template == "convolution" and "llvm.x86.tile" not in text


def test_plans_hold_code_of_their_own() -> None:
    for dtype, names in [(torch.bfloat16, [AMX.name, DOTS.name]), (torch.float32, [DOTS.name])]:
        kinds = compile_kinds([convolved("one panel", dtype)], (AMX, DOTS), {})
        assert [kind.variant.name for kind in kinds] == names


@pytest.mark.parametrize("name", CASES)
def test_blocks_cover_the_places(name: str) -> None:
    w = windows_of(convolved(name))
    plan = divide_places(w)
    rows = lay_out(w, plan.rows)
    assert 8 <= plan.rows == sum(rows.halves) <= 32
    assert plan.places <= plan.all_tiles * plan.rows < plan.places + plan.rows
    assert plan.all_tiles <= plan.blocks * plan.tiles
    assert sum(steps for _, steps in rows.parts) == rows.steps
    assert rows.steps * 32 >= w.num_taps * w.channels
