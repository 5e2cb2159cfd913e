"""`irc.onnx`: the session that ONNX Runtime's users know, and the backend interface."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import irc.onnx as ort
from irc.errors import IrcError
from irc.onnx.session import MAX_VERSIONS
from tests.frontends.onnx.compare import model_of

MODEL = model_of(
    "t = MatMul (x, w)\ny = Relu (t)\nz = Neg (t)",
    "float[batch,3] x",
    "float[batch,2] y, float[batch,2] z",
    stored="float[3,2] w = {1,2,3,4,5,6}",
)
W = np.arange(1, 7, dtype=np.float32).reshape(3, 2)


def test_what_code_for_onnxruntime_asks() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    data = MODEL.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (node_arg,) = session.get_inputs()
    assert (node_arg.name, node_arg.type, node_arg.shape) == ("x", "tensor(float)", ["batch", 3])
    assert [out.name for out in session.get_outputs()] == ["y", "z"]
    assert session.get_providers() == ort.get_available_providers()
    x = np.ones((4, 3), np.float32)
    (z,) = session.run(["z"], {"x": x})
    np.testing.assert_allclose(z, -(x @ W))


def test_each_kind_of_shapes_is_compiled_once() -> None:
    session = ort.InferenceSession(MODEL)
    assert session.versions == []
    for batch in (1, 5, 1, 5):
        y, _ = session.run(None, {"x": np.ones((batch, 3), np.float32)})
        assert y.shape == (batch, 2)
    assert [version.sizes for version in session.versions] == [{"x": (1, 3)}, {"x": (5, 3)}]
    assert all(version.compiled and not version.library_nodes for version in session.versions)
    for batch in range(1, MAX_VERSIONS + 3):
        session.run(None, {"x": np.ones((batch, 3), np.float32)})
    assert len(session.versions) == MAX_VERSIONS


def test_no_rows_are_a_shape_like_any_other() -> None:
    y, z = ort.InferenceSession(MODEL).run(None, {"x": np.ones((0, 3), np.float32)})
    assert y.shape == z.shape == (0, 2)


def test_threads_share_a_session() -> None:
    session = ort.InferenceSession(MODEL)

    def call(i: int) -> bool:
        x = np.full((1 + i % 3, 3), i, np.float32)
        return bool(np.allclose(session.run(["z"], {"x": x})[0], -(x @ W)))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(60)))


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.ones((2, 3), np.float32), "u": np.ones(1)}, "'u' is not an input"),
        ({"x": np.ones((2, 3))}, "float64; the model takes tensor\\(float\\)"),
        ({"x": np.ones((2, 4), np.float32)}, "shape \\[2, 4\\]; the model takes"),
        ({"x": np.ones(3, np.float32)}, "shape \\[3\\]; the model takes"),
    ],
)
def test_inputs_that_do_not_fit(feeds: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(IrcError, match=words) as caught:
        ort.InferenceSession(MODEL).run(None, feeds)
    assert caught.value.codes == ("input-mismatch",)


def test_names_that_do_not_exist() -> None:
    session = ort.InferenceSession(MODEL)
    with pytest.raises(IrcError, match="'q' is not an output"):
        session.run(["q"], {"x": np.ones((1, 3), np.float32)})
    with pytest.raises(IrcError, match="no execution provider 'CUDA"):
        ort.InferenceSession(MODEL, providers=["CUDAExecutionProvider"])


def test_the_backend_interface() -> None:
    import onnx

    x = np.array([[-1, 2, 3]], np.float32)
    assert ort.Backend.supports_device("CPU") and not ort.Backend.supports_device("CUDA")
    outputs = ort.Backend.prepare(MODEL).run([x])
    np.testing.assert_allclose(outputs.z, -(x @ W))
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    np.testing.assert_allclose(ort.Backend.run_node(node, [x, x])[0], 2 * x)
    with pytest.raises(IrcError, match="takes 1 inputs, not 2"):
        ort.Backend.prepare(MODEL).run([x, x])
