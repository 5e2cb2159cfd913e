"""Tile registers (AMX): the products, their tails, and code for them on machines without."""

# pyright: basic

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch

from irc.backends.cpu import emit, info_of
from irc.backends.cpu.amx import tiles
from irc.backends.cpu.features import AVX512, host
from irc.backends.cpu.jit import compile_texts
from irc.backends.cpu.matmul import amx_tile
from irc.backends.cpu.matmul.product import FIRST_PANEL_BYTES, _on_tiles
from irc.backends.cpu.native import machine
from irc.backends.cpu.variants import VARIANTS
from irc.backends.cpu.vector.builder import Builder
from irc.errors import IrcError
from irc.kernels.weights.panels import packed, weight_of

AMX, DOTS = (VARIANTS[f"x86-64-v4-{name}"].features for name in ("amx", "dots"))
has_tiles = pytest.mark.skipif(not host().tiles, reason="this machine has no tile registers")
SIZES = [
    (5, 64, 32), (16, 33, 64), (17, 100, 34), (31, 64, 96), (32, 64, 62), (33, 130, 66),
    (45, 96, 2), (64, 70, 4000), (70, 96, 450), (100, 520, 130), (128, 64, 3200),
]  # fmt: skip


def product(make: Any, sizes: tuple[int, int, int], *, dtype: str = "bf16") -> Any:
    """``relu(A @ B + bias)`` on a packed B [n, k]."""
    m, n, k = sizes
    inputs = [(m * k, dtype), (n * k, "bf16"), (n, "bf16")]
    maker = make((m, n, k), 2, inputs, [(m * n, dtype)], "matmul")
    value = maker.contract(maker.load(0, (k, 0, 1)), maker.load(1, (0, k, 1)))
    value = maker.fn("relu", maker.fn("add", value, maker.load(2, (0, 1, 0))))
    maker.store(value, 0, (n, 1, 0))
    kernel = maker.kernel("mm")
    argument = weight_of(kernel)
    assert argument == 1
    return packed(kernel, argument)


def error(run: Any, packing: Any, sizes: tuple[int, int, int], features: Any = None) -> float:
    m, n, k = sizes
    a, b = torch.randn(m * k).bfloat16(), torch.randn(n * k).bfloat16()
    bias = torch.randn(n).bfloat16()
    (panels,) = run(packing.pack, [b], 2, features, fill=1e30)
    (got,) = run(packing.kernel, [a, panels, bias], 2, features)
    want = (a.view(m, k).double() @ b.view(n, k).double().T + bias.double()).relu()
    return float(((got.view(m, n).double() - want).abs() / (k**0.5 + want.abs())).max())


@has_tiles
@pytest.mark.parametrize("sizes", SIZES)
def test_products_equal_float64(sizes: Any, make: Any, run: Any) -> None:
    packing = product(make, sizes)
    assert info_of(emit(packing.kernel)).template == "matmul tiles"
    assert error(run, packing, sizes) <= 2.0**-8


@has_tiles
def test_what_follows_a_kernel_finds_tiles_released(make: Any, run: Any) -> None:
    # Another configuration comes after each short tile and each tail: both kernels stay right.
    for sizes in [(40, 64, 66), (33, 64, 64), (40, 64, 66)]:
        assert error(run, product(make, sizes), sizes) <= 2.0**-8


@has_tiles
@pytest.mark.parametrize("planted", ["rows", "rest"])
def test_a_wrong_tail_is_caught(
    planted: str, make: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = amx_tile._Code.shapes

    def wrong(self: Any, depth: int = amx_tile.DEPTH) -> list[tiles.Shape]:
        tile_shapes = shapes(self, depth - 2 if planted == "rest" and depth == 4 else depth)
        below = (2, 3, 5) if planted == "rows" else ()
        return [replace(s, rows=1) if i in below else s for i, s in enumerate(tile_shapes)]

    monkeypatch.setattr(amx_tile._Code, "shapes", wrong)
    sizes = (29, 64, 36)
    assert not error(run, product(make, sizes), sizes) <= 2.0**-8


@pytest.mark.parametrize("sizes", SIZES)
def test_any_machine_writes_code_for_tiles(sizes: Any, make: Any) -> None:
    text = emit(product(make, sizes).kernel, AMX)
    assert "tdpbf16ps" in text and "tilerelease" in text
    module = llvm.parse_assembly(text)
    module.verify()
    assert "tdpbf16ps" in machine(AMX).emit_assembly(module)


def test_other_products_use_vectors(make: Any) -> None:
    # An odd depth would read a row's neighbour; float32 has no tiles; nor have other machines.
    for sizes, dtype, features in [
        ((40, 64, 33), "bf16", AMX),
        ((40, 64, 64), "f32", AMX),
        ((40, 64, 64), "bf16", DOTS),
        ((40, 64, 64), "bf16", AVX512),
    ]:
        text = emit(product(make, sizes, dtype=dtype).kernel, features)
        assert info_of(text).template == "matmul panels" and "tile" + "loadd" not in text


@pytest.mark.parametrize("k", [768, 4096, 11008, 100_000])
def test_a_panel_serves_several_tiles_of_a_long_sum(k: int) -> None:
    # With one tile at a time a weight of 11,008 rows is read once for each 32 rows of A.
    sizes, weight = (1, 512, 64, k), SimpleNamespace(blocks=((1, 64, 2),))
    tiling = _on_tiles(SimpleNamespace(sizes=sizes, b=weight), parallel=True)  # type: ignore[arg-type]
    assert tiling.chunk >= 5 and tiling.depth * 64 * 2 <= FIRST_PANEL_BYTES


def test_configurations_name_tiles_that_exist() -> None:
    data = tiles.configuration([tiles.Shape(5, 12), tiles.Shape()])
    assert len(data) == 64 and data[0] == 1
    assert (data[16], data[18], data[48], data[49]) == (12, 64, 5, 16)
    with pytest.raises(ValueError, match="no tile 8"):
        tiles.zero(Builder(), 8)


def test_kernels_of_another_machine_are_refused_by_name(make: Any) -> None:
    text = emit(product(make, (40, 64, 64)).kernel, AMX)
    with pytest.raises(IrcError, match="needs a processor with amx-tile") as caught:
        compile_texts([text], AVX512)
    assert caught.value.code == "processor-unsupported"
