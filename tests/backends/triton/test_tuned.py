"""Tuned tiles in ``irc.compile``, on a device and a clock that are made up."""

import json
from pathlib import Path

import pytest
import torch

import irc
from irc.dialects.task import KernelOp
from irc.dialects.text import context
from irc.errors import IrcError
from irc.kernels.gpu.tiles import alternatives
from irc.passes.tune_tiles import TuneTilesPass
from irc.tune.tiles import load_tiles, save_tiles
from tests.backends import gpu_kernels as g
from tests.backends.triton.interpreting import run_interpreted
from tests.passes.test_split_reduction import program

ROOT = Path(__file__).parents[3]


def tile_of(module) -> dict[str, int]:
    (kernel,) = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    return kernel.tile_sizes


def tune(module, **options) -> dict[str, int]:
    TuneTilesPass(target="sm_90", device="fake", **options).apply(context(), module)
    module.verify()
    return tile_of(module)


@pytest.fixture
def matmul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelOp:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    return g.matmul(512, 512, 512, dtype="f16")


def clock(monkeypatch: pytest.MonkeyPatch, best: dict[str, int]) -> list[dict[str, int]]:
    """Let one tile be the fastest; return what is timed."""
    timed: list[dict[str, int]] = []

    def seconds(kernel: KernelOp) -> float:
        timed.append(kernel.tile_sizes)
        return 1e-6 if kernel.tile_sizes == best else 1e-3

    monkeypatch.setattr("irc.passes.tune_tiles.timer_of", lambda _: seconds)
    return timed


def test_the_fastest_candidate_is_taken_and_read_later(
    matmul: KernelOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = alternatives(matmul, "sm_90")
    assert tune(program(matmul.clone())) == matmul.tile_sizes, "nothing is known yet"
    timed = clock(monkeypatch, others[3])
    assert tune(program(matmul.clone()), times=True) == others[3]
    assert len(timed) == len(others)
    # A later compilation, which times nothing, and one that would.
    assert tune(program(matmul.clone())) == others[3]
    assert tune(program(matmul.clone()), times=True) == others[3]
    assert len(timed) == len(others)


def test_a_tile_that_is_no_candidate_is_not_used(matmul: KernelOp) -> None:
    from irc.kernels.gpu.tiles import tile_key

    save_tiles({tile_key(matmul, "fake"): {"block_m": 3}})
    assert tune(program(matmul.clone())) == matmul.tile_sizes
    assert load_tiles() != {}


@pytest.mark.parametrize(
    "tiles", ["k9 block_m=16", "matmul width=16", "matmul block_m=x", "matmul block_m=0"]
)
def test_a_tile_by_hand_names_what_is_there(matmul: KernelOp, tiles: str) -> None:
    module = program(g.matmul(64, 64, 64, block_m=16, block_n=16, name="matmul"))
    with pytest.raises(IrcError) as caught:
        TuneTilesPass(tiles=tiles).apply(context(), module)
    assert caught.value.code == "option-value"
    TuneTilesPass(tiles="matmul block_m=32").apply(context(), module)
    assert tile_of(module) == {"block_m": 32, "block_n": 16, "block_k": 16}


def test_tune_needs_a_backend_with_tiles_and_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IrcError) as caught:
        irc.compile(lambda x: x + 1, tune=True)
    assert caught.value.code == "option-value"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(IrcError) as caught, torch.no_grad():
        irc.compile(lambda x: x + 1, backend="triton", tune=True)(torch.ones(3))
    assert caught.value.code == "device-missing"


def _compile() -> None:
    """Compile a linear layer on a made-up device; print the tile that its plan launches."""
    import irc.runtime.device as device
    from irc.backends.triton import timing

    times = {"64": 1e-6}
    device.name_at_hand = lambda backend: "fake"
    timing.kernel_seconds = lambda kernel: times.get(str(kernel.tile_sizes.get("block_n")), 1e-3)
    x, w = torch.randn(40, 64), torch.randn(128, 64)
    for options in ({"tune": True}, {}):
        layer = irc.compile(lambda x, w: torch.relu(x @ w.T), backend="triton", **options)
        with torch.no_grad():
            error = (layer(x, w) - torch.relu(x @ w.T)).abs().max().item()
        print(json.dumps({"error": error, "tiles": list(load_tiles().values())}))


def test_irc_compile_times_once_and_reads_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    code = "from tests.backends.triton.test_tuned import _compile; _compile()"
    monkeypatch.chdir(ROOT)
    printed = run_interpreted(["-c", code])
    first, second = (json.loads(line) for line in printed.splitlines()[-2:])
    assert first["error"] < 1e-4 and second["error"] < 1e-4
    assert first["tiles"] == second["tiles"]
    assert [tile["block_n"] for tile in first["tiles"]] == [64]
