"""What the command line says to input that is wrong."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from xdsl.passes import ModulePass

import irc.commands.list
import irc.plugin
from irc.cli import main
from irc.error_pages import REGISTRY
from irc.passes import BUILTIN
from irc.plugin import Registered

PROGRAM = "builtin.module {\n}\n"


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("", "command-unknown", "compile"),
        ("complie m.onnx", "command-unknown", "did you mean 'compile'?"),
        ("compile m.onnx --msh data=2", "option-unknown", "did you mean '--mesh'?"),
        ("compile --mesh=2 --backnd=cpu", "option-unknown", "did you mean '--backend'?"),
        ("--tracebak list errors", "option-unknown", "did you mean '--traceback'?"),
        ("compile", "option-value", "MODEL.onnx"),
        ("run plan --nproc four", "option-value", "four"),
        ("list pases", "option-value", "passes"),
        ("launch plan --format k8s", "option-value", "slurm"),
        ("explain error mesh-sintax", "option-value", "did you mean 'mesh-syntax'?"),
        ("explain pass no-such-pass-at-all", "pass-unknown", "no-such-pass-at-all"),
        ("opt no-such-file.mlir", "file-missing", "no-such-file.mlir"),
        ("opt . -p no-such-pass-at-all", "pass-unknown", "no-such-pass-at-all"),
        ("opt . -p a{{", "option-value", "a{{"),
    ],
)
def test_bad_input(words: str, code: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"error[{code}]: ")
    assert says in errors
    assert "Traceback" not in errors
    assert errors.endswith(f"  more: irc explain error {code}\n")


def test_traceback_on_demand() -> None:
    with pytest.raises(irc.errors.IrcError):
        main(["opt", "no-such-file.mlir", "--traceback"])


def test_bug_says_that_it_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(irc.commands.list.KINDS, "errors", lambda: [][0])
    assert main(["list", "errors"]) == 70
    errors = capsys.readouterr().err
    assert errors.startswith("error[internal]: IndexError")
    assert "--traceback" in errors


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> list[tuple[str, str]]:
        raise KeyboardInterrupt

    monkeypatch.setitem(irc.commands.list.KINDS, "errors", interrupted)
    assert main(["list", "errors"]) == 130


def test_closed_pipe_is_no_error() -> None:
    code = "import sys, irc.cli; sys.exit(irc.cli.main(['list', 'errors']))"
    line = f'"{sys.executable}" -c "{code}" | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", REGISTRY)
def test_explain_error(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "error", code]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{code}: ")
    assert re.search(r"^Fails:\n    .+\n\nInstead:\n    .+", page, re.MULTILINE)


@pytest.mark.parametrize("name", BUILTIN)
def test_explain_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pass", name]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{name}\n\n")
    assert "Level: " in page
    assert "Options:\n  " in page


def test_passes_are_listed_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "passes"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    numbered = [row for row in rows if row[1].isdecimal()]
    assert [int(row[1]) for row in numbered] == [*range(1, len(numbered) + 1)]
    assert numbered[0][:4] == ["canonicalize", "1", "flow", "model"]
    assert [row[0] for row in numbered][-2:] == ["reuse-memory", "plan-memory"]
    assert numbered[-1][2:4] == ["task", "function"]


@pytest.mark.parametrize("kind", irc.commands.list.KINDS)
def test_lists_say_something_of_each_name(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) > 2
    for row in rows:
        assert re.fullmatch(r"[a-z][a-z0-9_.-]* +\S.*", row), row


@pytest.mark.parametrize("option", ["--verify-each", "--verify-each=exec", "--split-input-file"])
def test_opt_prints_the_program(
    option: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", option, program]) == 0
    assert capsys.readouterr().out == PROGRAM


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("builtin.module {", "ir-syntax"),
        ('"no.such"() : () -> ()', "ir-syntax"),
        ("\xff\x00", "ir-syntax"),
        ("// " + "9" * 5000, "ir-too-large"),
        ("[" * 5000, "ir-too-large"),
    ],
)
def test_opt_refuses(
    text: str, code: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(program).write_bytes(text.encode("latin-1"))
    assert main(["opt", program]) == 2
    assert capsys.readouterr().err.startswith(f"error[{code}]")


def test_opt_goes_on_after_diagnostics(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(program).write_text("builtin.module {\n// -----\n" + PROGRAM)
    assert main(["opt", program, "--split-input-file", "--verify-diagnostics"]) == 0
    assert capsys.readouterr().out.startswith("error[ir-syntax]")


class Sample(ModulePass):
    """A pass of a plug-in."""

    name = "sample"
    level = "flow"

    def apply(self, ctx: object, op: object) -> None: ...


class Misnamed(Sample):
    """A pass that has another name than it is registered by."""

    name = "another"


def register(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    here = [
        Registered("sample", package, EntryPoint("sample", value, irc.plugin.GROUP))
        for package, value in packages.items()
    ]
    monkeypatch.setattr(irc.plugin, "plugin_passes", lambda: here)


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ({"one": "a:B", "two": "c:D"}, "plugin-clash", "one and two"),
        ({"one": "no_such_module:X"}, "plugin-broken", "no_such_module"),
        ({"one": "json:loads"}, "plugin-broken", "not a subclass"),
        ({"one": f"{__name__}:Misnamed"}, "plugin-broken", "'another'"),
    ],
)
def test_bad_plugins(
    packages: dict[str, str],
    code: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    register(monkeypatch, **packages)
    assert main(["explain", "pass", "sample"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error[{code}]")
    assert says in errors
    assert main(["list", "passes"]) == 0
    assert "[plug-in: one]" in capsys.readouterr().out


def test_good_plugin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda _: Sample)
    register(monkeypatch, one="a:Sample")
    assert main(["explain", "pass", "sample"]) == 0
    assert "A pass of a plug-in." in capsys.readouterr().out
    assert main(["opt", ".", "-p", "sample{sise=1}"]) == 2
    assert capsys.readouterr().err.startswith("error[option-unknown]")
