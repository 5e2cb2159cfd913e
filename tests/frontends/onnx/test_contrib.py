"""Ops of com.microsoft, against ONNX Runtime, which they are taken from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from irc.errors import IrcError
from irc.onnx import InferenceSession
from tests.frontends.onnx.compare import exact_options

RNG = np.random.default_rng(0)


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def bytes_of(*shape: int, low: int = 0, high: int = 255) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.uint8)


def one(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def zero(value: int = 128) -> np.ndarray:
    return np.array(value, np.uint8)


def check(
    kind: str,
    operands: Sequence[np.ndarray | None],
    *,
    outputs: int = 1,
    stored: Sequence[int] = (),
    relative: float = 1e-4,
    steps: int = 0,
    domain: str = "com.microsoft",
    **attributes: object,
) -> None:
    """Run one op here and in ONNX Runtime; ``steps`` is what quantised results may differ by."""
    inputs = {f"x{i}": value for i, value in enumerate(operands) if value is not None}
    model = model_with(
        kind, inputs, len(operands), outputs, [f"x{i}" for i in stored], domain, **attributes
    )
    feeds = {name: value for name, value in inputs.items() if name not in {f"x{i}" for i in stored}}
    compare(model, feeds, relative=relative, steps=steps)


def model_with(
    kind: str,
    inputs: Mapping[str, np.ndarray],
    count: int = 0,
    outputs: int = 1,
    stored: Sequence[str] = (),
    domain: str = "com.microsoft",
    **attributes: object,
) -> onnx.ModelProto:
    names = [f"x{i}" if f"x{i}" in inputs else "" for i in range(count or len(inputs))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, names, results, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
            if n not in stored
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [onnx.numpy_helper.from_array(inputs[n], n) for n in stored],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compare(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    *,
    relative: float = 1e-4,
    steps: int = 0,
) -> None:
    options = exact_options()
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    session = InferenceSession(model)
    outputs = session.run(None, feeds)
    assert session.versions[-1].compiled
    assert len(outputs) == len(wanted)
    for a, b in zip(wanted, outputs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind in "iu":
            assert np.abs(a.astype(int) - b.astype(int)).max() <= steps
        else:
            np.testing.assert_allclose(b, a, rtol=relative, atol=relative * abs(a).max())


def test_activations() -> None:
    x = floats(3, 5)
    check("Gelu", [x])
    check("QuickGelu", [x], alpha=1.5)
    check("BiasGelu", [x, floats(5)])
    check("FastGelu", [x])
    check("FastGelu", [x, floats(5)])


def test_softmax_with_a_bias() -> None:
    """ONNX Runtime has this one on GPUs only."""
    x, bias = floats(2, 3, 4, 5), floats(2, 1, 1, 5)
    model = model_with("BiasSoftmax", {"x0": x, "x1": bias}, axis=3, is_inner_broadcast=1)
    (output,) = InferenceSession(model).run(None, {"x0": x, "x1": bias})
    powers = np.exp(x + bias)
    np.testing.assert_allclose(output, powers / powers.sum(-1, keepdims=True), rtol=1e-5)


def test_norms() -> None:
    x, gamma, beta = floats(2, 3, 8), floats(8), floats(8)
    check("SkipLayerNormalization", [x, floats(2, 3, 8), gamma, beta, floats(8)], epsilon=1e-5)
    check("SkipLayerNormalization", [x, floats(2, 3, 8), gamma, None, None], epsilon=1e-5)
    check("SimplifiedLayerNormalization", [x, gamma], domain="", epsilon=1e-5, axis=-1)
    check("SkipSimplifiedLayerNormalization", [x, floats(2, 3, 8), gamma], epsilon=1e-5)


def test_products() -> None:
    check("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], transA=1, transB=1, alpha=0.25)
    check("FusedMatMul", [floats(3, 4), floats(4, 5)])
    check("FusedGemm", [floats(3, 4), floats(5, 4), floats(5)], transB=1, activation="Relu")
    conv = [floats(1, 3, 7, 7), floats(4, 3, 3, 3), floats(4)]
    check("FusedConv", conv, stored=[1, 2], activation="Relu", kernel_shape=[3, 3])
    check(
        "FusedConv", [*conv, floats(1, 4, 7, 7)], stored=[1, 2], activation="LeakyRelu",
        activation_params=[0.2], pads=[1, 1, 1, 1], kernel_shape=[3, 3],
    )  # fmt: skip


def test_embeddings() -> None:
    ids, segments = (RNG.integers(0, n, (2, 4)).astype(np.int32) for n in (9, 2))
    tables = [floats(n, 6) for n in (9, 5, 2)]
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    operands = [ids, segments, *tables, floats(6), floats(6)]
    check("EmbedLayerNormalization", [*operands, mask], outputs=2, epsilon=1e-5)
    check("EmbedLayerNormalization", operands, outputs=2, epsilon=1e-5)
    check(
        "EmbedLayerNormalization", [ids, None, *tables[:2], None, floats(6), floats(6)], outputs=2
    )


@pytest.mark.parametrize("mask", ["none", "keys", "counts", "scores"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str, causal: int) -> None:
    batch, steps, width = 2, 4, 6
    masks = {
        "none": None,
        "keys": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32),
        "counts": np.array([3, 2], np.int32),
        "scores": RNG.integers(0, 2, (batch, steps, steps)).astype(np.int32)
        | np.eye(4, dtype=np.int32),
    }
    operands = [floats(batch, steps, width), floats(width, 3 * width), floats(3 * width)]
    check("Attention", [*operands, masks[mask]], num_heads=2, unidirectional=causal)


def test_attention_with_past_and_bias() -> None:
    operands = [floats(2, 3, 6), floats(6, 18), floats(18), None, floats(2, 2, 2, 4, 3)]
    check("Attention", operands, outputs=2, num_heads=2, unidirectional=1)
    operands = [floats(2, 3, 6), floats(6, 18), floats(18), None, None, floats(2, 2, 3, 3)]
    check("Attention", operands, num_heads=2, scale=0.3)


def test_multi_head_attention() -> None:
    q, k, v = floats(2, 3, 6), floats(2, 5, 6), floats(2, 5, 6)
    check("MultiHeadAttention", [q, k, v], num_heads=2)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    check("MultiHeadAttention", [q, k, v, floats(18), mask], num_heads=2)
    check("MultiHeadAttention", [q, k, v, None, None, floats(2, 2, 3, 5)], num_heads=2, scale=0.4)
    past = [floats(2, 2, 4, 3), floats(2, 2, 4, 3)]
    check("MultiHeadAttention", [q, q, q, None, None, None, *past], outputs=3, num_heads=2)


@pytest.mark.parametrize("depth", [32, 40])
def test_matmul_of_few_bits(depth: int) -> None:
    rows, block = 5, 16
    blocks = -(-depth // block)
    weights, scales = bytes_of(rows, blocks, block // 2), floats(rows, blocks, scale=0.1)
    packed = bytes_of(rows, -(-blocks // 2))
    attributes = {"K": depth, "N": rows, "bits": 4, "block_size": block}
    for zeros in (None, packed):
        operands = [floats(2, 3, depth), weights, scales.reshape(-1), None]
        operands[3] = None if zeros is None else zeros.reshape(-1)
        check(
            "MatMulNBits",
            operands,
            stored=[1, 2, *([3] if zeros is not None else [])],
            **attributes,
        )


def test_quantised_elementwise() -> None:
    a, b = bytes_of(3, 5), bytes_of(3, 5)
    sides = [a, one(0.05), zero(), b, one(0.03), zero(100), one(0.1), zero(120)]
    check("QLinearAdd", sides, steps=1)
    check("QLinearMul", sides, steps=1)
    check("QLinearLeakyRelu", [a, one(0.05), zero(), one(0.04), zero(20)], steps=1, alpha=0.1)
    check("QLinearSigmoid", [a, one(0.05), zero(), one(1 / 256), zero(0)], steps=1)
    softmax = [a, one(0.05), zero(), one(1 / 256), zero(0)]
    check("QLinearSoftmax", softmax, steps=1, axis=-1, opset=13)
    parts = [one(0.1), zero(), a, one(0.05), zero(), b, one(0.2), zero(9)]
    check("QLinearConcat", parts, steps=1, axis=1)


def test_quantised_pools() -> None:
    x = [bytes_of(1, 3, 6, 6), one(0.05), zero(), one(0.04), zero(100)]
    check("QLinearGlobalAveragePool", x, steps=1)
    check("QLinearAveragePool", x, steps=1, kernel_shape=[2, 2], strides=[2, 2])


def test_quantised_products() -> None:
    a, b = bytes_of(3, 8), bytes_of(8, 4)
    check(
        "DynamicQuantizeMatMul",
        [floats(3, 8), b, one(0.02), zero(7), floats(4)],
        stored=[1, 2, 3, 4],
    )
    check("MatMulIntegerToFloat", [a, b, one(0.1), one(0.2), zero(3), zero(4), floats(4)])
    bias = RNG.integers(-50, 50, 4).astype(np.int32)
    check("QGemm", [a, one(0.1), zero(3), b, one(0.2), zero(4), bias, one(2.0), zero(9)], steps=1)
    check("QGemm", [a, one(0.1), zero(3), b, one(0.2), zero(4), bias])


def test_quantised_attention() -> None:
    operands = [bytes_of(2, 4, 6), bytes_of(6, 18), floats(18), one(0.02), one(0.03), None]
    operands += [zero(100), zero(120)]
    check("QAttention", operands, num_heads=2)


def test_rotary_embedding() -> None:
    places = RNG.integers(0, 8, (2, 3)).astype(np.int64)
    tables = [floats(8, 2), floats(8, 2)]
    check("RotaryEmbedding", [floats(2, 3, 8), places, *tables])
    check("RotaryEmbedding", [floats(2, 2, 3, 4), places, *tables], interleaved=1)


def test_what_is_not_known_is_said() -> None:
    inputs = {"x0": floats(2, 3, 4), "x1": floats(3, 4, 5)}
    with pytest.raises(IrcError, match="a transposed batch dim in FusedMatMul") as caught:
        InferenceSession(model_with("FusedMatMul", inputs, transBatchA=1))
    assert caught.value.exit_code == 3
    inputs = {"x0": floats(1, 16), "x1": bytes_of(3, 1, 4), "x2": floats(3)}
    with pytest.raises(IrcError, match="weights of 3 bits"):
        InferenceSession(model_with("MatMulNBits", inputs, K=16, N=3, bits=3, block_size=16))


def test_a_graph_that_the_optimiser_of_onnxruntime_wrote(tmp_path: Path) -> None:
    """A layer of a transformer in plain ops, fused by ONNX Runtime and read back."""
    body = """
    s = Add (x, r)
    m = ReduceMean <axes = [-1]> (s)
    d = Sub (s, m)
    sq = Pow (d, two)
    v = ReduceMean <axes = [-1]> (sq)
    ve = Add (v, eps)
    sd = Sqrt (ve)
    n = Div (d, sd)
    ng = Mul (n, gamma)
    h = Add (ng, beta)
    p = MatMul (h, w)
    pb = Add (p, b)
    e = Div (pb, root)
    er = Erf (e)
    e1 = Add (er, one)
    em = Mul (pb, e1)
    y = Mul (em, half)
    """
    from tests.frontends.onnx.compare import model_of

    model = model_of(
        body,
        "float[2,3,8] x, float[2,3,8] r",
        "float[2,3,8] y",
        stored="float two = {2}, float eps = {1e-5}, float root = {1.4142135}, float one = {1}, "
        "float half = {0.5}",
    )
    for name, shape in (("gamma", (8,)), ("beta", (8,)), ("w", (8, 8)), ("b", (8,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(floats(*shape), name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    fused = onnx.load(tmp_path / "fused.onnx")
    assert "SkipLayerNormalization" in {node.op_type for node in fused.graph.node}
    assert {node.domain for node in fused.graph.node} == {"", "com.microsoft"}
    compare(fused, {"x": floats(2, 3, 8), "r": floats(2, 3, 8)})
