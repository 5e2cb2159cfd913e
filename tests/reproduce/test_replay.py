"""What crashes leaves a reproducer that fails again; errors of the user's leave none."""

# pyright: basic
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr

import irc
from irc.backends.cpu import CpuBackend
from irc.cli import main
from irc.errors import IrcError
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.fuse import FusePass
from irc.pipeline.reproducer import FACTS, KEPT, PROGRAM, TRACEBACK, VARIABLE, notes_of

TEXT = """
builtin.module {
  func.func @forward(%x: !flow.tensor<[3, 5], f32> {role = "input", name = "x"})
      -> !flow.tensor<[3, 5], f32> {
    %z = flow.pointwise(%x) {fn = "exp", loc = "m.py:1", id = "unread"}
        : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    %y = flow.pointwise(%x) {fn = "silu", loc = "m.py:1", id = "n0"}
        : (!flow.tensor<[3, 5], f32>) -> !flow.tensor<[3, 5], f32>
    func.return %y : !flow.tensor<[3, 5], f32>
  }
}
"""


def crash(self: object, ctx: Context, op: ModuleOp) -> None:
    for each in list(op.walk()):
        each.attributes.pop("id", None)
    raise KeyError("planted")


def refuse(self: object, ctx: Context, op: ModuleOp) -> None:
    raise IrcError("op-unsupported", "planted")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "left"))
    (path := tmp_path / "program.mlir").write_text(TEXT)
    return str(path)


def left(program: str) -> list[Path]:
    folder = Path(program).parent / "left"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_a_crash_is_replayed(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(FusePass, "apply", crash)
        assert main(["opt", program, "-p", "canonicalize,fuse"]) == 70
        (folder,) = left(program)
        assert f"irc replay '{folder}'" in capsys.readouterr().err
        assert main(["replay", str(folder)]) == 1
        assert "in the same way" in capsys.readouterr().out
        assert main(["replay", str(folder), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["fails_as_before"] is True
    assert main(["replay", str(folder)]) == 0
    assert "does not fail" in capsys.readouterr().out
    assert {file.name for file in folder.iterdir()} == {PROGRAM, FACTS, TRACEBACK}
    assert "planted" in (folder / TRACEBACK).read_text()


def test_the_program_is_that_of_the_entry(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusePass, "apply", crash)
    assert main(["opt", program, "-p", "canonicalize,fuse"]) == 70
    (folder,) = left(program)
    assert json.loads((folder / FACTS).read_text())["is_exact"] is True
    text = (folder / PROGRAM).read_text()
    assert 'id = "n0"' in text  # the pass has removed it before it failed
    assert '"exp"' not in text  # canonicalize has run before


def test_other_numbers_are_a_failure_too(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = CanonicalizePass.apply

    def wrong(self: CanonicalizePass, ctx: Context, op: ModuleOp) -> None:
        before(self, ctx, op)
        for each in op.walk():
            if each.properties.get("fn") == StringAttr("silu"):
                each.properties["fn"] = StringAttr("tanh")

    monkeypatch.setattr(CanonicalizePass, "apply", wrong)
    assert main(["opt", program, "-p", "canonicalize", "--verify-each=exec"]) == 1
    (folder,) = left(program)
    assert main(["replay", str(folder)]) == 1


def test_a_backend_that_fails_leaves_one(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CpuBackend, kernels: object) -> dict[str, str]:
        raise ZeroDivisionError("planted")

    torch = pytest.importorskip("torch")
    with monkeypatch.context() as planted:
        planted.setattr(CpuBackend, "emit_plan_sources", fail)
        with pytest.warns(match="irc replay"), torch.no_grad():
            irc.compile(lambda x: x.sin() + 1)(torch.ones(3))
        folder = left(program)[0]
        assert "task.kernel" in (folder / PROGRAM).read_text()
        assert main(["replay", str(folder)]) == 1
    assert main(["replay", str(folder)]) == 0


def test_errors_of_the_user_leave_none(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CanonicalizePass, "apply", refuse)
    assert main(["opt", program, "-p", "canonicalize"]) == 3
    monkeypatch.setattr(CanonicalizePass, "apply", crash)
    monkeypatch.setenv(VARIABLE, "off")
    assert main(["opt", program, "-p", "canonicalize"]) == 70
    assert left(program) == []


def test_newest_are_kept_and_nothing_else_is_removed(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CanonicalizePass, "apply", crash)
    (other := Path(program).parent / "left" / "thesis").mkdir(parents=True)
    os.utime(other, (0, 0))
    for _ in range(KEPT + 2):
        assert main(["opt", program, "-p", "canonicalize"]) == 70
    assert len(left(program)) == KEPT + 3  # all of them are new
    for folder in left(program):
        os.utime(folder, (0, 0))
    assert main(["opt", program, "-p", "canonicalize"]) == 70
    assert other.is_dir()
    assert len(left(program)) == KEPT + 1


def test_causes_that_go_round_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    second.add_note("irc replay 'x' fails in the same way")
    assert notes_of(first) == ["irc replay 'x' fails in the same way"]
    handled = ValueError("handled")
    handled.add_note("no reproducer was left")
    other = KeyError("other")
    other.__context__ = handled
    assert notes_of(other) == ["no reproducer was left"]
    other.__suppress_context__ = True  # raised from None
    assert notes_of(other) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes all")
def test_where_none_can_be_written_the_crash_is_said(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CanonicalizePass, "apply", crash)
    (closed := Path(program).parent / "closed").mkdir(mode=0o500)
    monkeypatch.setenv(VARIABLE, str(closed / "in"))
    assert main(["opt", program, "-p", "canonicalize"]) == 70
    assert "no reproducer was left" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["", "{}", '{"format": 9}', "[1]", "nonsense"])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, damage: str) -> None:
    for name in (PROGRAM, FACTS, TRACEBACK):
        (tmp_path / name).write_text(damage if name == FACTS else "")
    assert main(["replay", str(tmp_path)]) == 2
    assert main(["reduce", str(tmp_path)]) == 2
    assert main(["replay", str(tmp_path / "none")]) == 2


def test_a_program_that_is_none_is_refused(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CanonicalizePass, "apply", crash)
    assert main(["opt", program, "-p", "canonicalize"]) == 70
    (folder,) = left(program)
    (folder / PROGRAM).write_text("builtin.module {")
    assert main(["replay", str(folder)]) == 2
