"""The archive of a bug: what the machine is, the crash, and nothing that is the user's own."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from irc.cli import main
from irc.passes.canonicalize import CanonicalizePass
from irc.pipeline.reproducer import PROGRAM, VARIABLE
from irc.reproduce.anonymous import without_names

TEXT = """
builtin.module attributes {irc.note = "{\\22split\\22:\\22acme.secret_tower.weight\\22}"} {
  func.func @forward(
      %p: !flow.tensor<[3, 5], f32> {role = "parameter", name = "acme.secret_tower.weight"},
      %x: !flow.tensor<[3, 5], f32> {role = "input", name = "input"})
      -> (!flow.tensor<[3, 5], f32> {role = "output", name = "merger_price"}) {
    %y = flow.pointwise(%x, %p) {fn = "add", loc = "/home/ada/acme/merger.py:17", id = "n0"}
        : (!flow.tensor<[3, 5], f32>, !flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    func.return %y : !flow.tensor<[3, 5], f32>
  }
}
"""
SECRETS = ("acme", "secret", "tower", "merger", "ada", "hunter2")


def crash(self: object, ctx: Context, op: ModuleOp) -> None:
    raise KeyError("acme.secret_tower.weight of /home/ada/acme/merger.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "acme"))
    monkeypatch.setenv("IRC_STORE", "s3://acme/hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "program.mlir").write_text(TEXT)
    monkeypatch.setattr(CanonicalizePass, "apply", crash)
    assert main(["opt", str(path), "-p", "canonicalize"]) == 70
    (folder,) = (tmp_path / "acme").iterdir()
    return folder


def test_nothing_is_named_and_the_crash_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bug-report", "-o", "bug.zip", "--reproducer", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "fails in the same way" in said
    assert "look at it before you send it" in said
    with zipfile.ZipFile("bug.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    for name, text in files.items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} in {name}"
    program = files[f"reproducer/{PROGRAM}"]
    assert 'role = "input"' in program  # a word of irc's, and the name of an argument
    assert 'fn = "add"' in program
    assert "[3, 5]" in program
    assert "KeyError" in files["reproducer/traceback.txt"]
    assert "irc/pipeline/" in files["reproducer/traceback.txt"]
    known = json.loads(files["environment.json"])
    assert known["variables"]["OMP_NUM_THREADS"] == "2"
    assert known["variables"]["IRC_STORE"] == "set"
    assert known["versions"]["xdsl"][0].isdigit()
    assert known["processor"]["cores"] > 0


def test_what_is_taken_along_is_replayed(folder: Path) -> None:
    assert main(["bug-report", "-o", "bug.zip", "--reproducer", str(folder)]) == 0
    with zipfile.ZipFile("bug.zip") as archive:
        archive.extractall("sent")
    assert main(["replay", "sent/reproducer"]) == 1


def test_without_a_crash_it_is_the_machine_alone(folder: Path) -> None:
    assert main(["bug-report"]) == 0
    with zipfile.ZipFile("irc-bug.zip") as archive:
        assert archive.namelist() == ["about.txt", "environment.json"]
    assert main(["bug-report"]) == 2  # it is there, and is kept
    assert main(["bug-report", "-o", "no/such/folder.zip"]) == 2
    assert main(["bug-report", "-o", "new.zip", "--reproducer", "none"]) == 2
    assert not Path("new.zip").exists()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at /mnt/data/own folder/x.bin now", "at <path> now"),
        ("C:\\Users\\ada\\net.py", "<path>"),
        ("cannot read '/srv/own plan v2.txt'", "cannot read '<path>'"),
        ("ada@acme.example said", "<path> said"),
        ("[3, 5] / 2 and/or 1e-5", "[3, 5] / 2 and/or 1e-5"),
    ],
)
def test_paths_and_addresses(text: str, clean: str) -> None:
    assert without_names(text) == clean
