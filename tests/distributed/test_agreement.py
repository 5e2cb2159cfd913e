"""Ranks that are given different batches or weights: an error on every rank, never a mixture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from irc.dialects.placement import Mesh
from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

INPUTS = "input-mismatch: rank 1 was given other inputs than rank 0"
"""What both ranks say of a call."""


def run(folder: Path, *cases: str, mesh: str = "data=2") -> dict[str, list[str]]:
    """Run cases in the processes of a mesh; return what all of them say."""
    words = ["-m", "tests.distributed.agreeing_program", mesh, *cases]
    world = Mesh.parse(mesh).num_ranks
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=rank_environment(rank, world, str(folder / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate(timeout=280) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, [err for _, err in said]
    first, *rest = (json.loads(out) for out, _ in said)
    assert all(each == first for each in rest)
    return first


def weight(name: str) -> str:
    return f"state-mismatch: '{name}' has other values on rank 1 than on rank 0"


def test_batches_and_weights_of_a_step(tmp_path: Path) -> None:
    messages = run(tmp_path, "batches", "unchecked", "weights", "after_a_step")
    assert messages["batches"] == [INPUTS, "", INPUTS, INPUTS, INPUTS, INPUTS, ""]
    assert messages["unchecked"] == [INPUTS, "", ""]
    states = [weight("0.bias"), weight("0.bias"), weight("optimizer.exp_avg.2.bias")]
    assert messages["weights"] == states
    *gone, again = messages["after_a_step"]
    assert [text.partition(":")[0] for text in gone] == ["weights-apart", "weights-apart"]
    assert again == ""


def seventh(ranks: str) -> list[str]:
    """What all ranks say of other batches in step 7."""
    were = "was" if ranks.startswith("rank ") else "were"
    said = f"{ranks} {were} given other inputs than rank 0; "
    inputs = {"step": ("input", "target"), "loop": ("x", "y")}
    return [
        f"{way} {what}: {said}{reason}"
        for way, (x, y) in inputs.items()
        for what, reason in (
            ("last", f"'{x}' has other values on {ranks}"),
            ("label", f"'{y}' has other values on {ranks}"),
            ("shape", f"'{x}' is [4, 8] float32 on {ranks}, and [8, 8] float32 on rank 0"),
            ("dtype", f"'{y}' is [8, 4] float64 on {ranks}, and [8, 4] float32 on rank 0"),
        )
    ]


def test_other_batches_in_the_seventh_step_are_named(tmp_path: Path) -> None:
    assert run(tmp_path, "seventh")["seventh"] == seventh("rank 1")


@pytest.mark.slow
def test_copies_that_go_apart_are_named(tmp_path: Path) -> None:
    def apart(when: str, name: str) -> str:
        return f"replicas-differ: {when}, '{name}' has other values on rank 1 than on rank 0"

    assert run(tmp_path, "copies")["copies"] == [
        *("", "", apart("after step 2", "0.bias"), "", "replicas-differ"),
        *("", "", apart("after step 2", "optimizer.exp_avg.2.weight"), "", "replicas-differ"),
        *("", "", "", apart("before call 4", "net.0.bias")),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
def test_all_ranks_that_are_given_another_batch_are_named(tmp_path: Path, mesh: str) -> None:
    assert run(tmp_path, "seventh", mesh=mesh)["seventh"] == seventh("ranks 1, 3")


def test_plain_forward_passes(tmp_path: Path) -> None:
    messages = run(tmp_path, "forward", "entries")
    changed = weight("0.weight")
    assert messages["forward"] == [
        *(weight("0.bias"), "", INPUTS, INPUTS),
        *(changed, "", changed, ""),
    ]
    assert messages["entries"] == [weight("0.bias"), "", INPUTS, ""]
