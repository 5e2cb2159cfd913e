"""Every command prints JSON for programs, and nothing else with it."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.cli import COMMANDS, main
from irc.commands.json_output import print_json

WRITES_FILES = {
    "opt": "prints the text of a program",
    "completion": "prints a script for a shell",
    "export": "prints a file for PyTorch or torchtitan; --format json is one of them",
    "launch": "prints the file of a launcher; --format json is one of them",
}
"""The commands whose output is a file for other programs already, and which."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json") / "plan"
    torch.manual_seed(0)
    irc.export_plan(nn.Linear(8, 8), (torch.randn(4, 8),), out=folder)
    return folder


def facts(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> Any:
    """Run a command with --json and return what it printed, read as strict JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == status

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_or_writes_a_file(command: str) -> None:
    parser = argparse.ArgumentParser()
    COMMANDS[command].add_arguments(parser)
    has_json = "--json" in parser.format_help()
    assert has_json != (command in WRITES_FILES)


def test_the_page_of_the_guide_names_every_command_with_json() -> None:
    page = (Path(__file__).parents[1] / "examples/guide/json.md").read_text()
    for command in COMMANDS:
        assert f"`irc {command}" in page, command


def test_what_is_no_number_of_json_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [math.inf, math.nan, 1.5], 2: None})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "2": None}


def test_check(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = facts(capsys, "check", plan)
    assert printed["agrees"]
    assert printed["unjudged"] is None
    assert all(0 <= each["largest_error"] <= each["allowed"] for each in printed["stages"])
    assert sum(each["values"] for each in printed["stages"]) > 5
    weights = facts(capsys, "check", plan, "--weights")["weights"]
    assert weights[0]["bytes"] == (plan / "weights.safetensors").stat().st_size


def test_run(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = facts(capsys, "run", plan)
    assert printed["ok"]
    assert printed["comparison"]["relative"] < 1e-4
    assert [seconds > 0 for seconds in printed["seconds"]] == [True]


def test_trust_and_sign(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = facts(capsys, "trust", plan, "--show")
    assert all(len(root["sha256"]) == 64 and root["trusted"] is True for root in roots)
    assert Path(roots[0]["file"]).parent == plan
    new_key = facts(capsys, "sign", "--new-key", tmp_path / "key.pem")
    again = facts(capsys, "sign", plan, "--key", tmp_path / "key.pem")
    assert again == {"key": new_key["key"], "signed": len(roots)}


def test_tune(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path))
    printed = facts(capsys, "tune", plan, "--rounds", 1, "--anyway")
    assert printed["rows"][0]["calls"] >= 1
    assert printed["predicted_s"] > 0
    assert Path(printed["path"]).is_file()


def test_report_and_bug_report(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = facts(capsys, "report", plan, "-o", tmp_path / "p.html")
    assert page["bytes"] == Path(page["file"]).stat().st_size
    archive = facts(capsys, "bug-report", "-o", tmp_path / "bug.zip")
    assert set(archive["members"]) == {"about.txt", "environment.json"}
    assert archive["fails_alike"] is None


def test_explanations(capsys: pytest.CaptureFixture[str]) -> None:
    assert facts(capsys, "explain", "error", "mesh-syntax")["exit_code"] == 2
    fuse = facts(capsys, "explain", "pass", "fuse")
    assert fuse["level"]
    assert "pins" in {option["name"] for option in fuse["options"]}
    assert "IRC_LOGS" in facts(capsys, "explain", "logs")["about"]


def test_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = facts(capsys, "cluster", "show")
    assert {"name": "8xH100", "devices": 8} in known["clusters"]
    one = facts(capsys, "cluster", "show", "8xH100", "--mesh", "tensor=8")
    assert one["device"]["name"] == "H100-80GB-SXM"
    (axis,) = one["axes"]
    seconds = [c["seconds"] for c in axis["collectives"] if c["kind"] == "all_reduce"]
    assert seconds == sorted(seconds)
    assert main(["cluster", "show", "8xH100", "--toml", "--json"]) == 2
    file = tmp_path / "lab.toml"
    assert main(["cluster", "show", "8xH100", "-o", str(file), "--json"]) == 0
    output, said = capsys.readouterr()
    assert json.loads(output)["name"] == "8xH100"
    assert "written to" in said


def test_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"1f1b", "zb-v", "vocab-1:NAME"} <= {
        each["name"] for each in facts(capsys, "schedule", "list")
    }
    sizes = "--ranks", 4, "--micro-batches", 8
    shown = facts(capsys, "schedule", "show", "1f1b", *sizes)
    assert (shown["stages"], shown["makespan"], shown["activations"]) == (4, 33, [4, 3, 2, 1])
    printed = facts(capsys, "schedule", "search", *sizes)
    assert printed["makespan"] <= printed["best_by_name"]["makespan"] <= shown["makespan"]
    assert len(printed["schedule"].splitlines()) >= 4
    step = facts(capsys, "schedule", "simulate", "1f1b", *sizes, "--mesh", "data=2")
    assert step["ranks"] == 8
    assert [each["rank"] for each in step["classes"]] == [0, 1, 2, 3]
    assert main(["schedule", "draw", "1f1b", "--json"]) == 2
    assert "list, show, search, simulate" in capsys.readouterr().err
