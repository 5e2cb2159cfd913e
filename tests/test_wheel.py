"""What is installed is what the tree holds: a wheel, also through an sdist, used far from here."""

# pyright: basic

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.test_layout import LINKS, ROOT

TOP = ("irc", *LINKS)
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('dist'))"
MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (torch.randn(2, 8),)
"""
PROGRAM = """
import torch
import irc

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
x = torch.randn(2, 4)
torch.testing.assert_close(torch.compile(model, backend="irc")(x), model(x))
step = irc.compile_step(model, loss=torch.nn.MSELoss(), optimizer={"kind": "sgd"})
assert step(x, x, lr=0.1) > 0
print(irc.__file__)
"""
RULE = "rule silu_by_parts\n  x * sigmoid(x)\n  => silu(x)\n"
SCHEDULE = "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n"


def tree() -> set[str]:
    """Return the files of the packages by the names that they are imported by."""
    files: set[str] = set()
    for top in TOP:
        folder = ROOT / top
        for path in folder.rglob("*"):
            parts = path.relative_to(folder).parts
            is_link = top == "irc" and parts[0] in LINKS
            if path.is_file() and "__pycache__" not in parts and not is_link:
                files.add("/".join(("irc", *((top,) if top != "irc" else ()), *parts)))
    return files


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what packages are built from, since a build writes beside it."""
    folder = tmp_path_factory.mktemp("source")
    for top in TOP:
        shutil.copytree(
            ROOT / top, folder / top, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def built(what: str, folder: Path) -> Path:
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "dist" / done.stdout.splitlines()[-1]


def content(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("irc/")}


def test_a_wheel_holds_all_files_of_the_packages_and_no_others(source: Path) -> None:
    """Grammars, rules, style sheets and `py.typed` too, each once."""
    assert content(built("build_wheel", source)) == tree()
    assert {"irc/grammar/sharding.lark", "irc/report/html/page.css", "irc/py.typed"} <= tree()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_an_sdist_makes_works_from_outside_of_the_tree(source: Path, tmp_path: Path) -> None:
    sdist = built("build_sdist", source)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = built("build_wheel", unpacked)
    assert content(wheel) == tree()

    venv, work = tmp_path / "venv", tmp_path / "work"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    # What irc stands on comes from here; a .pth in there, as of an editable irc, is not followed.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work.mkdir()
    (work / "net.py").write_text(MODEL)
    (work / "use.py").write_text(PROGRAM)
    (work / "my.rules").write_text(RULE)
    (work / "own.txt").write_text(SCHEDULE)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    assert run(python, "use.py").strip() == str(site / "irc" / "__init__.py")
    irc = str(venv / "bin" / "irc")
    options = ("--mesh", "data=2", "--pins", "*.weight = [data = B]", "--rules", "my.rules")
    run(irc, "compile", "net.py:build", "-o", "plan", *options)
    run(irc, "check", "plan")
    run(irc, "run", "plan")
    run(irc, "report", "plan", "-o", "report.html")
    assert "stages          2 on 2 ranks" in run(irc, "schedule", "show", "own.txt")
    assert "irc-example" not in run(irc, "list", "--verbose")
    run(irc, "demo")
