"""The schedule space: its static checks hold what ptxas says, and every tile computes the same."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from irc.backends.triton import compile_for
from irc.kernels.gpu.limits import GPUS, gpu
from irc.kernels.gpu.matmul import Problem, Tile, candidates, refusal, registers, shared_bytes
from irc.kernels.gpu.tiles import MOST, alternatives, tile_key, with_tile
from irc.tune import tiles
from tests.backends import gpu_kernels as g
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")


def matmul(tile: Tile, dtype: str, size: int = 512):
    return with_tile(g.matmul(size, size, size, dtype=dtype, transposed=True), tile.options())


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("target", GPUS)
def test_the_space_is_small_and_within_limits(dtype: str, target: str) -> None:
    for m, n, k in [(4096, 4096, 4096), (1, 4096, 4096), (37, 53, 29), (1, 1, 1), (64, 64, 16384)]:
        problem = Problem(1, m, n, k, dtype)
        tiles_of_space = candidates(problem, gpu(target))
        assert 1 <= len(tiles_of_space) <= 100
        assert len(set(tiles_of_space)) == len(tiles_of_space)
        for tile in tiles_of_space:
            assert shared_bytes(tile, problem) <= gpu(target).block_bytes
            assert 32 * tile.warps <= 1024


def test_what_would_spill_is_refused() -> None:
    """Tiles that ptxas spilled, with a bias, a gelu and a residual behind the product."""
    spilled = [
        (Tile(128, 256, 64, 8, 3), "f16"), (Tile(128, 128, 64, 4, 3), "f16"),
        (Tile(128, 128, 64, 8, 3), "f64"),
    ]  # fmt: skip
    for tile, dtype in spilled:
        problem = Problem(1, 1024, 1024, 1024, dtype)
        assert registers(tile, problem) > 255
        assert refusal(tile, problem, gpu("sm_90")) is not None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_no_tile_of_the_space_spills(dtype: str) -> None:
    problem = Problem(1, 512, 512, 512, dtype)
    space = {t for name in GPUS for t in candidates(problem, gpu(name))}
    for tile in random.Random(0).sample(sorted(space, key=str), 12):
        for target in GPUS.values():
            if refusal(tile, problem, target) is None:
                assert compile_for(matmul(tile, dtype), target.arch).spill_bytes == 0, tile


def test_the_first_tile_of_each_target_does_not_spill() -> None:
    for dtype, target in [("f32", "sm_80"), ("f16", "sm_90"), ("bf16", "sm_100")]:
        tile = candidates(Problem(1, 512, 512, 512, dtype), gpu(target))[0]
        report = compile_for(matmul(tile, dtype), gpu(target).arch)
        assert report.spill_bytes == 0
        assert report.shared_bytes <= gpu(target).block_bytes


def test_a_tile_that_an_epilogue_would_spill_is_pruned() -> None:
    """64 by 128 by four warps is 64 results a thread; an optimizer reads three more of each."""
    plain = Problem(1, 64, 104, 20, "bf16")
    step = replace(plain, epilogue=3)
    wide = Tile(64, 128, 32, 4, 3)
    assert refusal(wide, plain, gpu("sm_100")) is None
    assert refusal(wide, step, gpu("sm_100")) == "more registers than a thread has"
    best = candidates(step, gpu("sm_100"))[0]
    assert best.m * best.n / (32 * best.warps) <= 32


def test_every_tile_computes_the_same(tmp_path: Path) -> None:
    runs = []
    kernel = g.matmul(m=70, n=33, k=50, dtype="f16", name="tiled")
    inputs = g.inputs_for(kernel, lambda i: 1)
    for number, tile in enumerate(alternatives(kernel, "sm_90")[::5]):
        tiled = with_tile(kernel, tile)
        tiled.properties["sym_name"] = type(tiled.sym_name)(f"tiled{number}")
        runs.append((tiled, inputs))
    assert len(runs) > 2
    interpret(tmp_path, runs)
    (wanted,) = g.meaning(kernel, inputs)
    for tiled, _ in runs:
        (output,) = outputs_of(tmp_path, tiled)
        torch.testing.assert_close(output.double(), wanted, rtol=4e-3, atol=4e-3)


def test_a_tile_is_timed_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    kernel = g.matmul(512, 512, 512, dtype="f16")
    others = alternatives(kernel, "sm_90")
    assert len(others) == MOST
    timed: list[dict[str, int]] = []

    def seconds(candidate) -> float:
        timed.append(candidate.tile_sizes)
        return 1e-6 if candidate.tile_sizes == others[5] else 2e-6

    first = tiles.best_tile(kernel, "sm_90", "device", seconds)
    assert first.tile == others[5]
    assert len(timed) == first.timed == MOST
    again = tiles.best_tile(kernel, "sm_90", "device", seconds)
    assert again.tile == others[5]
    assert again.timed == 0
    assert len(timed) == MOST + 1
    assert tile_key(kernel, "device") == tile_key(first.kernel, "device")
    assert tile_key(kernel, "another") != tile_key(kernel, "device")


def test_the_model_is_kept_where_another_gains_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    kernel = g.softmax()
    times = iter([1.0, 0.97, 0.99, 2.0, float("inf")])
    choice = tiles.best_tile(kernel, "sm_90", "device", lambda _: next(times))
    assert choice.tile == alternatives(kernel, "sm_90")[0]
    (tmp_path / "cache" / tiles.FILE).write_text("[1")
    assert tiles.load_tiles() == {}
