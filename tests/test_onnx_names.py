"""The rest of what code for ONNX Runtime names: options, metadata, bindings, plain numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import irc.onnx as ort
from irc.errors import IrcError
from tests.frontends.onnx.compare import model_of

MODEL = model_of(
    "m = Cast <to = 1> (k)\ny = Add (x, m)",
    "float[batch,3] x, int32[batch,3] k",
    "float[batch,3] y",
)
X, K = np.array([[0.5, 1, 2]], np.float32), np.array([[1, 2, 3]], np.int32)


def test_metadata_is_the_files() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.producer_name, model.model_version, model.doc_string = "maker", 7, "adds"
    model.metadata_props.add(key="character", value="a\nb")
    meta = ort.InferenceSession(model.SerializeToString()).get_modelmeta()
    assert (meta.producer_name, meta.version, meta.description) == ("maker", 7, "adds")
    assert meta.custom_metadata_map == {"character": "a\nb"}
    assert meta.graph_name == model.graph.name


def test_a_number_for_a_named_size() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(MODEL, options)
    assert [node_arg.shape for node_arg in session.get_inputs()] == [[2, 3], [2, 3]]
    with pytest.raises(IrcError, match="shape"):
        session.run(None, {"x": X, "k": K})
    (y,) = session.run(None, {"x": np.tile(X, (2, 1)), "k": np.tile(K, (2, 1))})
    np.testing.assert_array_equal(y, np.tile(X + K, (2, 1)))
    with pytest.raises(IrcError, match="batch"):
        options.add_free_dimension_override_by_name("batch", 0)


def test_entries_are_kept() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    with pytest.raises(IrcError, match="no configuration entry"):
        options.get_session_config_entry("session.set_denormal_as_zeros")
    session = ort.InferenceSession(MODEL, sess_options=options)
    assert session.get_session_options() is options
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    with pytest.raises(IrcError, match="CUDAExecutionProvider"):
        session.set_providers(["CUDAExecutionProvider"])


def test_plain_numbers_take_the_type_of_the_input() -> None:
    session = ort.InferenceSession(MODEL)
    (y,) = session.run(None, {"x": X.tolist(), "k": K.tolist()}, ort.RunOptions())
    np.testing.assert_array_equal(y, X + K)
    for wrong in ([[1.5, 2, 3]], [[1, 2, 1 << 40]], K.astype(np.int64)):
        with pytest.raises(IrcError, match="input 'k'"):
            session.run(None, {"x": X, "k": wrong})


def test_bound_values() -> None:
    session = ort.InferenceSession(MODEL)
    binding, into = session.io_binding(), ort.OrtValue.ortvalue_from_shape_and_type([1, 3])
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_input("k", ort.OrtValue.ortvalue_from_numpy(K))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X + K)
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("y", into)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(into.numpy(), X + K)
    assert binding.get_outputs() == [into]
    assert (into.shape(), into.data_type(), into.device_name()) == ([1, 3], "tensor(float)", "cpu")
    with pytest.raises(IrcError, match="no device 'cuda'"):
        binding.bind_output("y", "cuda")
    with pytest.raises(IrcError, match="address"):
        binding.bind_output("y", "cpu", 0, np.float32, [1, 3], 1 << 20)


def test_wrapped_values() -> None:
    feeds = {"x": ort.OrtValue.ortvalue_from_numpy(X), "k": ort.OrtValue.ortvalue_from_numpy(K)}
    (y,) = ort.InferenceSession(MODEL).run_with_ort_values(["y"], feeds)
    np.testing.assert_array_equal(y.numpy(), X + K)
