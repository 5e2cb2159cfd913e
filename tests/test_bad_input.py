"""What a user can get wrong on a command line ends in one message, and leaves nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from irc.cli import main
from irc.commands.demo_onnx import write_perceptron
from irc.error_pages import REGISTRY

GARBAGE = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for one device."""
    folder = tmp_path_factory.mktemp("compiled")
    write_perceptron(folder / "model.onnx", batch=4, width=8, hidden=6)
    assert main(["compile", str(folder / "model.onnx"), "-o", str(folder / "plan")]) == 0
    return folder / "plan"


@pytest.fixture
def here(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Path]:
    """A working directory with a model, a plan, and files that are neither."""
    shutil.copy(plan.parent / "model.onnx", tmp_path)
    shutil.copytree(plan, tmp_path / "plan")
    (tmp_path / "garbage.onnx").write_bytes(GARBAGE)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    (tmp_path / "program.mlir").write_text("builtin.module {\n}\n")
    (tmp_path / "broken.toml").write_text("[device]\nname = 3\n")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    return tmp_path


def state(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


CASES = """
    compile nothing.onnx -o out  ->  file-missing: nothing.onnx
    compile . -o out  ->  file-missing: '.'
    compile garbage.onnx -o out  ->  not-onnx: garbage.onnx
    compile program.mlir -o out  ->  option-value: which passes it is behind
    compile nothere.mlir -o out  ->  file-missing: nothere.mlir
    compile model.onnx -o out --mesh data  ->  mesh-syntax: data=2,tensor=2
    compile model.onnx -o out --mesh data=0  ->  mesh-syntax: data=0
    compile model.onnx -o out --mesh data=2,,  ->  mesh-syntax: an axis is missing
    compile model.onnx -o out --mesh data=2,data=2  ->  mesh-syntax: data=2,data=2
    compile model.onnx -o out --backend cpuu  ->  backend-unknown: did you mean 'cpu'?
    compile model.onnx -o out --cluster 8xH10  ->  cluster-unknown: 8xH100
    compile model.onnx -o out --cluster nothing.toml  ->  file-missing: nothing.toml
    compile model.onnx -o out --cluster broken.toml  ->  cluster-invalid: broken.toml
    compile model.onnx -o out --pass no-such-pass  ->  pass-unknown: no-such-pass
    compile model.onnx -o out --mesh data=2 --pins w  ->  file-missing: 'w'
    compile model.onnx -o out --mesh data=2 --pins w=[data=B]  ->  input-mismatch: down, up, x
    compile model.onnx -o out --size batch  ->  option-value: --size batch=1
    compile model.onnx -o out --size batch=4  ->  size-unknown: batch
    compile model.onnx -o out --fast  ->  option-unknown: --fast
    compile model.onnx -o plan  ->  output-exists: --force
    compile model.onnx -o notes  ->  output-exists: notes
    compile model.onnx -o notes --force  ->  output-exists: notes
    compile model.onnx -o model.onnx  ->  output-exists: model.onnx

    run nothing  ->  plan-missing: nothing
    run notes  ->  plan-missing: notes
    run plan --nproc 3  ->  world-size: 3 were started
    run plan --nproc 0  ->  world-size: 0 were started
    run plan --inputs nothing.npz  ->  file-missing: nothing.npz
    run plan --inputs garbage.onnx  ->  input-mismatch: garbage.onnx
    run plan --seed x  ->  option-value: --seed
    check nothing  ->  plan-missing: nothing
    launch nothing  ->  plan-missing: nothing
    launch plan --nodes 3  ->  option-value: 3
    explain plan nothing  ->  plan-missing: nothing
    explain pass fusse  ->  pass-unknown: did you mean 'fuse'?
    opt program.mlir -p fusse  ->  pass-unknown: did you mean 'fuse'?
    opt program.mlir -p fuse{a=1}  ->  option-unknown: a
    opt garbage.onnx  ->  ir-syntax: UTF-8
    opt program.mlir -o notes  ->  output-write: notes
    opt program.mlir -o no/where.mlir  ->  output-write: where.mlir
    opt program.mlir -p fuse{target=foo}  ->  target-unknown: sm_90
    opt program.mlir -p lower-externs{target=foo}  ->  target-unknown: sm_90
    opt program.mlir -p pack-quantized{target=foo}  ->  target-unknown: sm_90
    opt program.mlir -p fuse,rewrite  ->  pass-level: level spmd
    opt program.mlir --verify-each=no  ->  option-value: exec
    opt program.mlir other.mlir  ->  option-value: usage: irc opt
    list ops other  ->  option-value: usage: irc list
"""
"""Command lines, the code of the error, and what its message says."""


@pytest.mark.parametrize("case", [line.strip() for line in CASES.splitlines() if line])
def test_one_message_and_nothing_left(
    case: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, code, says = re.split(r"  ->  |: ", case, maxsplit=2)
    before = state(here)
    status = main(words.split())
    output, errors = capsys.readouterr()
    (printed_code,) = re.findall(r"^error\[([a-z-]+)\]: ", errors, re.MULTILINE)
    assert printed_code == code
    assert status == REGISTRY[printed_code].exit_code != 70
    assert says in errors
    assert "Traceback" not in errors
    assert output == ""
    assert state(here) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "weights.safetensors", "kernels"])
def test_a_plan_that_was_harmed_does_not_run(
    name: str, harm: Callable[[Path], None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = here / "plan" / name
    if target.is_dir():
        target = min(target.iterdir())
    harm(target)
    # Values are the user's: where one bit of a weight differs, the weights still load.
    if target.name == "weights.safetensors" and harm is flip:
        return
    assert main(["run", "plan"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.match(r"error\[plan-(missing|corrupt)\]: ", errors)
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_mesh_that_does_not_match_the_processes(here: Path) -> None:
    words = ["compile", "model.onnx", "-o", "four", "--mesh", "data=2,tensor=2"]
    assert main(words) == 0
    done = subprocess.run(
        [sys.executable, "-m", "irc.cli", "run", "four", "--nproc", "3"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error[world-size]: the plan is for 4 ranks")
