"""`irc compile --memory` and `--stored-bytes`: a plan keeps to them, or one that works is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from irc.cli import main
from irc.plan.held import held_bytes
from irc.plan.load import load_plan

NET = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.zeros(16, 64)
"""
TWO = ("--mesh", "tensor=2", "--cluster", "8xA100")
Compile = Callable[..., int]


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    (tmp_path / "net.py").write_text(NET)
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    sizes = [(name, TensorProto.FLOAT, ["batch", 64]) for name in "xy"]
    x, y = (helper.make_tensor_value_info(*each) for each in sizes)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "n", [x], [y], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, str(tmp_path / "net.onnx"))

    def run(model: str, *words: str) -> int:
        return main(
            ["compile", f"{tmp_path / model}", "-o", str(tmp_path / "plan"), "--force", *words]
        )

    return run


def test_a_plan_on_a_mesh_keeps_to_a_budget(compiled: Compile, tmp_path: Path) -> None:
    assert compiled("net.py:build", *TWO) == 0
    free = held_bytes(load_plan(tmp_path / "plan").plan)
    assert compiled("net.py:build", *TWO, "--memory", f"{0.8 * free / 1000} kB") == 0
    assert held_bytes(load_plan(tmp_path / "plan").plan) <= 0.8 * free


@pytest.mark.parametrize("model", ["net.py:build", "net.onnx"])
@pytest.mark.parametrize("words", [(), TWO, ("--size", "batch=4")])
def test_the_budget_that_is_named_where_nothing_fits_works(
    model: str, words: tuple[str, ...], compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    if model.endswith(":build") and "--size" in words:
        pytest.skip("a module has its example arguments")
    if model == "net.onnx" and words == TWO:
        words = (*TWO, "--size", "batch=4")
    assert compiled(model, *words, "--memory", "1kB") == 4
    errors = capsys.readouterr().err
    assert errors.startswith("error[sharding-infeasible]")
    assert "memory_bytes" not in errors  # the words of the command
    named = re.search(r"works is --memory (\d+)", errors)
    assert named is not None
    assert compiled(model, *words, "--memory", named[1]) == 0


def test_a_budget_for_what_is_held_all_the_time_takes_the_same_words(
    compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled("net.py:build", "--stored-bytes", "1kB") == 4
    errors = capsys.readouterr().err
    named = re.search(r"works is --stored-bytes (\d+)", errors)
    assert named is not None
    assert compiled("net.py:build", "--stored-bytes", named[1]) == 0


def test_a_program_in_text_form_has_a_budget_too(
    compiled: Compile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "net.mlir"
    words = ["compile", f"{tmp_path / 'net.py'}:build", "--to", "capture", "-o", str(program)]
    assert main([*words, "--memory", "1kB"]) == 0
    assert compiled("net.mlir") == 4, "the budget is written beside the program"
    assert compiled("net.mlir", "--memory", "1GB") == 2
    assert "says how" in capsys.readouterr().err
    Path(f"{program}.json").unlink()
    assert compiled("net.mlir", "--from", "capture", "--memory", "1kB") == 4
    assert compiled("net.mlir", "--from", "capture", "--memory", "1GB") == 0


@pytest.mark.parametrize("option", ["--memory", "--stored-bytes"])
@pytest.mark.parametrize("text", ["0", "0.4", "10%", "lots", "-1GB", "nan", "inf", "1e400B", ""])
def test_what_is_no_number_of_bytes_is_refused(
    option: str, text: str, compiled: Compile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled("net.py:build", f"{option}={text}") == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error[option-value]")
    assert f"{option} {text}" in errors


def test_regions_of_a_host_program_keep_to_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ran op by op where no plan held as little, and held what they liked."""
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    nodes = [
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in "xy")
    z = helper.make_tensor_value_info("z", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "n", [x], [z, y], [weight])
    file = str(tmp_path / "net.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
    words = ["compile", file, "-o", str(tmp_path / "plan"), "--native", "none", "--memory"]
    assert main([*words, "1kB"]) == 4
    assert "may hold 1000" in capsys.readouterr().err
    assert main([*words, "1MB"]) == 0
