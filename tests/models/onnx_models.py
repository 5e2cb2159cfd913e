"""Builders of ONNX models with random weights, shaped as exporters write them.

Every builder is a function of its seed alone. Names of weights are dotted, as in exported modules;
`example_inputs` makes inputs for any model whose input sizes are known or given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 10
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class GraphWriter:
    """Collects nodes and initializers; every call of `op` returns the name of the result."""

    def __init__(self, seed: int, opset: int = OPSET) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        name = f"/{kind}_{len(self.nodes)}"
        results = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, results, name=name, **attributes))
        return results[0]

    def weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        fan_in = int(np.prod(shape[1:])) or 1
        bound = 1 / np.sqrt(fan_in) if scale is None else scale
        values = self.rng.standard_normal(shape) * bound
        return self.store(name, values.astype(np.float32))

    def store(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, values: object, dtype: type = np.int64) -> str:
        tensor = numpy_helper.from_array(np.array(values, dtype))
        return self.op("Constant", value=tensor)

    def model(
        self,
        inputs: Mapping[str, tuple[int, Sequence[int | str]]],
        outputs: Mapping[str, tuple[str, int, Sequence[int | str] | None]],
    ) -> onnx.ModelProto:
        """Finish: inputs are name -> (type, shape), outputs name -> (value, type, shape)."""
        for name, (value, _, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name], name=f"/out/{name}"))
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info(n, t, s) for n, (_, t, s) in outputs.items()],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="irc-tests")
        model.ir_version = IR_VERSION
        onnx.checker.check_model(model, full_check=True)
        return model


def mlp(
    *, seed: int = 0, batch: int | str = 5, widths: Sequence[int] = (13, 29, 7)
) -> onnx.ModelProto:
    """A multilayer perceptron of Gemm and Relu; input ``x`` [batch, widths[0]], output ``y``."""
    g = GraphWriter(seed)
    value = "x"
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        weight = g.weight(f"layers.{i}.weight", fan_out, fan_in)
        bias = g.weight(f"layers.{i}.bias", fan_out, scale=0.1)
        value = g.op("Gemm", value, weight, bias, transB=1)
        if i + 2 < len(widths):
            value = g.op("Relu", value)
    return g.model({"x": (FLOAT, [batch, widths[0]])}, {"y": (value, FLOAT, [batch, widths[-1]])})


def resnet(
    *,
    seed: int = 0,
    batch: int | str = 2,
    image: int = 33,
    widths: Sequence[int] = (8, 12, 16, 24),
    blocks: int = 2,
    classes: int = 10,
    batch_norm: bool = True,
) -> onnx.ModelProto:
    """ResNet-18 in shape, narrow: input ``image`` [batch, 3, image, image], output ``logits``.

    ``batch_norm=False`` has it folded into the convolutions, as most exporters do.
    """
    g = GraphWriter(seed)

    def conv(x: str, name: str, fan_in: int, fan_out: int, kernel: int, stride: int) -> str:
        weight = g.weight(f"{name}.weight", fan_out, fan_in, kernel, kernel)
        window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        if not batch_norm:
            bias = g.weight(f"{name}.bias", fan_out, scale=0.1)
            return g.op("Conv", x, weight, bias, **window)
        x = g.op("Conv", x, weight, **window)
        norm = name.replace("conv", "bn")
        statistics = [g.weight(f"{norm}.{part}", fan_out, scale=0.2) for part in ("weight", "bias")]
        statistics.append(g.weight(f"{norm}.running_mean", fan_out, scale=0.1))
        variance = g.rng.uniform(0.5, 1.5, fan_out).astype(np.float32)
        statistics.append(g.store(f"{norm}.running_var", variance))
        return g.op("BatchNormalization", x, *statistics, epsilon=1e-5, momentum=0.9)

    def block(x: str, name: str, fan_in: int, fan_out: int, stride: int) -> str:
        y = g.op("Relu", conv(x, f"{name}.conv1", fan_in, fan_out, 3, stride))
        y = conv(y, f"{name}.conv2", fan_out, fan_out, 3, 1)
        if stride != 1 or fan_in != fan_out:
            x = conv(x, f"{name}.downsample.conv", fan_in, fan_out, 1, stride)
        return g.op("Relu", g.op("Add", y, x))

    value = g.op("Relu", conv("image", "conv1", 3, widths[0], 7, 2))
    value = g.op("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = widths[0]
    for stage, wider in enumerate(widths):
        for i in range(blocks):
            stride = 2 if stage and not i else 1
            value = block(value, f"layer{stage + 1}.{i}", width, wider, stride)
            width = wider
    value = g.op("Flatten", g.op("GlobalAveragePool", value), axis=1)
    weight, bias = g.weight("fc.weight", classes, width), g.weight("fc.bias", classes, scale=0.1)
    value = g.op("Gemm", value, weight, bias, transB=1)
    return g.model(
        {"image": (FLOAT, [batch, 3, image, image])}, {"logits": (value, FLOAT, [batch, classes])}
    )


def transformer(
    *,
    seed: int = 0,
    batch: int | str = 2,
    tokens: int | str = 11,
    layers: int = 2,
    width: int = 48,
    heads: int = 4,
    vocabulary: int = 97,
    dynamic_shapes: bool = True,
) -> onnx.ModelProto:
    """A BERT-like encoder in raw ONNX ops, as torch's exporters write it.

    Inputs ``input_ids`` and ``attention_mask`` [batch, tokens] of int64, output ``hidden``
    [batch, tokens, width]. With ``dynamic_shapes`` the sizes of each Reshape are computed in the
    graph (Shape, Gather, Concat), else they are constants with a ``-1``.
    """
    g = GraphWriter(seed)
    depth = width // heads

    def linear(x: str, name: str, fan_in: int, fan_out: int) -> str:
        weight = g.weight(f"{name}.weight", fan_in, fan_out, scale=fan_in**-0.5)
        return g.op("Add", g.weight(f"{name}.bias", fan_out, scale=0.1), g.op("MatMul", x, weight))

    def layer_norm(x: str, name: str) -> str:
        mean = g.op("ReduceMean", x, axes=[-1])
        centred = g.op("Sub", x, mean)
        power = g.op("Pow", centred, g.constant(2.0, np.float32))
        variance = g.op("Add", g.op("ReduceMean", power, axes=[-1]), g.constant(1e-5, np.float32))
        scaled = g.op("Div", centred, g.op("Sqrt", variance))
        weight = g.store(f"{name}.weight", g.rng.uniform(0.5, 1.5, width).astype(np.float32))
        return g.op("Add", g.op("Mul", scaled, weight), g.weight(f"{name}.bias", width, scale=0.1))

    def sizes(x: str, *trailing: int) -> str:
        if not dynamic_shapes:
            leading = [batch if isinstance(batch, int) else 0, -1]
            return g.constant([*leading, *trailing])
        shape = g.op("Shape", x)
        leading = [
            g.op("Unsqueeze", g.op("Gather", shape, g.constant(i), axis=0), g.constant([0]))
            for i in (0, 1)
        ]
        return g.op("Concat", *leading, *(g.constant([t]) for t in trailing), axis=0)

    def split_heads(x: str, perm: Sequence[int]) -> str:
        return g.op("Transpose", g.op("Reshape", x, sizes(x, heads, depth)), perm=list(perm))

    def attention(x: str, name: str, mask: str) -> str:
        q = split_heads(linear(x, f"{name}.query", width, width), (0, 2, 1, 3))
        k = split_heads(linear(x, f"{name}.key", width, width), (0, 2, 3, 1))
        v = split_heads(linear(x, f"{name}.value", width, width), (0, 2, 1, 3))
        scores = g.op("Div", g.op("MatMul", q, k), g.constant(depth**0.5, np.float32))
        weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
        joined = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        merged = g.op("Reshape", joined, sizes(joined, width))
        return linear(merged, f"{name}.output", width, width)

    def gelu(x: str) -> str:
        inner = g.op("Erf", g.op("Div", x, g.constant(2**0.5, np.float32)))
        doubled = g.op("Mul", x, g.op("Add", inner, g.constant(1.0, np.float32)))
        return g.op("Mul", doubled, g.constant(0.5, np.float32))

    ids = g.op("Gather", g.weight("embeddings.word", vocabulary, width, scale=1.0), "input_ids")
    length = g.op("Gather", g.op("Shape", "input_ids"), g.constant(1), axis=0)
    steps = g.op("Range", g.constant(0), length, g.constant(1))
    places = g.op("Gather", g.weight("embeddings.position", 64, width, scale=0.3), steps)
    value = layer_norm(g.op("Add", ids, places), "embeddings.norm")
    seen = g.op("Cast", g.op("Unsqueeze", "attention_mask", g.constant([1, 2])), to=FLOAT)
    hidden = g.op("Sub", g.constant(1.0, np.float32), seen)
    mask = g.op("Mul", hidden, g.constant(-1e4, np.float32))
    for i in range(layers):
        name = f"encoder.{i}"
        mixed = attention(value, f"{name}.attention", mask)
        value = layer_norm(g.op("Add", value, mixed), f"{name}.norm1")
        inner = gelu(linear(value, f"{name}.up", width, 4 * width))
        outer = linear(inner, f"{name}.down", 4 * width, width)
        value = layer_norm(g.op("Add", value, outer), f"{name}.norm2")
    shape = [batch, tokens]
    return g.model(
        {"input_ids": (INT64, shape), "attention_mask": (INT64, shape)},
        {"hidden": (value, FLOAT, [*shape, width])},
    )


def example_inputs(
    model: onnx.ModelProto, *, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Random inputs: floats are normal, booleans random, integers 0 or 1 (valid as any index)."""
    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [
            d.dim_value if d.HasField("dim_value") else (sizes or {})[d.dim_param]
            for d in tensor.shape.dim
        ]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.floating):
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            inputs[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return inputs
