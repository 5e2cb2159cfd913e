"""Models whose values decide sizes, branches and trips; sequences, strings, small types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from irc.onnx import InferenceSession
from tests.frontends.onnx.compare import declare, model_of, reference

LOOP = (
    "y, h = Loop (n, go, x) <body = b (int64 i, bool going, float[3] v) => "
    "(bool going_on, float[3] w, float[3] out) { going_on = Identity (going)\n"
    "f = Cast <to = 1> (i)\nw = Add (v, f)\nout = Mul (w, scale) }>"
)


def run(model: onnx.ModelProto, *values: object) -> list[object]:
    session = InferenceSession(model)
    names = [argument.name for argument in session.get_inputs()]
    outputs = session.run(None, dict(zip(names, values, strict=True)))
    last = session.versions[-1]
    assert last.regions or not last.compiled
    return outputs


def check(body: str, inputs: str, outputs: str, *values: np.ndarray, stored: str = "") -> None:
    """Compare with ONNX Runtime, and the program with its own text."""
    model = model_of(body, inputs, declare(outputs.split()), opset=18, stored=stored)
    names = [argument.name for argument in model.graph.input]
    results = run(model, *values)
    for a, b in zip(reference(model, dict(zip(names, values, strict=True))), results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    module = load_onnx(model, dynamic=True).module
    assert dump(load(dump(module))) == dump(module)


def test_shapes_that_are_inputs() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    check("y = Reshape (x, s)", "float[2,3,4] x, int64[2] s", "y:2", x, np.array([4, -1]))
    check(
        "r = Expand (x, s)\ny = Relu (r)",
        "float[1,4] x, int64[2] s",
        "y:2",
        x[0, :1],
        np.array([3, 4]),
    )
    check(
        "t = Slice (x, a, b)\ny = Add (t, t)", "float[2,3,4] x, int64[1] a, int64[1] b", "y:3",
        x, np.array([-1]), np.array([9]),
    )  # fmt: skip
    check("i = NonZero (x)\ny = Cast <to = 1> (i)", "float[2,3,4] x", "y:2", x)
    check("i = NonZero (x)\ny = Shape (i)", "float[2,3,4] x", "int64/y:1", x)


def test_a_size_of_one_broadcasts_only_as_it_runs() -> None:
    body = "a = Reshape (x, s)\nb = Reshape (x, t)\ny = Add (a, b)"
    inputs = "float[4] x, int64[2] s, int64[2] t"
    x = np.arange(4, dtype=np.float32)
    check(body, inputs, "y:2", x, np.array([4, 1]), np.array([1, 4]))
    with pytest.raises(IrcError, match="Add cannot run on these values") as caught:
        check(body, inputs, "y:2", x, np.array([4, 1]), np.array([2, 2]))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loops_run_as_often_as_an_input_says(trips: int) -> None:
    x = np.array([1, 2, 3], np.float32)
    model = model_of(LOOP, "float[3] x, int64 n", "float[3] y, float[k,3] h",
                     stored="bool go = {1}, float[3] scale = {1, 2, 3}")  # fmt: skip
    y, h = run(model, x, np.array(trips))
    wanted = x + sum(range(trips))
    np.testing.assert_allclose(y, wanted)
    assert len(h) == trips
    if trips:
        np.testing.assert_allclose(h[-1], wanted * [1, 2, 3])


def test_a_body_that_cannot_run_is_told_in_full() -> None:
    body = LOOP.replace("w = Add (v, f)", "w = com.acme.First (v, f)").replace(
        "Mul", "com.acme.Second"
    )
    model = model_of(body, "float[3] x, int64 n", "float[3] y, float[k,3] h", domains="com.acme",
                     stored="bool go = {1}, float[3] scale = {1, 2, 3}")  # fmt: skip
    with pytest.raises(IrcError) as caught:
        InferenceSession(model)
    text = str(caught.value)
    assert "First" in text and "Second" in text and "body node 2" in text
    assert caught.value.exit_code == 3


def test_sequences_and_strings() -> None:
    body = (
        "q = SplitToSequence <axis = 0> (x, three)\nlast = SequenceAt (q, minus)\n"
        "w = SequenceErase (q)\nn = SequenceLength (w)\ny = Identity (last)"
    )
    stored = "int64 three = {3}, int64 minus = {-1}"
    x = np.arange(7, dtype=np.float32)
    check(body, "float[7] x", "y:1 int64/n:0", x, stored=stored)
    node = helper.make_node("StringConcat", ["a", "b"], ["y"])
    text = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in ("a", "b", "y")]
    model = helper.make_model(helper.make_graph([node], "g", text[:2], text[2:]))
    (output,) = run(model, np.array(["x", "y"]), np.array(["1", "\u00e4"]))
    assert output.tolist() == ["x1", "y\u00e4"]


@pytest.mark.parametrize("element", [TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64])
def test_element_types_that_flow_lacks(element: int) -> None:
    x = np.array([1, 2, 65535], helper.tensor_dtype_to_np_dtype(element))
    typed = [helper.make_tensor_value_info(n, element, [3]) for n in "xy"]
    one = onnx.numpy_helper.from_array(np.array(1, x.dtype), "one")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])], "g", typed[:1], typed[1:], [one]
    )
    (output,) = run(helper.make_model(graph), x)
    assert output.dtype == x.dtype
    assert (output == x + 1).all()


def test_packed_weights_of_four_bits() -> None:
    """Large ones lie in the program as bytes, small ones as literals."""
    for count in (6, 5000):
        values = (np.arange(count) % 16 - 8).astype(np.int8)
        weights = helper.make_tensor("w", TensorProto.INT4, [count], values)
        scale = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "s")
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ]
        typed = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in "xy"]
        model = helper.make_model(
            helper.make_graph(nodes, "g", typed[:1], typed[1:], [weights, scale])
        )
        (output,) = run(model, np.ones(count, np.float32))
        np.testing.assert_array_equal(output, 1 + values * np.float32(0.5))


def test_names_in_bodies_are_data() -> None:
    evil = '"}]; import os; os.system("true") #'
    model = model_of(LOOP, "float[3] x, int64 n", "float[3] y, float[k,3] h",
                     stored="bool go = {1}, float[3] scale = {1, 2, 3}")  # fmt: skip
    body = model.graph.node[0].attribute[0].g
    for node in body.node:
        node.output[:] = [evil if name == "w" else name for name in node.output]
        node.input[:] = [evil if name == "w" else name for name in node.input]
        node.name = evil
    body.output[1].name = evil
    y, _ = run(model, np.zeros(3, np.float32), np.array(3))
    assert y.tolist() == [3, 3, 3]
    assert "import os" not in dump(load_onnx(model, dynamic=True).module)


def test_what_a_plan_cannot_hold_is_refused_where_one_is_made() -> None:
    model = model_of("y = Reshape (x, s)", "float[6] x, int64[2] s", "float[a,b] y")
    with pytest.raises(IrcError, match="must be constant") as caught:
        load_onnx(model)
    assert caught.value.codes == ("op-unsupported",)


def test_gradients_of_a_part_of_the_graph() -> None:
    domain = "ai.onnx.preview.training"
    of = '<xs: strings = ["a", "b"], y: string = "d">'
    body = f"c = Mul (a, a)\nd = Mul (c, b)\nda, db = {domain}.Gradient {of} (a, b)"
    outputs = "float[2] d, float[2] da, float[2] db"
    model = model_of(body, "float[2] a, float[2] b", outputs, opset=12, domains=domain)
    a, b = np.array([1, 2], np.float32), np.array([3, 5], np.float32)
    session = InferenceSession(model)
    d, da, db = session.run(None, {"a": a, "b": b})
    np.testing.assert_allclose(d, a * a * b)
    np.testing.assert_allclose(da, 2 * a * b)
    np.testing.assert_allclose(db, a * a)
    assert session.versions[-1].compiled


def test_old_broadcasting_aligns_by_an_axis() -> None:
    body = "y = Add <axis = 0, broadcast = 1> (x, b)"
    model = model_of(body, "float[2,3] x, float[2] b", "float[2,3] y", opset=6)
    x, b = np.zeros((2, 3), np.float32), np.array([1, 2], np.float32)
    (output,) = InferenceSession(model).run(None, {"x": x, "b": b})
    np.testing.assert_array_equal(output, [[1, 1, 1], [2, 2, 2]])


def test_sparse_initializers() -> None:
    values = onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    places = onnx.numpy_helper.from_array(np.array([1, 5], np.int64), "")
    model = model_of(
        "y = Add (x, w)", "float[2,3] x", "float[2,3] y", stored="float[2,3] w = {0,0,0,0,0,0}"
    )
    del model.graph.initializer[:]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    (output,) = InferenceSession(model).run(None, {"x": np.ones((2, 3), np.float32)})
    assert output.tolist() == [[1, 6, 1], [1, 1, 8]]
    model.graph.sparse_initializer[0].indices.CopyFrom(
        onnx.numpy_helper.from_array(np.array([1, 6], np.int64), "")
    )
    with pytest.raises(IrcError, match="out of range"):
        InferenceSession(model)


def test_more_memory_than_there_is() -> None:
    model = model_of("y = ConstantOfShape (s)", "int64[2] s", "float[a,b] y")
    with pytest.raises(IrcError, match="ConstantOfShape cannot run on these values"):
        run(model, np.array([1 << 31, 1 << 28]))
