"""Malformed files end in one message, quickly, and nothing is written beside the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from irc.cli import main
from tests.malformed.models import MODELS
from tests.malformed.trial import Outcome, make, try_file
from tests.malformed.warm import warm

FEW, MANY = 30, 200
INTEGER_EXP = 595
"""A seed whose file takes the exponential of integers."""


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def outcomes(room: Path, first: int, count: int) -> list[Outcome]:
    found: list[Outcome] = []
    seed = first
    while sum(outcome.malformed for outcome in found) < count:
        place = room / str(seed)
        place.mkdir()
        found.append(try_file(*make(seed), place))
        seed += 1
    return found


@pytest.mark.parametrize("name", list(MODELS))
def test_models_are_well_formed(name: str, tmp_path: Path) -> None:
    """Else every file made of one would be refused for the same reason."""
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name]().SerializeToString())
    sizes = ["--size", "batch=3"] if name == "functional" else []
    assert main(["compile", str(path), "-o", str(tmp_path / "out"), *sizes]) == 0


def test_some_files(tmp_path: Path) -> None:
    for outcome in outcomes(tmp_path, 0, FEW):
        assert not outcome.faults, (outcome.name, outcome.faults, outcome.message)


@pytest.mark.slow
def test_many_files(tmp_path: Path) -> None:
    for outcome in outcomes(tmp_path, 1000, MANY):
        assert not outcome.faults, (outcome.name, outcome.faults, outcome.message)


def test_types_are_checked_against_the_schema(tmp_path: Path) -> None:
    outcome = try_file(*make(INTEGER_EXP), tmp_path)
    assert outcome.status == 2
    assert "operand 0 of Exp is tensor(int64)" in outcome.message


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
