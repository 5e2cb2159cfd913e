"""Pipelines on two and four processes: as PyTorch trains on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

SCHEDULES = (
    "gpipe", "1f1b", "interleaved:2", "gis:2", "breadth-first:2", "zb-h1", "zb-h2", "zb-v",
    "v-half", "v-min", "dualpipe", "dualpipe-v",
)  # fmt: skip


def run(folder: Path, mesh: str, processes: int, *cases: str) -> list[dict[str, Any]]:
    """Run cases; return what each process says."""
    return programs(folder, processes, "tests.distributed.pipeline_program", mesh, *cases)


def programs(folder: Path, processes: int, *words: str) -> list[dict[str, Any]]:
    """Run a module on some processes; return what each says."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=rank_environment(rank, processes, str(folder / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [process.communicate(timeout=800) for process in ranks]
    assert [p.returncode for p in ranks] == [0] * processes, [err for _, err in said]
    return [json.loads(out) for out, _ in said]


def check(reports: list[dict[str, Any]]) -> None:
    for each in reports:
        for case, numbers in each.items():
            assert numbers["losses"] < 1e-11, case
            assert numbers["parameters"] < 1e-11, case
            assert numbers["on_meta"], case


def test_two_stages_and_four_on_two_processes(tmp_path: Path) -> None:
    """Tied weights at both ends; a rank that has two stages; ignored targets."""
    check(run(tmp_path, "pipe=2", 2, "tied,1f1b", "gpt,zb-v"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_an_order_that_was_searched(tmp_path: Path, ranks: int) -> None:
    """With the losses and parameters of eager training, as those of 1f1b are."""
    check(run(tmp_path, f"pipe={ranks}", ranks, "tied,search", "gpt,search,untagged"))


@pytest.mark.slow
def test_messages_without_tags(tmp_path: Path) -> None:
    """As NCCL has them: told apart by channel, direction and order; two ways at once, two sizes."""
    check(run(tmp_path, "pipe=2", 2, "tied:10:7,dualpipe,untagged"))


@pytest.mark.slow
def test_batches_that_micro_batches_do_not_share_equally(tmp_path: Path) -> None:
    """Of three kinds: 3, 3, 2, 2; 2, 2, 2, 1; and an even one."""
    check(run(tmp_path, "pipe=2", 2, "tied:10:7:8:10,1f1b", "conv:10:8:7,zb-h1"))


def test_a_further_kind_of_batch_has_the_same_stages(tmp_path: Path) -> None:
    """Also where another cut would be faster for it: ranks hold their own weights alone."""
    for said in programs(tmp_path, 2, "tests.distributed.cut_program"):
        assert said["losses"] < 1e-11
        assert said["parameters"] < 1e-11


@pytest.mark.slow
def test_a_vocabulary_on_all_ranks(tmp_path: Path) -> None:
    """Saved states are those of the whole layer: a schedule without slices goes on from them."""
    program = "tests.distributed.vocabulary_program"
    cases = ("smoothed bias,vocab-1:1f1b", "turned,vocab-2:zb-v", "bias,vocab-2:1f1b,f32")
    for said in programs(tmp_path, 2, program, "pipe=2", *cases):
        for case, numbers in said.items():
            assert max(numbers.values()) < (2e-6 if case.endswith("f32") else 1e-11), case


@pytest.mark.slow
def test_a_vocabulary_on_the_ranks_of_stages_with_a_mesh(tmp_path: Path) -> None:
    """And batches that micro-batches do not share equally, in slices that data splits."""
    check(run(tmp_path, "pipe=2,data=2", 4, "gpt:8:10,vocab-1:1f1b,data", "gpt,vocab-2:zb-h1"))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_schedule(tmp_path: Path, schedule: str) -> None:
    check(run(tmp_path, "pipe=2", 2, f"tied,{schedule}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "skips", "frozen", "dropped", "experts"])
def test_each_model(tmp_path: Path, name: str) -> None:
    check(run(tmp_path, "pipe=2", 2, f"{name},1f1b", f"{name},zb-h1"))


@pytest.mark.slow
def test_meshes_inside_of_stages(tmp_path: Path) -> None:
    """Values that are split over a stage's ranks go to the ranks that need them."""
    check(run(tmp_path, "pipe=2,data=2", 4, "gpt,1f1b,data", "tied,zb-h1,data"))


@pytest.mark.slow
def test_tensor_axis_inside_of_stages(tmp_path: Path) -> None:
    check(run(tmp_path, "pipe=2,tensor=2", 4, "gpt,1f1b,tensor"))


@pytest.mark.slow
def test_projections_in_slices_that_ranks_divide(tmp_path: Path) -> None:
    """Queries, keys and values have a slice of a weight each; states are of the whole one."""
    check(run(tmp_path, "tensor=2", 2, "gpt,1f1b"))
