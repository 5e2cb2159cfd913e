"""Imports go one way, and nothing heavy comes with the command line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "onnx", "xdsl", "numpy", "networkx", "highspy", "llvmlite", "lark", "rich"}


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_follow_the_contracts() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import irc",
        "from irc.cli import main; main(['list', 'errors'])",
        "from irc.cli import main; main(['explain', 'error', 'mesh-syntax'])",
        "import contextlib\nfrom irc.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])",
    ],
    ids=["import", "list", "explain", "help"],
)
def test_light_commands_import_nothing_heavy(code: str) -> None:
    output = python(f"{code}\nimport sys\nprint('heavy:', *({HEAVY!r} & sys.modules.keys()))")
    assert output.splitlines()[-1].strip() == "heavy:"


def test_opt_leaves_torch_and_onnx_alone() -> None:
    code = "import irc.dialects.text, irc.plugin, irc.universe, irc.commands.opt, sys"
    assert python(f"{code}\nprint({{'torch', 'onnx'}} & sys.modules.keys())") == "set()\n"


def test_help_answers_at_once() -> None:
    def seconds(*words: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        return time.perf_counter() - start

    code = "import sys, irc.cli; sys.exit(irc.cli.main(['--help']))"
    # The best of several, since other tests run beside this one.
    assert min(seconds("-c", code) for _ in range(5)) < 0.3


def test_lazy_names() -> None:
    import irc

    assert {"compile", "load", "capture"} <= set(dir(irc))
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        _ = irc.complie  # pyright: ignore[reportAttributeAccessIssue]
