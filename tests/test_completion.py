"""Shells complete commands, options, choices and files of irc."""

import contextlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from irc.cli import COMMANDS, main
from irc.commands.completion import SHELLS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return bash's script, with a folder and a file beside it."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "plan.d").mkdir()
    (folder / "plan.txt").touch()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["completion", "bash"]) == 0
    (folder / "irc.bash").write_text(printed.getvalue())
    return folder / "irc.bash"


def completed(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in ("irc", *words))
    text = (
        f"source '{script}'; cd '{script.parent}'; COMP_WORDS=({line}); COMP_CWORD={len(words)};"
        ' $(complete -p irc | sed "s/.*-F \\([^ ]*\\).*/\\1/"); printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_commands_options_and_choices(script: Path) -> None:
    assert set(completed(script, "")) >= set(COMMANDS)
    assert completed(script, "comp") == ["compile", "compare", "completion"]
    assert completed(script, "launch", "--for") == ["--format"]
    assert set(completed(script, "launch", "--format", "s")) == {"slurm", "skypilot", "ssh"}


def test_plans_are_folders(script: Path) -> None:
    assert [word.strip("/") for word in completed(script, "launch", "plan")] == ["plan.d"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "schedule" in text
    assert "--micro-batches" in text or shell == "tcsh"  # which has no options of commands
    parser = shutil.which(shell)
    if parser and shell in ("bash", "zsh", "fish"):
        subprocess.run([parser, "-n"], input=text, text=True, check=True)
