"""Malformed files end in one message, quickly, and nothing is written beside the plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from irc.cli import main
from tests.malformed.models import MODELS
from tests.malformed.trial import make, try_file
from tests.malformed.warm import warm
from tests.models.large_trials import LARGE

FEW, MANY = 20, 200
INTEGER_EXP = 595
"""A seed whose file takes the exponential of integers."""


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def command(*options: str) -> str:
    """Run the command: a process of its own, so that memory is not that of the test runner."""
    words = [sys.executable, "-m", "tests.malformed", *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", list(MODELS))
def test_models_are_well_formed(name: str, tmp_path: Path) -> None:
    """Else every file made of one would be refused for the same reason."""
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name]().SerializeToString())
    sizes = ["--size", "batch=3"] if name == "functional" else []
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), *sizes]) == 0


def test_some_files() -> None:
    """A sample of each kind; the command makes as many as it is asked for."""
    printed = command("--count", str(FEW))
    for kind in ("onnx", "plan", "cluster", "ir"):
        assert f"{kind}: {FEW} malformed files" in printed


@pytest.mark.slow
def test_many_files() -> None:
    assert f"{MANY} malformed files" in command("--count", str(MANY), "--seed", "1000")


def test_types_are_checked_against_the_schema(tmp_path: Path) -> None:
    outcome = try_file(*make(INTEGER_EXP), tmp_path)
    assert outcome.status == 2
    assert "operand 0 of Exp is tensor(int64)" in outcome.message


@pytest.mark.slow
def test_what_is_large_at_small_sizes_takes_little() -> None:
    """Sizes are open, and plans are tried at numbers: their tensors might take all memory."""
    assert f"0 malformed files of {len(LARGE)} made, 0 with faults" in command("--large")


def test_faults_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that writes beside its plan and leaves with a traceback is caught."""

    def bad(arguments: list[str]) -> int:
        Path("../stray").write_text("x")
        raise KeyError(arguments[0])

    monkeypatch.setattr("irc.cli.main", bad)
    outcome = try_file("planted", MODELS["perceptron"]().SerializeToString(), tmp_path)
    assert {"exit status 99", "a traceback", "it wrote outside its output folder"} <= {
        *outcome.faults
    }
