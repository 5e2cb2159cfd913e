"""An ONNX file on which irc fails, or errs, becomes a node or two."""

# pyright: basic
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from irc.cli import main
from irc.reproduce import onnx_failure

PATCH = "import irc.frontends.onnx.elementwise as e; d = dict(e.NAMED); {}; e.NAMED = d; "
WRONG = PATCH.format("d['Sigmoid'] = 'tanh'")
REFUSED = PATCH.format("del d['Sigmoid']")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve layers of a product, a function and a sum; the function of one is another."""
    monkeypatch.chdir(tmp_path)
    generator, nodes, weights = np.random.default_rng(0), [], []
    before = "x"
    for i in range(12):
        matrix = generator.standard_normal((16, 16)).astype(np.float32) / 4
        weights.append(onnx.numpy_helper.from_array(matrix, f"w{i}"))
        kind = "Sigmoid" if i == 7 else "Tanh"
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], [f"p{i}"]),
            helper.make_node(kind, [f"p{i}"], [f"f{i}"]),
            helper.make_node("Add", [f"f{i}", before], [f"s{i}"]),
        ]
        before = f"s{i}"
    shape = ["batch", 16]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(before, onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path := tmp_path / "model.onnx")
    return path


@pytest.mark.parametrize(("plant", "kind"), [(WRONG, "differs"), (REFUSED, "op-unsupported")])
def test_one_node_is_left(
    file: Path,
    plant: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(onnx_failure, "SERVE", plant + onnx_failure.SERVE)
    assert main(["reduce", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["failure"]["kind"] == kind
    assert (facts["ops_before"], facts["ops_after"]) == (36, 1)
    small = onnx.load("model.small.onnx")
    assert [node.op_type for node in small.graph.node] == ["Sigmoid"]
    assert not small.graph.initializer


def test_what_ends_the_process_is_a_failure(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant = (
        "import os; from irc.frontends.onnx import elementwise as e\n"
        "class Ends(dict):\n"
        "    def __getitem__(self, kind):\n"
        "        return os.abort() if kind == 'Sigmoid' else super().__getitem__(kind)\n"
        "e.NAMED = Ends(e.NAMED)\n"
    )
    monkeypatch.setattr(onnx_failure, "SERVE", plant + onnx_failure.SERVE)
    assert main(["reduce", str(file), "--seconds", "6"]) == 0
    assert "crash: the process ends" in capsys.readouterr().out


def test_what_is_right_is_not_reduced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reduce", str(file)]) == 2
    assert "reduce-nothing" in capsys.readouterr().err
    assert not Path("model.small.onnx").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x08\x01"])
def test_files_that_are_none(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "model.onnx").write_bytes(content)
    assert main(["reduce", str(path)]) == 2
