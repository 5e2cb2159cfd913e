"""A large program that fails becomes a handful of ops that fail in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.cli import main
from irc.dialects.text import load
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.fuse import FusePass
from irc.pipeline.reproducer import VARIABLE
from irc.reproduce.programs import ops_of, resized


def chain(*fns: str, size: int = 12) -> str:
    """Return a program of functions one after the other, with a sum beside them."""
    kind = f"!flow.tensor<[{size}, 40], f32>"
    lines = [
        f'%{i + 1} = flow.pointwise(%{i}) {{fn = "{fn}", loc = "m.py:{i}", id = "n{i}"}}'
        f" : ({kind}) -> {kind}"
        for i, fn in enumerate(fns)
    ]
    last = len(fns)
    lines.append(
        f'%{last + 1} = flow.pointwise(%1, %{last}) {{fn = "add", loc = "m.py:9", id = "sum"}}'
        f" : ({kind}, {kind}) -> {kind}"
    )
    ends = f'(%0: {kind} {{role = "input", name = "x"}}) -> ({kind}, {kind})'
    body = "\n".join(lines)
    return (
        f"builtin.module {{ func.func @forward{ends} {{\n{body}\n"
        f"func.return %{last}, %{last + 1} : {kind}, {kind} }} }}"
    )


MANY = ("exp", "tanh", "sin", "cos", "abs", "atan", "erf", "neg", "sigmoid") * 3


def planted(
    fn: str, then: str, old: Callable[..., None]
) -> Callable[[object, Context, ModuleOp], None]:
    """Return a pass that crashes where one function is computed of another's result."""

    def apply(self: object, ctx: Context, op: ModuleOp) -> None:
        for each in op.walk():
            for operand in each.operands:
                before = getattr(operand.owner, "properties", {}).get("fn")
                if before == StringAttr(fn) and each.properties.get("fn") == StringAttr(then):
                    raise KeyError(f"planted at {each.attributes['id']}")
        old(self, ctx, op)

    return apply


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "left"))
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "program.mlir").write_text(chain(*MANY))
    return path


def test_two_ops_are_left(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FusePass, "apply", planted("erf", "neg", FusePass.apply))
    assert main(["reduce", str(program), "-p", "canonicalize,fuse", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ops_before"] == len(MANY) + 1
    assert facts["ops_after"] == 2
    assert facts["is_minimal"] is True
    small = load((program.parent / "program.small.mlir").read_text())
    assert ops_of(small) == 2
    assert "[1, 1]" in f"{small}"
    assert main(["opt", facts["file"], "-p", "canonicalize,fuse"]) == 70


def test_a_reproducer_is_reduced_to_another(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FusePass, "apply", planted("cos", "abs", FusePass.apply))
    assert main(["opt", str(program), "-p", "canonicalize,fuse"]) == 70
    (folder,) = (program.parent / "left").iterdir()
    assert main(["reduce", str(folder), "-o", "small"]) == 0
    assert f"{len(MANY) + 1} -> 2" in capsys.readouterr().out
    assert main(["replay", "small"]) == 1
    assert main(["reduce", str(folder), "-o", "small"]) == 2  # it is there


def test_other_numbers_are_reduced(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = CanonicalizePass.apply

    def wrong(self: CanonicalizePass, ctx: Context, op: ModuleOp) -> None:
        before(self, ctx, op)
        for each in op.walk():
            if each.properties.get("fn") == StringAttr("erf"):
                each.properties["fn"] = StringAttr("tanh")

    monkeypatch.setattr(CanonicalizePass, "apply", wrong)
    assert main(["reduce", str(program), "-p", "canonicalize"]) == 2
    assert "--differs" in capsys.readouterr().err
    assert main(["reduce", str(program), "-p", "canonicalize", "--differs"]) == 0
    assert f"{len(MANY) + 1} -> 1" in capsys.readouterr().out


def test_another_failure_is_not_taken_for_this_one(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of one op makes the planted pass fail too, but in another way."""
    one = planted("erf", "neg", FusePass.apply)

    def two(self: object, ctx: Context, op: ModuleOp) -> None:
        if ops_of(op) < 10:
            raise ValueError("of few ops")
        one(self, ctx, op)

    monkeypatch.setattr(FusePass, "apply", two)
    assert main(["reduce", str(program), "-p", "fuse", "-o", "small.mlir"]) == 0
    assert ops_of(load(Path("small.mlir").read_text())) == 10


def test_time_that_is_over_keeps_what_is_smallest(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FusePass, "apply", planted("erf", "neg", FusePass.apply))
    assert main(["reduce", str(program), "-p", "fuse", "--seconds", "1e-9", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["is_minimal"] is False
    assert facts["ops_after"] == facts["ops_before"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["missing.mlir", "-p", "fuse"], 2, "cannot read"),
        (["program.mlir"], 2, "which passes"),
        (["program.mlir", "-p", "fusee"], 2, "fuse"),
        (["program.mlir", "-p", "fuse", "--seconds", "0"], 2, "above 0"),
        (["program.mlir", "-p", "fuse", "--seconds", "nan"], 2, "above 0"),
        (["program.mlir", "-p", "canonicalize"], 2, "does not fail"),
        (["missing.onnx"], 2, "cannot read"),
        (["missing.onnx", "-p", "fuse"], 2, "text form"),
        ([".", "-p", "fuse"], 2, "text form"),
        (["."], 2, "reproducer"),
    ],
)
def test_wrong_input_is_a_registered_error(
    program: Path,
    arguments: list[str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reduce", *arguments]) == status
    assert words in capsys.readouterr().err


def test_sizes_in_strings_are_names() -> None:
    module = resized(chain("exp", size=9).replace("m.py:0", "m.py:9"), 9, 2)
    assert module is not None
    assert "[2, 40]" in f"{module}"
    assert "m.py:9" in f"{module}"
