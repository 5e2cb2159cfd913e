"""Training on four processes: as PyTorch trains on one, and each holds its part only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.hugging_face import llama
from tests.plan.programs import rank_environment

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

CLOSE = 5e-5
"""Of float32 after three steps of AdamW, relative to a tensor's magnitude."""


def run(folder: Path, mesh: str, *cases: str) -> list[dict[str, Any]]:
    """Run cases in four processes; return what each of them says."""
    state = folder / "state.pt"
    words = ["-m", "tests.distributed.training_program", mesh, str(state), *cases]
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=rank_environment(rank, 4, str(folder / f"store-{mesh}-{'-'.join(cases)}")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [process.communicate(timeout=500) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, [err for _, err in said]
    return [json.loads(out) for out, _ in said]


def check(report: dict[str, Any]) -> None:
    assert report["losses"] < 1e-5
    assert report["parameters"] < CLOSE
    assert report["states"] < CLOSE


def test_a_step_under_torchrun(tmp_path: Path) -> None:
    """A loss function, batches of two sizes; the module's parameters are no longer whole.

    In bfloat16 sums over ranks are rounded; the parts of a master come together as they were.
    """
    for each in run(tmp_path, "data=2,tensor=2", "mlp", "half"):
        check(each["mlp"])
        assert each["mlp"]["on_meta"]
        report = each["half"]
        assert report["split"]
        assert report["kept"]
        assert report["dtype"] == "torch.bfloat16"
        assert report["losses"] < 5e-3
        assert max(report["parameters"], report["states"]) < 3e-2


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
def test_models_on_meshes(tmp_path: Path, mesh: str) -> None:
    """Tied weights and clipping; a Hugging Face Llama by keywords; frozen parameters."""
    cases = ("mlp", "gpt", "hugging_face", "frozen", "dropout", "micro_batches")
    for each in run(tmp_path, mesh, *cases):
        for case in cases:
            check(each[case])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2,tensor=2", "pipe=2,data=2"])
def test_a_rank_that_overflows_skips_the_step_on_all(tmp_path: Path, mesh: str) -> None:
    for each in run(tmp_path, mesh, "scaled"):
        report = each["scaled"]
        mine, alone = report["scales"]
        assert mine == alone
        assert mine[8] == mine[7] / 2
        assert report["steps"][0] == report["steps"][1] == len(mine) - len(set(mine))
        assert report["losses"] < 5e-3
        assert report["parameters"] < 3e-2


@pytest.mark.slow
def test_adapters_of_peft(tmp_path: Path) -> None:
    """Frozen weights have no states, and what is saved loads in plain PEFT."""
    peft = pytest.importorskip("peft")
    for each in run(tmp_path, "data=2,tensor=2", "peft"):
        report = each["peft"]
        check(report)
        assert report["states bytes"] < 0.2 * report["whole"]
    plain = peft.PeftModel.from_pretrained(llama(2), tmp_path / "adapter").eval()
    tokens = torch.randint(0, 131, (4, 16), generator=torch.Generator().manual_seed(5))
    logits = plain(input_ids=tokens).logits.detach().double()
    assert float(logits.square().sum()) == pytest.approx(report["logits"], rel=1e-4)


@pytest.mark.slow
def test_what_is_stored_is_split(tmp_path: Path) -> None:
    """Under a short budget a rank has a fourth (ZeRO 3); pins on states give ZeRO 1."""
    cases = ("short_of_memory", "split_states")
    for each in run(tmp_path, "data=4", *cases):
        whole = each["short_of_memory"]["whole"]
        for case in cases:
            check(each[case])
        held = each["short_of_memory"]["bytes"]
        assert held["parameters"] <= 0.27 * whole
        assert held["states"] <= 0.27 * 2 * whole + 8
        held = each["split_states"]["bytes"]
        assert held["parameters"] == whole
        assert held["states"] <= 0.27 * 2 * whole + 8


@pytest.mark.slow
def test_a_state_goes_to_another_mesh(tmp_path: Path) -> None:
    said = run(tmp_path, "data=4", "saving")
    assert [each["saving"]["given"] for each in said] == [True, False, False, False]
    for each in run(tmp_path, "data=2,tensor=2", "loading"):
        check(each["loading"])


@pytest.mark.slow
def test_ranks_that_give_different_batches(tmp_path: Path) -> None:
    for each in run(tmp_path, "data=4", "another_batch"):
        assert each["another_batch"] == {"refused": "input-mismatch"}
