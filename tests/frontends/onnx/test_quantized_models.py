"""Nets quantised by onnxruntime.quantization, as QDQ and as operators: equal to ONNX Runtime."""

# pyright: basic
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import irc.onnx
from tests.frontends.onnx.compare import exact_options

ort = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")

RNG = np.random.default_rng(0)
IMAGE = (1, 3, 17, 19)


class Net:
    """Nodes and weights as they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.stored: list[Any] = []

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """Add a node and return its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def weight(self, *shape: int) -> str:
        """Add a weight of about unit gain."""
        depth = max(int(np.prod(shape[1:])), 1)
        value = (RNG.standard_normal(shape) / depth**0.5).astype(np.float32)
        self.stored.append(numpy_helper.from_array(value, f"w{len(self.stored)}"))
        return f"w{len(self.stored) - 1}"

    def conv(self, x: str, ins: int, outs: int, taps: int, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with bias and padding."""
        operands = [x, self.weight(outs, ins // group, taps, taps), self.weight(outs)]
        pads = [taps // 2] * 4
        return self.op("Conv", *operands, strides=[stride] * 2, pads=pads, group=group)

    def model(self, y: str) -> onnx.ModelProto:
        """Close the graph."""
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 10])], self.stored,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mobile_net() -> onnx.ModelProto:
    """Inverted residuals: narrow, depthwise, narrow."""
    net = Net()
    y = net.op("Relu", net.conv("x", 3, 16, 3, stride=2))
    for stride in (1, 2):
        wide = net.op("Relu", net.conv(y, 16, 48, 1))
        deep = net.op("Relu", net.conv(wide, 48, 48, 3, stride=stride, group=48))
        thin = net.conv(deep, 48, 16, 1)
        y = net.op("Add", y, thin) if stride == 1 else thin
    return _headed(net, y)


def res_net() -> onnx.ModelProto:
    """Two residual blocks behind a pool."""
    net = Net()
    y = net.op("Relu", net.conv("x", 3, 16, 7, stride=2))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for _ in range(2):
        inner = net.op("Relu", net.conv(y, 16, 16, 3))
        y = net.op("Relu", net.op("Add", net.conv(inner, 16, 16, 3), y))
    return _headed(net, y)


def _headed(net: Net, y: str) -> onnx.ModelProto:
    pooled = net.op("Flatten", net.op("GlobalAveragePool", y))
    return net.model(net.op("Gemm", pooled, net.weight(16, 10), net.weight(10)))


class Images(quantization.CalibrationDataReader):
    """Some random images."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.left: Iterator[Any] = iter(
            [{"x": rng.standard_normal(IMAGE).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> Any:
        """Return the next image, None after the last."""
        return next(self.left, None)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("make", [mobile_net, res_net])
@pytest.mark.parametrize("per_channel", [False, True])
def test_equals_onnx_runtime(make: Any, form: str, per_channel: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    onnx.save(make(), source)
    quantization.quantize_static(
        str(source), str(target), Images(), per_channel=per_channel,
        quant_format=quantization.QuantFormat[form],
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    model = onnx.load(target)
    kinds = {node.op_type for node in model.graph.node}
    assert ("QLinearConv" in kinds) == (form == "QOperator")
    x = RNG.standard_normal(IMAGE).astype(np.float32)
    (wanted,) = ort.InferenceSession(str(target), exact_options()).run(None, {"x": x})
    (output,) = irc.onnx.InferenceSession(str(target)).run(None, {"x": x})
    last = model.graph.node[-1]
    scales = {v.name: numpy_helper.to_array(v) for v in model.graph.initializer}
    quantum = float(scales[last.input[1]].max()) if last.op_type == "DequantizeLinear" else 0.05
    assert np.abs(output - wanted).max() <= 1.001 * quantum
