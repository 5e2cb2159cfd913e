"""Matmuls on tensor cores: mma with cp.async, wgmma with TMA, split-K; and that bugs are found."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields
from math import prod
from pathlib import Path

import pytest
import torch

from irc.backends.cuda.file import emit_kernel, form_and_template
from irc.backends.cuda.hopper import Hopper
from irc.backends.cuda.instructions import INSTRUCTIONS
from irc.backends.cuda.pipeline import Tile
from irc.backends.cuda.split import num_parts
from irc.backends.cuda.tensor_core import TensorCore
from irc.dialects.mapping_attr import verify_coverage
from irc.dialects.task import KernelOp
from irc.kernels.form import read
from irc.kernels.mapping.banks import verify_free
from tests.backends import gpu_kernels as g
from tests.backends.cuda.host import (
    HostError,
    Libraries,
    build,
    marked,
    run,
    run_in_all_orders,
    run_on_host,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def _kernels(*kernels: KernelOp) -> dict[str, KernelOp]:
    return {k.sym_name.data: k for k in kernels}


LARGE = {"block_m": 128, "block_n": 128}
MMA = _kernels(
    g.matmul(70, 90, 200, dtype="f16", transposed=True, block_k=64, split_k=3, name="split"),
    g.matmul(70, 96, 200, dtype="f16", block_k=64, num_stages=4, split_k=2, name="split_vector"),
    g.matmul(130, 136, 136, dtype="bf16", transposed=True, block_k=64, name="k_fast", **LARGE),
    g.matmul(72, 136, 104, dtype="bf16", a_transposed=True, name="rows_fast", **LARGE),
    g.matmul(100, 50, 102, dtype="f16", transposed=True, num_stages=4, name="pairs", **LARGE),
    g.matmul(37, 41, 43, dtype="f16", transposed=True, name="odd"),
    g.matmul(72, 100, 68, tf32=1, transposed=True, name="tf32"),
    g.matmul(72, 100, 68, tf32=1, a_transposed=True, block_k=64, name="tf32_rows_fast"),
    g.matmul(13, 101, 67, tf32=1, batch=(3,), block_k=64, split_k=2, name="tf32_odd"),
    g.matmul(1, 1, 1, dtype="f16", name="one"),
    g.matmul(7, 101, 0, dtype="f16", name="no_products"),
)
WGMMA = _kernels(
    g.matmul(70, 90, 200, dtype="f16", transposed=True, name="k_fast", **LARGE),
    g.matmul(72, 96, 200, dtype="f16", name="b_rows", **LARGE),
    g.matmul(72, 96, 120, dtype="bf16", a_transposed=True, transposed=True, name="a_rows", **LARGE),
    g.matmul(
        136, 264, 72, dtype="bf16", a_transposed=True, block_m=128, block_n=256, name="both_rows"
    ),
    g.matmul(136, 270, 400, dtype="bf16", transposed=True, block_m=128, block_n=256, name="wide"),
    g.matmul(70, 90, 520, dtype="f16", transposed=True, split_k=3, name="split"),
    g.matmul(70, 40, 136, batch=(3,), dtype="f16", transposed=True, name="batch"),
    g.matmul(1, 24, 8, dtype="f16", transposed=True, name="one_row"),
)


QUICK = {"split", "odd", "tf32", "no_products", "k_fast", "b_rows"}


@pytest.fixture(scope="module")
def mma(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("mma"), MMA, QUICK, arch=80)


@pytest.fixture(scope="module")
def wgmma(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("wgmma"), WGMMA, QUICK, arch=90)


def close(outputs: list[torch.Tensor], kernel: KernelOp, inputs: list[torch.Tensor]) -> bool:
    """Whether results are as near to those of float64 as one rounding of each operand allows."""
    (wanted,) = g.meaning(kernel, inputs)
    step = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-8}
    bound = step[outputs[0].dtype] * (2 + wanted.abs()) * 2
    return bool(((outputs[0].double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("name", marked(MMA, QUICK))
def test_products_of_warps(mma: Libraries, name: str) -> None:
    kernel = MMA[name]
    assert isinstance(form_and_template(kernel, 80)[1], TensorCore)
    inputs = g.inputs_for(kernel, lambda i: 9)
    assert close(run_in_all_orders(mma[name], kernel, inputs), kernel, inputs)
    assert mma[name].shim_conflicts() == 0


@pytest.mark.parametrize("name", marked(WGMMA, QUICK))
def test_products_of_warpgroups(wgmma: Libraries, name: str) -> None:
    kernel = WGMMA[name]
    assert isinstance(form_and_template(kernel, 90)[1], Hopper)
    inputs = g.inputs_for(kernel, lambda i: 9)
    assert close(run_in_all_orders(wgmma[name], kernel, inputs), kernel, inputs)


@pytest.mark.parametrize(
    "kernel",
    [
        g.matmul(70, 90, 201, dtype="f16", transposed=True),  # rows of 402 bytes
        g.matmul(70, 90, 200, tf32=1, transposed=True),
        g.matmul(70, 90, 0, dtype="f16"),
    ],
    ids=["unaligned", "tf32", "empty"],
)
def test_what_tma_cannot_read_goes_by_warps(kernel: KernelOp) -> None:
    assert isinstance(form_and_template(kernel, 90)[1], TensorCore)


@pytest.mark.parametrize(("names", "arch"), [(MMA, 80), (WGMMA, 90)], ids=["mma", "wgmma"])
def test_each_sum_has_one_owner(names: dict[str, KernelOp], arch: int) -> None:
    for kernel in names.values():
        template = form_and_template(kernel, arch)[1]
        assert isinstance(template, TensorCore | Hopper)
        multiply = template.threads - (128 if arch == 90 else 0)
        batches = prod(read(kernel).parallel[:-2])
        assert template.mapping.num_workers * batches == template.blocks * multiply
        verify_coverage(template.mapping)


def several_outputs(m: int = 70, n: int = 90, k: int = 136, **tile: int) -> KernelOp:
    """A product of halves, its activation in float and its sum with a residual, all stored."""
    b = g.Builder("several", (m, n, k), 2, (64, 64), "matmul", block_m=64, block_n=64, **tile)
    a, w = b.input(m * k, "f16"), b.input(n * k, "f16")
    bias, residual = b.input(n, "f32"), b.input(m * n, "f16")
    plain, active, added = b.output(m * n, "f16"), b.output(m * n, "f32"), b.output(m * n, "f16")
    v = b.contract(b.load(a, (k, 0, 1)), b.load(w, (0, k, 1)), "f16")
    b.store(v, plain, (n, 1, 0))
    wide = b.fn("silu", b.fn("add", b.fn("cast", v, dtype="f32"), b.load(bias, (0, 1, 0))))
    b.store(wide, active, (n, 1, 0))
    total = b.fn("add", b.fn("cast", wide, dtype="f16"), b.load(residual, (n, 1, 0)))
    b.store(total, added, (n, 1, 0))
    return b.kernel()


@pytest.mark.parametrize(
    ("kernel", "arch"),
    [
        (several_outputs(), 90),
        pytest.param(several_outputs(), 80, marks=pytest.mark.slow),
        pytest.param(several_outputs(n=91, split_k=2), 90, marks=pytest.mark.slow),
        pytest.param(several_outputs(split_k=2), 80, marks=pytest.mark.slow),
    ],
    ids=["wgmma", "mma", "wgmma_parts", "mma_parts"],
)
def test_an_epilogue_of_several_outputs(kernel: KernelOp, arch: int) -> None:
    inputs = g.inputs_for(kernel, lambda i: 9)
    outputs = run_on_host(kernel, inputs, arch=arch)
    for one, wanted in zip(outputs, g.meaning(kernel, inputs), strict=True):
        # The product is a half before it is cast.
        assert torch.allclose(one.double(), wanted, rtol=2e-3, atol=2e-2)


def test_parts_fill_the_device_and_none_is_empty() -> None:
    form = read(g.matmul(64, 64, 64, dtype="f16"))
    assert num_parts(form, tiles=200, steps=64, arch=90) == 1
    assert num_parts(form, tiles=8, steps=64, arch=90) == 16
    assert num_parts(form, tiles=8, steps=3, arch=90) == 1
    for steps in range(1, 200):
        parts = num_parts(form, tiles=8, steps=steps, arch=80)
        assert (parts - 1) * -(-steps // parts) < steps


# Each row: the kernel, what it is made for, what the bug replaces, by what.
PLANTED: dict[str, tuple[KernelOp, int, str, str]] = {
    "tail of k read": (MMA["rows_fast"], 80, r"_k < 104", "_k < 112"),
    "tail of m stored": (MMA["odd"], 80, r"m < 37 && n < 41", "m < 38 && n < 41"),
    "no barrier": (MMA["k_fast"], 80, r"__syncthreads\(\);", ""),
    "no wait for copies": (MMA["k_fast"], 80, r"irc_copies_left<1>\(\);", ""),
    "waits for one group too few": (MMA["k_fast"], 80, r"irc_copies_left<1>", "irc_copies_left<2>"),
    "one stage too few": (MMA["pairs"], 80, r"- begin\) % 4", "- begin) % 3"),
    "swizzle of a store": (
        MMA["k_fast"], 80, r"irc_place<128, false>\(slow, fast \* 2\)", "slow * 128 + fast * 2"
    ),
    "epilogue before the parts meet": (
        MMA["split"], 80, r"(?<=\] = )sum\[i\]\[j\]\[h \* 2\];", "fmaxf(sum[i][j][h * 2], 0);"
    ),
    "a part twice": (MMA["split"], 80, r"begin = part \* (\d+)", r"begin = part * \1 - (part > 0)"),
    "barrier of full not awaited": (WGMMA["k_fast"], 90, r"irc_barrier_wait\(full.*;", ""),
    "barrier of empty not awaited": (WGMMA["wide"], 90, r"irc_barrier_wait\(empty.*;", ""),
    "stage freed too early": (WGMMA["wide"], 90, r"irc_products_left<1>", "irc_products_left<2>"),
    "products not awaited": (WGMMA["k_fast"], 90, r"irc_products_left<0>\(\);", ""),
    "wrong parity": (WGMMA["k_fast"], 90, r"parity \^ 1", "parity"),
    "too few bytes expected": (
        WGMMA["k_fast"], 90, r"expect\(full \+ stage, \d+", "expect(full + stage, 64"
    ),
    "leading dimension": (WGMMA["both_rows"], 90, r", 8192, 1024\)", ", 1024, 1024)"),
    "stride of rows": (WGMMA["k_fast"], 90, r", 16, 1024\)", ", 16, 2048)"),
    "operand not transposed": (WGMMA["b_rows"], 90, r", 0, 1>\(sum", ", 0, 0>(sum"),
    "tail of n stored": (WGMMA["k_fast"], 90, r"n < 90\)", "n < 96)"),
    "map of too many rows": (WGMMA["k_fast"], 90, r"\{200ull, 90ull\}", "{200ull, 96ull}"),
}  # fmt: skip


BUGS = {bug: bug.replace(" ", "_") for bug in PLANTED}
QUICK_BUGS = {
    "epilogue_before_the_parts_meet", "leading_dimension", "stage_freed_too_early",
}  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """All bugs, one kernel each."""

    def plant(bug: str) -> Callable[[str], str]:
        pattern, text = PLANTED[bug][2:]

        def change(source: str) -> str:
            changed, count = re.subn(pattern, text, source)
            assert count, f"{bug} is not planted"
            return changed

        return change

    return Libraries(
        tmp_path_factory.mktemp("planted"),
        {name: PLANTED[bug][0] for bug, name in BUGS.items()},
        QUICK_BUGS,
        change={name: plant(bug) for bug, name in BUGS.items()},
        arch={name: PLANTED[bug][1] for bug, name in BUGS.items()},
    )


@pytest.mark.parametrize("name", marked([*BUGS.values()], QUICK_BUGS))
def test_a_planted_bug_is_found(planted: Libraries, name: str) -> None:
    kernel = next(PLANTED[bug][0] for bug in PLANTED if BUGS[bug] == name)
    inputs = g.inputs_for(kernel, lambda i: 9)
    try:
        result = run_in_all_orders(planted[name], kernel, inputs, name)
    except HostError:
        return
    assert not close(result, kernel, inputs)


@pytest.mark.parametrize("name", marked(["k_fast", "rows_fast", "pairs"], ["pairs"]))
def test_a_swizzle_that_conflicts_is_found(name: str, tmp_path: Path) -> None:
    """Stores and loads agree on the wrong swizzle: right numbers, slow."""
    kernel = MMA[name]

    def change(text: str) -> str:
        return text.replace("turn * 16", "0 * turn")

    library = build(tmp_path, {name: kernel}, change, arch=80)
    inputs = g.inputs_for(kernel, lambda i: 9)
    assert close(run(library, kernel, inputs, 0), kernel, inputs)
    assert library.shim_conflicts() > 0


def test_the_swizzle_in_python_is_the_one_in_the_source(tmp_path: Path) -> None:
    """The bank-conflict verifier looks at a layout; the kernel runs ``irc_place``."""
    tiles = {
        f"{name}_{tile.letter}": tile
        for name, kernel in MMA.items()
        if isinstance(template := form_and_template(kernel, 80)[1], TensorCore)
        for tile in (template.a, template.b)
    }
    assert {tile.row_bytes for tile in tiles.values()} >= {64, 128, 256}
    head = 'extern "C" int place_'
    functions = [
        f"{head}{name}(int row, int byte) {{ return {tile.place('row', 'byte')}; }}"
        for name, tile in tiles.items()
    ]
    source = INSTRUCTIONS["irc_place"].replace("__device__", "") + "\n".join(functions)
    (tmp_path / "place.cpp").write_text(source)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", str(tmp_path / "place.cpp")]
    subprocess.run([*command, "-o", str(tmp_path / "place.so")], check=True)
    library = ctypes.CDLL(str(tmp_path / "place.so"))
    for name, tile in tiles.items():
        run_place = getattr(library, f"place_{name}")
        rows = tile.num_bytes // tile.row_bytes
        places = [(r, b) for r in range(rows) for b in range(0, tile.row_bytes, 4)]
        offsets = [run_place(*place) for place in places]
        assert offsets == [tile.at(*place) for place in places]
        assert len(set(offsets)) == len(places)
        tile.verify_reads()


def test_stores_of_whole_chunks_have_no_conflicts() -> None:
    kernel = MMA["k_fast"]
    template = form_and_template(kernel, 80)[1]
    assert isinstance(template, TensorCore)
    for tile in (template.a, template.b):
        per_row = tile.row_bytes // 16
        verify_free([tile.at(e // per_row, e % per_row * 16) for e in range(32)], 16)


def test_the_verifier_refuses_rows_that_are_not_swizzled() -> None:
    template = form_and_template(MMA["k_fast"], 80)[1]
    assert isinstance(template, TensorCore)

    class Straight(Tile):
        def at(self, row: int, byte: int) -> int:
            return row * self.row_bytes + byte

    straight = Straight(**{f.name: getattr(template.a, f.name) for f in fields(template.a)})
    with pytest.raises(ValueError, match="bank"):
        straight.verify_reads()


def test_a_source_for_one_architecture_says_which_instructions_it_has() -> None:
    hopper, ampere = (emit_kernel(WGMMA["k_fast"], arch) for arch in (90, 80))
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in hopper
    assert "wgmma" not in ampere and "cp.async.cg" in ampere
