"""The well-formed models that malformed files are made of: small, one of each kind of structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def perceptron() -> onnx.ModelProto:
    """Two matmuls with initializers."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["raised"]),
        helper.make_node("Relu", ["raised"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["y"]),
    ]
    return _model(nodes, {"x": [2, 8]}, {"y": [2, 8]}, {"up": (8, 16), "down": (16, 8)})


def convolutional() -> onnx.ModelProto:
    """Convolution with padding, a pool, a flattening with constants of shape arithmetic."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Concat", ["batch", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["p", "wanted"], ["y"]),
    ]
    model = _model(nodes, {"x": [2, 3, 8, 8]}, {"y": [2, 16]}, {"w": (4, 3, 3, 3), "b": (4,)})
    for name, values in (("zero", [0]), ("rest", [-1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return model


def controlled() -> onnx.ModelProto:
    """A loop of five trips around a choice, each with bodies of their own."""
    then = helper.make_graph([helper.make_node("Exp", ["s"], ["t"])], "then", [], [_info("t", [4])])
    other = helper.make_graph([helper.make_node("Neg", ["s"], ["u"])], "or", [], [_info("u", [4])])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("If", ["go"], ["next"], then_branch=then, else_branch=other),
        ],
        "body",
        [_info("i", [], TensorProto.INT64), _info("go", [], TensorProto.BOOL), _info("s", [4])],
        [_info("on", [], TensorProto.BOOL), _info("next", [4])],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    model = _model(nodes, {"x": [4]}, {"y": [4]}, {})
    model.graph.initializer.append(numpy_helper.from_array(np.array(5, np.int64), "trips"))
    return model


def quantised() -> onnx.ModelProto:
    """A product between quantise and dequantise pairs."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "point"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "point"], ["d"]),
        helper.make_node("Gemm", ["d", "w"], ["y"], transB=1),
    ]
    model = _model(nodes, {"x": [2, 8]}, {"y": [2, 6]}, {"w": (6, 8)})
    for name, value in (("scale", np.float32(0.05)), ("point", np.uint8(3))):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return model


def functional() -> onnx.ModelProto:
    """Two local functions, one calling the other, on a batch with a name."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    square = helper.make_function(
        "local", "Square", ["a"], ["b"], [helper.make_node("Mul", ["a", "a"], ["b"])], opsets
    )
    norm = helper.make_function(
        "local", "Norm", ["a"], ["c"],
        [
            helper.make_node("Square", ["a"], ["s"], domain="local"),
            helper.make_node("ReduceSum", ["s"], ["c"], keepdims=0),
        ],
        opsets,
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Norm", ["x"], ["y"], domain="local")],
        "g", [_info("x", ["batch", 4])], [_info("y", [])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=opsets, functions=[square, norm])
    model.ir_version = 9
    return model


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build
    for build in (perceptron, convolutional, controlled, quantised, functional)
}


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, list[int]],
    outputs: Mapping[str, list[int]],
    weights: Mapping[str, tuple[int, ...]],
) -> onnx.ModelProto:
    draw = np.random.default_rng(0).standard_normal
    stored = [
        numpy_helper.from_array(draw(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(
        nodes, "g",
        [_info(name, shape) for name, shape in inputs.items()],
        [_info(name, shape) for name, shape in outputs.items()],
        stored,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    return model


def _info(name: str, shape: list[int] | list[int | str], kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
