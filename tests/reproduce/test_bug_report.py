"""The archive of a bug: what the machine is, the crash, and nothing that is the user's own."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

import irc
from irc.cli import main
from irc.dialects.builder import functions
from irc.dialects.text import load
from irc.passes.canonicalize import CanonicalizePass
from irc.pipeline.failure import Failure, Stage
from irc.pipeline.reproducer import PROGRAM, VARIABLE, Reproducer, files_of
from irc.reproduce.anonymous import anonymous
from irc.reproduce.private_text import without_names

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
        ("at /mnt/data/own_folder/x.bin now", "at <path> now"),
        ("C:\\Users\\ada\\net.py", "<path>"),
        ("cannot read '/srv/own plan v2.txt'", "cannot read '<path>'"),
        ("ada@acme.example said", "<path> said"),
        ("[3, 5] / 2 and/or 1e-5", "[3, 5] / 2 and/or 1e-5"),
        ("no op flow.pointwise in irc.passes.fuse", "no op flow.pointwise in irc.passes.fuse"),
    ],
)
def test_paths_and_addresses(text: str, clean: str) -> None:
    assert without_names(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "models/secret.onnx",
        "~/secret.py",
        "~secret/x",
        "/secret.txt",
        "/secret",
        "C:\\secret.txt",
        "hf:secretorg/model",
        "s3://secret/x?y=secret",
        "10.1.2.3:8080",
        "/home/ada/my, project/secret.py",
        "/opt/a/b=secret/c",
        "it's /home/secret/x isn't",
        "secret-model.safetensors",
        "no file '/a b/secret c'",
    ],
)
def test_places_of_every_form(text: str) -> None:
    clean = without_names(f"error: {text}, and more")
    assert "secret" not in clean and "10.1" not in clean
    assert clean.startswith("error: ") and "<path>" in clean


PROGRAM_OF_SECRETS = """
builtin.module attributes {irc.cluster = "/home/ada/acme.toml",
    irc.notes = "{\\22acmeweight\\22: 1}"} {
  func.func @acme_layer(%p: !flow.tensor<[acmebatch, 5], f32>)
      -> !flow.tensor<[acmebatch, 5], f32> {
    %y = flow.extern(%p) {loc = "a.py:1", id = "acme_tower/n1", target = "acmelib::acmeop",
        arguments = "[[{\\22operand\\22: 0}, \\22/ada/acme\\22], {\\22acmekey\\22: \\22acme\\22}]"}
        : (!flow.tensor<[acmebatch, 5], f32>) -> !flow.tensor<[acmebatch, 5], f32>
    func.return %y : !flow.tensor<[acmebatch, 5], f32>
  }
  func.func @forward(
      %acmevalue: !flow.tensor<[acmebatch, 5], f32> {role = "input", name = "acmeweight"})
      -> !flow.tensor<[acmebatch, 5], f32> {
    %z = func.call @acme_layer(%acmevalue) {loc = "a.py:2", id = "n0"}
        : (!flow.tensor<[acmebatch, 5], f32>) -> !flow.tensor<[acmebatch, 5], f32>
    func.return %z : !flow.tensor<[acmebatch, 5], f32>
  }
}
"""

TRACEBACK_OF_SECRETS = """Traceback (most recent call last):
  File "{irc}", line 3, in apply
    y = 1|2
  File "/home/ada/work/torch/acme_model/net.py", line 9, in acme_forward
    raise AcmeError("acme")
acmepkg.errors.AcmeError: acmeweight of models/acme.onnx
"""


def test_names_of_sizes_functions_ops_and_texts() -> None:
    where = str(Path(irc.__file__).parent / "pipeline" / "apply.py")
    clean = anonymous(
        Reproducer(
            PROGRAM_OF_SECRETS,
            Stage('rewrite{rules="/home/ada/acme.rules"}'),
            Failure("AcmeError", "acmepkg.errors:acme", "acmeweight of models/acme.onnx"),
            True,
            {},
            TRACEBACK_OF_SECRETS.replace("{irc}", where),
        )
    )
    for name, text in files_of(clean).items():
        assert "acme" not in text.lower() and "ada" not in text, name
    assert "y = 1|2" in clean.traceback and '"irc/pipeline/apply.py", line 3' in clean.traceback
    module = load(clean.program)
    assert [*functions(module)] == ["f0", "forward"]
    assert "[s0, 5]" in clean.program and "own::op" in clean.program
