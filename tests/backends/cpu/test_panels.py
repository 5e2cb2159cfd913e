"""Packed weights: the kernel that packs, and the matmul that reads what it wrote."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from irc.backends.cpu import emit, info_of
from irc.backends.cpu.features import AVX512, ROOMY
from irc.interpret.task import run_kernel
from irc.kernels.weights.panels import Packed, packed, weight_of
from tests.processors import EVERY, needs_avx512

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIZES = [
    (5, 32, 2), (6, 64, 7), (7, 33, 9), (13, 100, 31), (25, 130, 64), (12, 97, 65), (8, 64, 3000),
    (40, 200, 1601), (64, 70, 128),
]  # fmt: skip


def matmul(make: Any, sizes: tuple[int, int, int], dtype: str, *, turned: bool, batch: int) -> Any:
    """``relu(A @ B + bias)`` with B [n, k] (turned) or [k, n]; ``batch`` weights."""
    m, n, k = sizes
    lead = (batch,) if batch else ()
    count = batch or 1
    inputs = [(count * m * k, dtype), (count * n * k, dtype), (n, dtype)]
    maker = make((*lead, m, n, k), len(lead) + 2, inputs, [(count * m * n, dtype)], "matmul")
    a, b = (k, 0, 1), (0, k, 1) if turned else (0, 1, n)
    c, bias = (n, 1, 0), (0, 1, 0)
    if batch:
        a, b, c, bias = (m * k, *a), (n * k, *b), (m * n, *c), (0, *bias)
    value = maker.contract(maker.load(0, a), maker.load(1, b))
    value = maker.fn("relu", maker.fn("add", value, maker.load(2, bias)))
    maker.store(value, 0, c)
    return maker.kernel("mm")


def answer(operands: list[torch.Tensor], sizes: Any, *, turned: bool, batch: int) -> torch.Tensor:
    m, n, k = sizes
    a, b, bias = (t.double() for t in operands)
    b = b.view(-1, n, k).mT if turned else b.view(-1, k, n)
    return (a.view(-1, m, k) @ b + bias).relu().flatten()


def split(kernel: Any) -> Packed:
    argument = weight_of(kernel)
    assert argument == 1
    packing = packed(kernel, argument)
    packing.kernel.verify()
    packing.pack.verify()
    return packing


def check(make: Any, run: Any, sizes: Any, dtype: str, features: Any, **how: Any) -> None:
    kernel = matmul(make, sizes, dtype, **how)
    packing = split(kernel)
    counts = [arg.type.num_elements for arg in kernel.args[:3]]
    operands = [torch.randn(count).to(DTYPES[dtype]) for count in counts]
    (panels,) = run(packing.pack, [operands[1]], 2, features, fill=0)
    written = torch.zeros_like(panels)
    run_kernel(packing.pack, [operands[1]], [written])
    # What lies beside the columns is never stored: any number will do there, but not beside k.
    held = written != 0
    assert torch.equal(panels[held], written[held])
    panels = panels.clone()
    (got,) = run(packing.kernel, [operands[0], panels, operands[2]], 2, features)
    want = answer(operands, sizes, **how)
    scale = sizes[2] ** 0.5
    error = ((got.double() - want).abs() / (scale + want.abs())).max()
    assert error <= (6e-6 if dtype == "f32" else 2.0**-8), (sizes, dtype, float(error))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("turned", [True, False])
def test_packed_matmul_equals_float64(
    sizes: Any, dtype: str, turned: bool, make: Any, run: Any
) -> None:
    check(make, run, sizes, dtype, None, turned=turned, batch=0)


@pytest.mark.parametrize("features", EVERY)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_one_layout_serves_all_machines(features: Any, dtype: str, make: Any, run: Any) -> None:
    for sizes in SIZES[2:5]:
        check(make, run, sizes, dtype, features, turned=True, batch=0)


@needs_avx512
def test_a_roomy_cache_changes_no_bits(
    make: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows are taken in parts, and the next tile's lines fetched: also those behind the last row.
    monkeypatch.setattr("irc.backends.cpu.matmul.epilogue.FAR_BYTES", 0)
    monkeypatch.setattr("irc.backends.cpu.matmul.product.ROOMY_ROWS_BYTES", 8 << 10)
    for sizes in ((41, 128, 65), (40, 192, 1601), (13, 64, 31)):
        kernel: Any = matmul(make, sizes, "f32", turned=True, batch=0)
        packing = split(kernel)
        operands = [torch.randn(arg.type.num_elements) for arg in kernel.args[:3]]
        (panels,) = run(packing.pack, [operands[1]], 2, AVX512, fill=0)
        inputs = [operands[0], panels, operands[2]]
        (plain,) = run(packing.kernel, inputs, 2, AVX512)
        roomy = replace(AVX512, second_cache=ROOMY)
        (other,) = run(packing.kernel, inputs, 2, roomy)
        assert torch.equal(plain, other)
        for features, fetches in ((roomy, True), (AVX512, False)):
            lines = emit(packing.kernel, features).splitlines()
            # A call that asks for a line to be written, in the first cache.
            asks = ("call void @llvm.prefetch" in x and "i32 1, i32 3, i32 1" in x for x in lines)
            assert any(asks) == fetches


def test_batches_of_weights(make: Any, run: Any) -> None:
    for dtype in DTYPES:
        check(make, run, (9, 70, 13), dtype, None, turned=True, batch=3)


def test_the_interpreter_reads_panels(make: Any) -> None:
    sizes = (6, 70, 9)
    packing = split(matmul(make, sizes, "f32", turned=True, batch=0))
    operands = [torch.randn(arg.type.num_elements) for arg in packing.kernel.args[:1]]
    weight, bias = torch.randn(70 * 9), torch.randn(70)
    panels = torch.zeros(packing.elements)
    run_kernel(packing.pack, [weight], [panels])
    got = torch.empty(6 * 70)
    run_kernel(packing.kernel, [operands[0], panels, bias], [got])
    want = answer([operands[0], weight, bias], sizes, turned=True, batch=0)
    assert (got - want).abs().max() < 1e-4


def test_few_rows_read_the_weight_in_place(make: Any) -> None:
    assert weight_of(matmul(make, (4, 64, 64), "f32", turned=True, batch=0)) is None
    assert weight_of(matmul(make, (5, 31, 64), "f32", turned=True, batch=0)) is None


def test_the_form_is_named(make: Any) -> None:
    packing = split(matmul(make, (128, 256, 64), "f32", turned=True, batch=0))
    assert info_of(emit(packing.kernel, AVX512)).template == "matmul panels"
    assert info_of(emit(packing.pack, AVX512)).template == "pack"


def test_panels_hold_no_denormals(make: Any, run: Any) -> None:
    """A product with one takes microcode; zeros of a sign, infinities and NaN pass."""
    kernel = matmul(make, (6, 64, 8), "f32", turned=False, batch=0)
    weight = torch.randn(8, 64)
    weight[3] = 2.0**-127
    weight[5, ::2], weight[5, 1::2] = 2.0**-126, -(2.0**-149)
    weight[6, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    (panels,) = run(split(kernel).pack, [weight.flatten()], 1, None, fill=0)
    expected = weight.where(weight.abs() >= 2.0**-126, 0).where(~weight.isnan(), torch.nan)
    torch.testing.assert_close(panels.view(8, 64), expected, rtol=0, atol=0, equal_nan=True)
