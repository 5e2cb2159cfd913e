"""The ONNX file of the demonstration: a two-layer perceptron with random weights."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def write_perceptron(
    path: Path, *, batch: int = 512, width: int = 1024, hidden: int = 4096, seed: int = 0
) -> None:
    """Write ``y = relu(x up) down``; x and y are [batch, width] of float32."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"up": (width, hidden), "down": (hidden, width)}
    weights = [
        numpy_helper.from_array((draw(shape) / shape[0] ** 0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["raised"]),
        helper.make_node("Relu", ["raised"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch, width]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], weights)
    onnx.save(  # pyright: ignore[reportUnknownMemberType]
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path)
    )
