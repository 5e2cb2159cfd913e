"""Plans of training: `irc compile --train` writes one, `irc run` holds it against PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import irc
import irc.cli
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.parts_files import load_parts
from irc.plan.training import RECIPE, recipe_of_plan, training_files
from irc.training.optimizers import OPTIMIZERS, Optimizer
from irc.training.precision import precision_of
from irc.training.recipe import recipe_of

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 12))
    return net.train(), (torch.randn(8, 24), torch.randint(0, 12, (8,)))

def plain():
    net, (x, _) = build()
    return net.eval(), x

def alone():
    return build()[0]

def keywords():
    return build()[0].eval(), {"input": torch.randn(3, 24)}

def broken():
    return torch.zeros(3) @ torch.zeros(4)

number = 3
"""
TRAIN = ("--train", "--lr", "0.01", "--loss", "torch.nn:CrossEntropyLoss", "--cluster", "demo-gpus")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "training_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compile_net(function: str, *words: str) -> int:
    return irc.cli.main(["compile", f"training_net.py:{function}", "-o", "plan", "--force", *words])


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_is_compiled_run_and_equal_to_torch(
    net: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_net("build", *TRAIN, "--micro-batches", f"{count}") == 0
    recipe = recipe_of_plan(load_plan(net / "plan") if count == 1 else load_parts(net / "plan"))
    assert recipe is not None
    assert (recipe.kind, recipe.lr, recipe.micro_batches) == ("adamw", 0.01, count)
    assert recipe.split == (() if count == 1 else ("input", "target"))
    capsys.readouterr()
    assert irc.cli.main(["run", "plan", "--steps", "2", "--outputs", "after.safetensors"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert ("MiB stored" if count == 1 else "MiB gradients") in shown[2]
    assert shown[3].startswith("steps      2, loss 2.")
    assert " in " in shown[-2]
    assert shown[-1] == "OK"
    after = load_file(net / "after.safetensors")
    assert after["losses"].shape == (2,)
    assert after["optimizer.step"] == 2
    assert count > 1 or after["seed"] == 2
    before = load_file(net / "plan/weights.safetensors")
    assert not torch.equal(after["0.weight"], before["0.weight"])
    assert irc.cli.main(["check", "plan"]) == 0


@pytest.mark.parametrize(
    ("precision", "count"),
    [("float16", 1), ("parameters=float16", 2), ("parameters=bfloat16,masters=float32", 1)],
)
def test_precisions_are_run_and_compared(
    net: Path, precision: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that is scaled goes on from step to step, and so does eager's."""
    words = ("--precision", precision, "--micro-batches", f"{count}")
    assert compile_net("build", *TRAIN, *words) == 0
    recipe = recipe_of_plan(load_plan(net / "plan") if count == 1 else load_parts(net / "plan"))
    assert recipe is not None
    assert recipe.precision == precision_of(precision)
    assert irc.cli.main(["run", "plan", "--steps", "2"]) == 0
    assert capsys.readouterr().out.endswith("OK\n")
    assert irc.cli.main(["check", "plan"]) == 0


@pytest.mark.parametrize("kind", ["adamw", pytest.param("momentum", marks=pytest.mark.slow)])
def test_a_wrong_formula_is_found(
    net: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a run is compared with is torch's optimiser, which does not share irc's formulas."""
    right = OPTIMIZERS[kind]

    def wrong(b, settings, by, parameter, gradient, moments):  # type: ignore[no-untyped-def]
        value, *moved = right.step(b, settings, by, parameter, gradient, moments)
        return [b.pointwise("mul", value, b.scalar(1.001, "f32")), *moved]

    planted = Optimizer(right.moments, right.counts, wrong, right.weight_decay)
    monkeypatch.setitem(OPTIMIZERS, kind, planted)  # type: ignore[arg-type]  # a dict
    assert compile_net("build", "--train", kind, *TRAIN[1:]) == 0
    assert irc.cli.main(["run", "plan"]) == 1
    assert capsys.readouterr().out.endswith("FAIL\n")


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
def test_on_four_processes(net: Path, mesh: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_net("build", *TRAIN, "--mesh", mesh, "--micro-batches", "2") == 0
    assert irc.cli.main(["run", "plan"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" a step, ") == 4
    assert shown.endswith("OK\n")


def test_inference_of_a_named_module(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for function in ("plain", "keywords"):
        assert compile_net(function) == 0
        assert irc.cli.main(["run", "plan"]) == 0
        assert "OK" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["training_net:alone"], "error[model-invalid]: 'training_net:alone' returns (Sequential)"),
        (["training_net.py:biuld"], "did you mean 'build'?"),
        (["training_net:number"], "is int, not a function"),
        (["training_net.py:broken"], "training_net.py:21"),
        (["no_such_package.net:build"], "error[model-missing]: no Python module"),
        (["none.py:build"], "error[model-missing]: no file 'none.py'"),
        (["training_net:build", "--size", "b=1"], "--size and --value are of ONNX files"),
        (["training_net:build", "--train", "adamwx"], "did you mean 'adamw'?"),
        (["training_net:plain", "--loss", "x"], "are of a plan of training"),
        (["training_net:plain", "--precision", "float16"], "are of a plan of training"),
        (["training_net:build", "--train", "--precision", "float8"], "compute=float8"),
        (["model.onnx", "--precision", "float16"], "--precision is of PyTorch modules"),
        (["training_net:build", "--train", "--loss", "torch.nn:pi_"], "error[model-missing]"),
        (["model.onnx", "--train"], "--train is of PyTorch modules, not of ONNX files"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_compiled(
    net: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert irc.cli.main(["compile", words[0], "-o", "plan", *words[1:]]) == 2
    assert says in capsys.readouterr().err
    assert not (net / "plan").exists()


def test_a_run_has_steps(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert irc.cli.main(["run", "plan", "--steps", "0"]) == 2
    assert "a run has 1 step or more" in capsys.readouterr().err


def test_from_python_with_a_clipped_and_frozen_step(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 5))
    optimizer = {"kind": "adamw", "clip_norm": 0.05, "no_decay": ["*.bias"], "betas": [0.8, 0.9]}
    batch = (torch.randn(6, 7), torch.zeros(6, dtype=torch.long))
    out = tmp_path / "plan"
    irc.export_plan(
        module, batch, out=out, loss=F.cross_entropy, optimizer=optimizer, frozen="0.weight"
    )
    from irc.runtime.launch import run_plan

    report = run_plan(out)
    assert report.ok
    assert report.comparison is not None
    assert report.comparison.relative < 1e-5
    plan = load_plan(out).plan
    moved = [plan.buffers[n].name for n in plan.states()]
    assert not [name for name in moved if name.endswith("0.weight")]
    assert "0.bias" in moved
    with pytest.raises(IrcError, match="of a plan of training"):
        irc.export_plan(module, batch[:1], out=tmp_path / "other", frozen="0.weight")


@dataclass(frozen=True)
class Texts:
    """Files of a plan of training."""

    texts: Mapping[str, bytes]


def test_a_recipe_of_before_there_were_schedules_is_read() -> None:
    texts = training_files(recipe_of("adamw", micro_batches=4), "")
    older = texts[RECIPE].replace('"micro_batches"', '"accumulate"')
    assert older != texts[RECIPE]
    read = recipe_of_plan(Texts({RECIPE: older.encode()}))
    assert read is not None
    assert read.micro_batches == 4
    both = older.replace('"accumulate"', '"micro_batches":2,"accumulate"')
    with pytest.raises(IrcError) as caught:
        recipe_of_plan(Texts({RECIPE: both.encode()}))
    assert caught.value.code == "plan-corrupt"


def test_a_recipe_reads_what_torch_users_write() -> None:
    assert recipe_of({"kind": "sgd", "momentum": 0}).kind == "sgd"
    assert recipe_of({"betas": (0.5, 0.6), "no_decay": ["a", "b"]}).optimizer == {
        "kind": "adamw", "no_decay": "a,b", "beta1": 0.5, "beta2": 0.6,
    }  # fmt: skip
