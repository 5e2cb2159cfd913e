"""``generate`` of a Llama on a mesh: eager's tokens, two compilations, caches that stay split."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(TIMEOUT_S + 20)]


def run(program: str, world: int, store: Path, *words: str) -> list[Any]:
    """Start a program on several processes; what each rank has printed last."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.distributed.{program}", *words],
            env={**rank_environment(rank, world, str(store)), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=TIMEOUT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    codes = [process.returncode for process in ranks]
    assert codes == [0] * world, [err[-3000:] for _, err in said]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def generate(tmp_path: Path, mesh: str, world: int, **case: Any) -> list[dict[str, Any]]:
    options = {"mesh": mesh, "layers": 2, **case}
    reports = run("generating_program", world, tmp_path / "store", json.dumps(options))
    print(json.dumps(reports, indent=1))
    cases = [case for rank in reports for case in rank["cases"]]
    for each in cases:
        assert each["equal"] == [True, True]
        assert each["compilations"] == [2, 2]
        assert each["eager_calls"] == 0
        assert each["cache_error"] < 1e-5
        assert each["linked"]
        assert each["weights_once"]
    return cases


def test_two_ranks_give_eagers_tokens_without_recompiling(tmp_path: Path) -> None:
    """Each rank keeps one of the two key-value heads."""
    for each in generate(tmp_path, "tensor=2", 2, heads=[2], batches=[3], layers=1):
        assert each["split_weights"]
        assert each["cache"] == [[3, 1, 18, 16], [3, 2, 18, 16]]
        assert not each["moves_the_cache"]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_heads_and_ranks(tmp_path: Path, world: int, heads: int) -> None:
    """Fewer heads than ranks lie whole, or are split along another dim; the others by heads."""
    cases = generate(tmp_path, f"tensor={world}", world, heads=[heads], batches=[1, 3])
    for each in cases:
        assert each["split_weights"]
        if heads >= world:
            assert each["cache"][0][1] * world == heads
            assert not each["moves_the_cache"]


@pytest.mark.slow
def test_batch_and_heads_split(tmp_path: Path) -> None:
    generate(tmp_path, "data=2,tensor=2", 4, heads=[2], batches=[2])


@pytest.mark.slow
def test_what_ranks_hold_and_what_is_everybodys(tmp_path: Path) -> None:
    for report in run("holding_program", 2, tmp_path / "store"):
        print(json.dumps(report, indent=1))
        assert report["plain"] == dict.fromkeys(("close", "memory", "seen", "split"), True)
        caches = report["caches"]
        assert caches["close"] and caches["same"] and caches["stays"] and caches["gathered"]
        assert caches["split"] == "DTensor"
        assert caches["eager"]
        assert caches["statistics"] == [2, 2]
        assert caches["told"] == 1
        entries = report["entries"]
        assert "'memory.rows' is whole" in entries["refused"]
        assert "entries.hold('memory', ..)" in entries["refused"]
        assert entries["close"] == [True, True]
        assert entries["memory"] and entries["untouched"]
        assert entries["local"] == [6, 4]
        assert "'x' has shape [2, 8], compiled for [1, 8]" in entries["other"]
