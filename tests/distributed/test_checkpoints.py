"""Checkpoints in parts: saved on one mesh, loaded on others, as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.checkpoint_program import plain
from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
CLOSE = 5e-5
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def start(
    folder: Path, mesh: str, world: int, *cases: str, **more: str
) -> list[tuple[int, str, str]]:
    """Run cases in processes; return exit status, output and errors of each."""
    words = ["-m", "tests.distributed.checkpoint_program", mesh, str(folder / "run"), *cases]
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"store-{mesh}-{'-'.join(cases)}"
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**rank_environment(rank, world, str(store)), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=500) for process in ranks]
    return [(p.returncode, *texts) for p, texts in zip(ranks, said, strict=True)]


def run(folder: Path, mesh: str, world: int, *cases: str) -> dict[str, Any]:
    """Run cases; all ranks have to say the same, which is returned."""
    said = start(folder, mesh, world, *cases)
    assert [status for status, _, _ in said] == [0] * world, [err for _, _, err in said]
    reports = [json.loads(out) for _, out, _ in said]
    assert all(each == reports[0] for each in reports)
    return reports[0]


def check(figures: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Hold what comes of steps 3 and 4 against an uninterrupted run's."""
    assert figures["losses"] == pytest.approx(wanted["losses"], abs=2e-6)
    for key in ("sums", "states"):
        assert figures[key] == pytest.approx(wanted[key], rel=CLOSE, abs=CLOSE)
    assert figures["step"] == 4


@pytest.mark.slow
def test_saved_on_four_loads_on_three_and_in_torch(tmp_path: Path) -> None:
    """With dropout: the random numbers of steps go on, too; tied, uneven, a sampler."""
    wanted = run(tmp_path, "data=2,tensor=2", 4, "saving")["saving"]
    assert wanted["path"] == "step-2"
    said = run(tmp_path, "data=3", 3, "loading", "loading_later")
    for case in ("loading", "loading_later"):
        check(said[case], wanted)
    by_torch = plain(str(tmp_path / "run" / "step-2"))
    assert set(by_torch["steps"].values()) == {2.0}
    shutil.copytree(tmp_path / "run", tmp_path / "one" / "run")
    check(run(tmp_path / "one", "", 1, "loading")["loading"], wanted)


@pytest.mark.slow
def test_saved_on_one_axis_loads_on_two_and_in_stages(tmp_path: Path) -> None:
    wanted = run(tmp_path, "data=4", 4, "still_saving")["still_saving"]
    for mesh in ("data=2,tensor=2", "pipe=2,data=2"):
        check(run(tmp_path, mesh, 4, "still_loading")["still_loading"], wanted)
    restored = plain(str(tmp_path / "run" / "step-2"))
    folder = tmp_path / "stages"
    again = run(folder, "pipe=2,tensor=2", 4, "still_saving")["still_saving"]
    check(again, wanted)
    check(run(folder, "data=2", 2, "still_loading")["still_loading"], wanted)
    by_torch = plain(str(folder / "run" / "step-2"))
    for key in ("sums", "states", "steps"):
        assert by_torch[key] == pytest.approx(restored[key], rel=CLOSE, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "world"), [("data=2,tensor=2", 4), ("pipe=2,data=2", 4)])
def test_by_the_functions_of_torch(tmp_path: Path, mesh: str, world: int) -> None:
    """``dcp.save`` and ``dcp.load`` of the step's own state; irc reads what torch wrote."""
    said = run(tmp_path, mesh, world, "titan")["titan"]
    check(said["dcp"], said["irc"])
    assert "DTensor" in said["kinds"]


@pytest.mark.slow
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    said = run(tmp_path, "data=2,tensor=2", 4, "saving_async")["saving_async"]
    assert said["left"] == ["step-4"]
    at_once = run(tmp_path / "at-once", "data=2,tensor=2", 4, "saving")["saving"]
    check(said, at_once)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_while_it_writes(tmp_path: Path, rank: int) -> None:
    """The checkpoint before is the last that there is, and loads."""
    said = start(tmp_path, "data=2", 2, "killed", KILLED=str(rank))
    assert said[rank][0] == -signal.SIGKILL
    assert said[1 - rank][0] not in (0, -signal.SIGKILL)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".step-3.partial", "step-2"]
    run(tmp_path, "data=2", 2, "still_loading")


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "world"), [("data=2,tensor=2", 4), ("pipe=2", 2)])
def test_weights_in_files_of_hugging_face(tmp_path: Path, mesh: str, world: int) -> None:
    said = run(tmp_path, mesh, world, "files")["files"]
    assert said["sums"] == pytest.approx(said["wanted"], rel=1e-5)
    assert said["refused"] == "checkpoint-failed"
    assert said["files"][-1] == "model.safetensors.index.json"
    assert len(said["files"]) > 2


def test_a_start_on_the_meta_device_and_what_one_rank_cannot_read(tmp_path: Path) -> None:
    """Numbers are those of one process; no rank has more than its part; all fail with one word."""
    both = run(tmp_path, "data=2", 2, "from_meta", "refused")
    said, told = both["from_meta"], both["refused"]["told"]
    assert said["equal"]
    assert said["on_meta"]
    assert said["share"] <= 0.55
    torn = "error[checkpoint-corrupt]: torn\n  help: copy it again"
    other = "error[state-mismatch]: another\n  because: it is\n  help: name it"
    assert told[:3] == [torn, torn, other]
    assert told[3].startswith("error[checkpoint-corrupt]")
    assert told[3].endswith("cannot be read: Permission denied")
    assert told[4].startswith("error[state-mismatch]")  # it has weights alone
    assert told[5] == other
