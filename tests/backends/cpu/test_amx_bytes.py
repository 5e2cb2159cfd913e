"""Products of bytes by tile registers (AMX): exact, every tail, and code on any machine."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from irc.backends.cpu import emit, info_of
from irc.backends.cpu.amx import tiles
from irc.backends.cpu.features import host
from irc.backends.cpu.native import shared_codes
from irc.backends.cpu.quantized import amx_plan, amx_writer
from irc.backends.cpu.variants import VARIANTS
from tests.backends.cpu.quantized_cases import Case

AMX, DOTS = (VARIANTS[f"x86-64-v4-{name}"].features for name in ("amx", "dots"))
has_tiles = pytest.mark.skipif(not host().tiles, reason="this machine has no tile registers")
PRODUCTS = [
    # rows, panels, depth
    (8, 1, 4), (11, 2, 28), (16, 2, 64), (17, 1, 68), (31, 3, 96), (33, 2, 132), (49, 5, 76),
    (64, 4, 640), (65, 2, 1096), (100, 18, 1300), (196, 3, 2048), (700, 1, 36),
]  # fmt: skip
WINDOWS = [
    ((1, 9, 9, 64), 2, (3, 3, 1, 1, 1, 1)),
    ((2, 9, 9, 20), 3, (3, 3, 1, 1, 1, 1)),
    ((1, 16, 15, 68), 2, (3, 3, 2, 1, 1, 1)),
    ((1, 29, 31, 4), 4, (7, 7, 2, 2, 1, 1)),
    ((1, 40, 40, 4), 1, (5, 5, 1, 1, 2, 3)),
    ((3, 12, 14, 144), 2, (3, 3, 1, 2, 1, 2)),
    ((1, 9, 9, 520), 4, (3, 3, 1, 1, 1, 1)),
    ((2, 24, 6, 36), 1, (2, 1, 1, 1, 3, 1)),
    ((1, 8, 1, 260), 2, (1, 1, 1, 1, 1, 1)),
]


def product(rows: int, panels: int, depth: int) -> Any:
    """Sums of bytes and a bias."""
    case = Case(((rows, depth), "u8"), ((panels, depth // 4, 16, 4), "i8"), ((panels * 16,), "i32"))
    value = case.b.pointwise("add", case.product(2, bits=8), case.block.args[2])
    return case.kernel(value)


def convolution(image: Any, panels: int, window: Any) -> Any:
    weight = (panels, *window[:2], image[3] // 4, 16, 4)
    case = Case((image, "u8"), (weight, "i8"), ((16 * panels,), "i32"))
    value = case.product(2, bits=8, window=window)
    return case.kernel(case.b.pointwise("sub", value, case.block.args[2]))


def differs(run: Any, case: Any, threads: int, features: Any = None) -> bool:
    kernel, inputs, expected = case
    (output,) = run(kernel, inputs, threads, features)
    return not torch.equal(output.reshape(expected.shape), expected)


@has_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", PRODUCTS)
def test_products_are_exact(sizes: Any, threads: int, run: Any) -> None:
    case = product(*sizes)
    assert info_of(emit(case[0])).template == "packed tiles"
    assert not differs(run, case, threads)


@has_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("image", "panels", "window"), WINDOWS)
def test_windows_are_exact(image: Any, panels: int, window: Any, threads: int, run: Any) -> None:
    case = convolution(image, panels, window)
    assert info_of(emit(case[0])).template == "packed tiles"
    assert not differs(run, case, threads)


@pytest.mark.parametrize("sizes", PRODUCTS)
def test_code_of_products_is_valid_on_any_machine(sizes: Any) -> None:
    kernel, _, _ = product(*sizes)
    text = emit(kernel, AMX)
    assert info_of(text).template == "packed tiles"
    assert "llvm.x86.tdpbusd" in text
    assert shared_codes([([text], AMX)])[0]


@pytest.mark.parametrize(("image", "panels", "window"), WINDOWS)
def test_code_of_windows_is_valid_on_any_machine(image: Any, panels: int, window: Any) -> None:
    kernel, _, _ = convolution(image, panels, window)
    assert shared_codes([([emit(kernel, AMX)], AMX)])[0]


def test_few_rows_and_other_machines_keep_vectors() -> None:
    few, many = product(4, 2, 64)[0], product(40, 2, 64)[0]
    assert emit(few, AMX) == emit(few, DOTS)
    assert info_of(emit(many, DOTS)).template == "packed dot"
    assert "llvm.x86.tile" not in emit(many, DOTS)


def test_passes_cover_a_sum_once() -> None:
    for sums in ([(68, 1)], [(3, 999), (1560, 1)], [(5, 99), (3, 9), (76, 1)], [(2, 7), (4, 1)]):
        outer, run = [size for size, _ in sums[:-1]], sums[-1][0]
        seen = torch.zeros(outer[0] if outer else 1, run, dtype=torch.int64)
        for each in amx_plan.passes(sums):
            taps = slice(each.tap, each.tap + each.taps)
            seen[taps, each.start : each.start + each.step * each.steps] += 1
            assert each.step <= tiles.ROW_BYTES
            assert each.step % 4 == 0
        assert bool((seen == 1).all())


@has_tiles
def test_a_wrong_shape_of_the_tail_is_seen(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """136 bytes are two steps of 64, and 8 in tiles of their own shape."""
    assert not differs(run, product(33, 2, 136), 1)
    configure = amx_writer.TileProductWriter.configure

    def short(self: amx_writer.TileProductWriter, each: amx_plan.Pass) -> None:
        configure(self, replace(each, step=4 if each.step == 8 else each.step))

    monkeypatch.setattr(amx_writer.TileProductWriter, "configure", short)
    assert differs(run, product(33, 2, 136), 1)
