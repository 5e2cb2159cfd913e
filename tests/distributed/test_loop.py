"""The user's own training loop on several processes: as eager PyTorch trains on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

CLOSE = {"float32": 2e-6, "float64": 1e-11}
"""Of losses; the norms of gradients and parameters may be five times as far, relative to theirs."""
TRAINED = ("mlp", "outer_loss", "gpt", "convolutions", "frozen", "two_results", "accumulated",
           "sizes", "hooked", "saved", "dropout")  # fmt: skip


def run(folder: Path, mesh: str, dtype: str, *cases: str) -> list[dict[str, Any]]:
    """Run cases in as many processes as the mesh has ranks; return what each of them says."""
    world = 1
    for axis in mesh.partition("/")[0].split(","):
        world *= int(axis.partition("=")[2])
    words = ["tests.distributed.loop_program", mesh, dtype, str(folder / "saved"), *cases]
    return run_ranks(folder, world, *words)


def run_ranks(folder: Path, world: int, *words: str) -> list[dict[str, Any]]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=rank_environment(rank, world, str(folder / f"store-{words[-1]}")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=500) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, [err for _, err in said]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def check(errors: dict[str, float], dtype: str) -> None:
    assert errors.pop("losses", 0.0) < CLOSE[dtype]
    for name, error in errors.items():
        assert error < 5 * CLOSE[dtype], name


def test_a_loop_under_torchrun(tmp_path: Path) -> None:
    """Any optimiser, schedule and clipping; evaluation in between; what cannot be says so."""
    for each in run(tmp_path, "data=2", "float32", "mlp", "refusals"):
        check(each["mlp"], "float32")
        said = each["refusals"]
        assert said.pop("written between").startswith("torch: one of the variables")
        assert said == {
            "penalty": "not-differentiable",
            "pipe": "op-unsupported",
            "evaluating": "op-unsupported",
            "another batch": "input-mismatch",
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "dtype"),
    [
        ("data=2", "float32"),
        ("data=2,tensor=2", "float32"),
        ("data=2,tensor=2", "float64"),
        ("data=2/ddp", "float64"),
        ("data=4/fsdp", "float32"),
        ("tensor=2/tp", "float64"),
        ("tensor=2/tp+sp", "float32"),
        ("data=2,tensor=2/fsdp+tp+sp", "float64"),
    ],
)
def test_models_on_meshes(tmp_path: Path, mesh: str, dtype: str) -> None:
    """Twenty steps are those of one process, whatever is trained and however it is split."""
    for each in run(tmp_path, mesh, dtype, *TRAINED):
        for case in TRAINED:
            check(each[case], dtype)


@pytest.mark.slow
def test_under_wrappers_of_torch(tmp_path: Path) -> None:
    """DDP and FSDP around a module compiled for one device, and a compiled DDP, are plain DDP."""
    cases = ("ddp_of_compiled", "compiled_ddp", "fsdp_of_compiled")
    for each in run_ranks(tmp_path, 2, "tests.distributed.wrapped_program", *cases):
        for case in cases:
            assert each[case].pop("forward") == each[case].pop("backward") == 1, case
            check(each[case], "float32")


@pytest.mark.parametrize(
    "mesh", ["data=2/ddp", pytest.param("data=2/fsdp", marks=pytest.mark.slow)]
)
def test_writes_that_torch_does_not_count(tmp_path: Path, mesh: str) -> None:
    """An optimiser that sends parameters to other ranks writes through ``.data``, as scripts do."""
    for each in run_ranks(tmp_path, 2, "tests.distributed.unseen_program", mesh, "unseen"):
        assert max(each.values()) < 1e-11, each


def test_what_is_detached_is_not_trained(tmp_path: Path) -> None:
    """By ``detach`` and where gradients are off, as in a step (tests/training/test_detached.py)."""
    for each in run_ranks(
        tmp_path, 2, "tests.distributed.detached_program", "data=2/ddp", "detached"
    ):
        assert max(each.values()) < 1e-12, each
