"""Recurrent nets of ONNX are native programs: one call runs the cell, and all beside it."""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from irc import onnx as irc_onnx
from irc.from_files import compile_file
from irc.ops.recurrent import GATES
from irc.runtime import load
from irc.runtime.native import processor
from tests.frontends.onnx.test_contrib import model_with
from tests.frontends.onnx.test_contrib_recurrent import operands

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)
HIDDEN, WIDTH = 20, 6
KINDS = "x86-64-v3,x86-64-v4"


def model(path: Path, kind: str, steps: Any, batch: Any, *, lengths: bool, both: bool) -> None:
    """Write a file: a cell that reads inputs batch first, and a ReLU of what it gives."""
    draw, d, wide = np.random.default_rng(0), 1 + both, GATES[kind] * HIDDEN
    shapes = {"w": (d, wide, WIDTH), "r": (d, wide, HIDDEN), "b": (d, 2 * wide)}
    stored = [
        numpy_helper.from_array((draw.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    operands = ["t", "w", "r", "b", "n" if lengths else "", *states]
    more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    direction = "bidirectional" if both else "forward"
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(kind, operands, ["s", "last", *(["cell"] if kind == "LSTM" else [])],
                         hidden_size=HIDDEN, direction=direction, **more),
        helper.make_node("Relu", ["s"], ["y"]),
    ]  # fmt: skip
    real = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", real, [batch, steps, WIDTH])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("n", TensorProto.INT32, [batch]))
    inputs += [helper.make_tensor_value_info(name, real, [d, batch, HIDDEN]) for name in states]
    results = {"y": [steps, d, batch, HIDDEN], "last": [d, batch, HIDDEN]}
    outputs = [helper.make_tensor_value_info(name, real, shape) for name, shape in results.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(proto, path)


def feeds_of(path: Path, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    feeds = {}
    for each in onnxruntime.InferenceSession(path).get_inputs():
        shape: list[Any] = [sizes.get(n, n) for n in each.shape]
        feeds[each.name] = draw.standard_normal(shape).astype(np.float32)
        if each.type == "tensor(int32)":
            feeds[each.name] = np.arange(1, shape[0] + 1, dtype=np.int32)
    return feeds


def check(path: Path, plan: Path, sizes: dict[str, int]) -> None:
    feeds = feeds_of(path, sizes)
    wanted = onnxruntime.InferenceSession(path).run(None, feeds)
    program = load(plan, threads=2)
    order = [port.name for port in program.inputs]
    for outputs in (
        program.run({name: feeds[name] for name in order}),
        irc_onnx.InferenceSession(str(path)).run(None, feeds),
    ):
        for mine, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=1e-5, atol=1e-5)


def test_a_cell_of_8_bits_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    inputs = operands(2, 3, steps=9, width=WIDTH, hidden=HIDDEN)
    inputs[5] = inputs[6] = None
    named = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    stored = [name for name in named if name != "x0"]
    onnx.save(
        model_with("DynamicQuantizeLSTM", named, 12, 3, stored, hidden_size=HIDDEN,
                   direction="bidirectional"),
        path,
    )  # fmt: skip
    kinds = f"{KINDS},x86-64-v4-dots"
    text = compile_file(str(path), str(tmp_path / "plan"), native=kinds)
    assert text.endswith("numpy alone") and "library     none" in text
    feeds = feeds_of(path, {})
    wanted = irc_onnx.InferenceSession(str(path)).run(None, feeds)
    program = load(tmp_path / "plan", threads=2)
    for mine, want in zip(program.run(feeds), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "lengths", "both"),
    [("LSTM", False, False), ("LSTM", True, True), ("GRU", False, True), ("RNN", True, False)],
)
def test_a_cell_is_a_kernel_of_the_program(
    kind: str, lengths: bool, both: bool, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    model(path, kind, 12, 5, lengths=lengths, both=both)
    text = compile_file(str(path), str(tmp_path / "plan"), native=KINDS)
    assert text.endswith("numpy alone") and "1 launches in 1 segments" not in text
    check(path, tmp_path / "plan", {})


def test_batch_and_steps_stay_open(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model(path, "LSTM", "steps", "batch", lengths=False, both=True)
    text = compile_file(str(path), str(tmp_path / "plan"), native=KINDS)
    assert text.endswith("numpy alone")
    for steps, batch in ((11, 2), (40, 3), (90, 9)):
        check(path, tmp_path / "plan", {"steps": steps, "batch": batch})
