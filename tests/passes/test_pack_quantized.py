"""pack-quantized acts on every spelling of a dequantised product, exactly, and on nothing else."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import irc.onnx
from irc.dialects.builder import arguments, entry
from irc.dialects.packed_products import PackedContractOp
from irc.dialects.text import context
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import read_model
from irc.interpret.levels import execute
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.pack_quantized import PackQuantizedPass

Array = np.ndarray[Any, Any]
BYTES = {"u8": (np.uint8, 0, 256), "i8": (np.int8, -128, 128)}
RNG = np.random.default_rng(0)


def some_bytes(dtype: str, *shape: int) -> Array:
    kind, low, high = BYTES[dtype]
    return RNG.integers(low, high, shape).astype(kind)


def model(nodes: list[Any], x: Array, stored: dict[str, Any]) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )  # fmt: skip
    graph.output[0].ClearField("type")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def packed_and_run(proto: onnx.ModelProto, x: Array) -> tuple[int, Array]:
    """How many products were packed; what the pass's program gives in the interpreter."""
    program = Importer(prepare(read_model(proto))).run()
    for each in (CanonicalizePass(), PackQuantizedPass()):
        each.apply(context(), program.module)
    program.module.verify()
    inputs = [
        torch.from_numpy(x) if role == "input" else program.tensors[name]
        for role, name, _ in arguments(entry(program.module))
    ]
    count = sum(isinstance(op, PackedContractOp) for op in program.module.walk())
    return count, execute(program.module, inputs)[0].numpy()


@pytest.mark.parametrize("zeros", [(0, 0), (3, 0), (7, 5)])
@pytest.mark.parametrize("sizes", [(1, 16, 16), (5, 37, 33), (30, 1, 67)])
@pytest.mark.parametrize(("a", "b"), [("u8", "i8"), ("u8", "u8"), ("i8", "i8")])
def test_matmul_integer_is_exact(a: str, b: str, sizes: Any, zeros: Any) -> None:
    m, k, n = sizes
    x, w = some_bytes(a, m, k), some_bytes(b, k, n)
    node = helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["y"])
    stored = {"w": w, "zx": BYTES[a][0](zeros[0]), "zw": BYTES[b][0](zeros[1])}
    expected = (x.astype(np.int64) - zeros[0]) @ (w.astype(np.int64) - zeros[1])
    proto = model([node], x, stored)
    count, interpreted = packed_and_run(proto, x)
    assert count == 1
    assert (interpreted == expected).all()
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    assert (compiled == expected).all()


def test_zero_points_of_rows_and_columns() -> None:
    x, w = some_bytes("u8", 6, 20), some_bytes("u8", 20, 7)
    zx, zw = some_bytes("u8", 6), some_bytes("u8", 7)
    node = helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["y"])
    expected = (x.astype(int) - zx[:, None].astype(int)) @ (w.astype(int) - zw.astype(int))
    count, interpreted = packed_and_run(model([node], x, {"w": w, "zx": zx, "zw": zw}), x)
    assert count == 1
    assert (interpreted == expected).all()


def quantised(x: Array, scale: float, zero: int) -> Array:
    return np.clip(np.rint(x / np.float32(scale)) + zero, 0, 255)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "channels", "count"),
    [(1, 1, 0, 16, 32), (3, 1, 1, 8, 16), (3, 2, 1, 5, 33), (7, 2, 3, 3, 17), (1, 2, 0, 80, 1)],
)
def test_convolution_between_quantised_sides(
    kernel: int, stride: int, pad: int, channels: int, count: int, per_channel: bool
) -> None:
    """The result is that of exact integers, off by at most one step at ties."""
    scales = (RNG.random(count) * 0.01 + 0.01).astype(np.float32)
    scales = scales if per_channel else scales[0]
    # Away from ties: the interpreter computes in float64, where another side may win.
    x = (RNG.integers(-100, 100, (2, channels, 14, 14)) * 0.02 + 0.004).astype(np.float32)
    w = some_bytes("i8", count, channels, kernel, kernel)
    bias = RNG.integers(-1000, 1000, count).astype(np.int32)
    bias_scale = np.float32(0.02) * (scales if per_channel else np.repeat(scales, count))
    stored = {
        "xs": np.float32(0.02), "xz": np.uint8(114), "w": w, "ws": scales,
        "wz": np.zeros_like(scales, dtype=np.int8), "b": bias, "bs": bias_scale,
        "ys": np.float32(0.05), "yz": np.uint8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0),
        helper.make_node("Conv", ["d", "wd", "bd"], ["c"], strides=[stride] * 2, pads=[pad] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]
    image = torch.from_numpy(quantised(x, 0.02, 114) - 114)
    sums = torch.nn.functional.conv2d(
        image.double(), torch.from_numpy(w).double(), stride=stride, padding=pad
    ).numpy()
    exact = sums * (0.02 * np.broadcast_to(scales, (count,)).astype(np.float64))[:, None, None]
    exact = exact + (bias * bias_scale.astype(np.float64))[:, None, None]
    expected = quantised(np.maximum(exact, 0), 0.05, 3)
    proto = model(nodes, x, stored)
    packed, interpreted = packed_and_run(proto, x)
    assert packed == 1
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    apart = np.abs(np.maximum(exact, 0) / 0.05 % 1 - 0.5)
    for result in (interpreted, compiled):
        steps = np.abs(result.astype(np.float64) - expected)
        assert steps.max() <= 1
        assert not steps[apart > 2e-4].any()


def test_matmul_of_few_bits_is_packed() -> None:
    """ONNX's MatMulNBits splits its bytes in another spelling."""
    n, k, block = 24, 64, 32
    x = RNG.standard_normal((3, k)).astype(np.float32)
    q = RNG.integers(0, 16, (n, k // block, block)).astype(np.uint8)
    scales = (RNG.random((n, k // block)) + 0.5).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4,
        block_size=block,
    )  # fmt: skip
    stored = {"w": q[..., 0::2] | q[..., 1::2] << 4, "s": scales.reshape(-1)}
    proto = model([node], x, stored)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    count, interpreted = packed_and_run(proto, x)
    dense = ((q.astype(np.float64) - 8) * scales[..., None]).reshape(n, k)
    assert count == 1
    np.testing.assert_allclose(interpreted, x @ dense.T, rtol=1e-5, atol=1e-5)


def test_every_operand_of_a_packed_product_may_need_a_copy() -> None:
    """Rows of two strides, a weight, scales and zero points in turned panels: four copies."""
    n, k, block = 32, 32, 16
    x = RNG.standard_normal((2, 7, k)).astype(np.float32)
    q, zeros = (RNG.integers(0, 256, s).astype(np.uint8) for s in ((n, 2, block), (n, 2)))
    scales = (RNG.random((n, 2)) + 0.5).astype(np.float32)
    heads = helper.make_node("Reshape", ["x", "four"], ["h"])
    turn = helper.make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1, 3])
    back = helper.make_node("Reshape", ["t", "three"], ["r"])
    node = helper.make_node(
        "MatMulNBits", ["r", "w", "s", "z"], ["y"], domain="com.microsoft", K=k, N=n, bits=8,
        block_size=block,
    )  # fmt: skip
    stored = {
        "w": q, "s": scales.reshape(-1), "z": zeros.reshape(-1),
        "four": np.array([2, 4, 7, 8]), "three": np.array([2, 7, 32]),
    }  # fmt: skip
    proto = model([heads, turn, back, node], x, stored)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (compiled,) = irc.onnx.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    dense = ((q.astype(np.float64) - zeros[..., None]) * scales[..., None]).reshape(n, k)
    rows = x.reshape(2, 4, 7, 8).transpose(0, 2, 1, 3).reshape(2, 7, 32)
    wanted = rows @ dense.T
    assert np.abs(compiled - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_declines_scales_that_change_along_the_sum_of_bytes() -> None:
    """A scale for each k of x cannot leave the sum; nor is an activation a weight."""
    x, w = some_bytes("u8", 4, 8), some_bytes("i8", 8, 16)
    scale = helper.make_node("DequantizeLinear", ["x", "xs"], ["d"], axis=1)
    wide = helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"])
    product = helper.make_node("MatMul", ["d", "wd"], ["y"])
    stored = {"xs": RNG.random(8).astype(np.float32), "w": w, "ws": np.float32(0.5)}
    count, interpreted = packed_and_run(model([scale, wide, product], x, stored), x)
    # The weight alone is packed: x is a float in every sense.
    assert count == 1
    expected = (x * stored["xs"]).astype(np.float64) @ (w * 0.5)
    np.testing.assert_allclose(interpreted, expected, rtol=1e-5)
    both = helper.make_node("MatMul", ["d", "d2"], ["y"])
    turn = helper.make_node("Transpose", ["d"], ["d2"])
    count, _ = packed_and_run(model([scale, turn, both], x, {"xs": stored["xs"]}), x)
    assert count == 0


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 0)])
def test_quantised_convolutions_of_the_older_form(dtype: str, stride: int, pad: int) -> None:
    """QLinearConv is a convolution between quantised sides, its zero points what they are."""
    x, w = some_bytes(dtype, 2, 5, 9, 8), some_bytes("i8", 7, 5, 3, 3)
    bias, scales = RNG.integers(-999, 999, 7).astype(np.int32), np.linspace(0.01, 0.02, 7)
    stored = {
        "xs": np.float32(0.5), "xz": BYTES[dtype][0](3), "w": w, "ws": scales.astype(np.float32),
        "wz": np.zeros(7, np.int8), "ys": np.float32(1.25), "yz": BYTES[dtype][0](9), "b": bias,
    }  # fmt: skip
    input_names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    window: dict[str, Any] = {"strides": [stride] * 2, "pads": [pad] * 4}
    proto = model([helper.make_node("QLinearConv", input_names, ["y"], **window)], x, stored)
    sums = exact_sums(x, 3, w, stride, pad) + bias[:, None, None]
    steps = sums * (0.5 * scales.astype(np.float32).astype(float) / 1.25)[:, None, None]
    expected = np.clip(np.rint(steps) + 9, *(BYTES[dtype][1], BYTES[dtype][2] - 1))
    count, interpreted = packed_and_run(proto, x)
    assert count == 1
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    for result in (interpreted, compiled):
        assert np.abs(result.astype(float) - expected).max() <= 1
        assert (result != expected).mean() < 0.01


def exact_sums(x: Array, zero: int, w: Array, stride: int, pad: int) -> Array:
    image, kernel = torch.from_numpy(x.astype(float) - zero), torch.from_numpy(w.astype(float))
    return torch.nn.functional.conv2d(image, kernel, stride=stride, padding=pad).numpy()


GROUPS = [
    # groups, channels of each, output channels of each
    (24, 1, 1), (17, 1, 1), (8, 4, 4), (5, 8, 8), (3, 5, 7), (2, 20, 40), (7, 1, 2), (2, 3, 17),
    (4, 16, 16),
]  # fmt: skip


@pytest.mark.parametrize(("groups", "depth", "own"), GROUPS)
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_convolutions_of_groups_are_exact(dtype: str, groups: int, depth: int, own: int) -> None:
    """Depthwise and grouped, with zero points known when compiled and when called."""
    x, w = some_bytes(dtype, 2, groups * depth, 9, 8), some_bytes("i8", groups * own, depth, 3, 3)
    window: dict[str, Any] = {
        "pads": [1, 2, 0, 1], "group": groups, "strides": [1, 2], "dilations": [2, 1],
    }  # fmt: skip
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], **window)
    proto = model([node], x, {"w": w, "xz": BYTES[dtype][0](3)})
    image = torch.nn.functional.pad(torch.from_numpy(x.astype(float) - 3), (2, 1, 1, 0))
    sums = torch.nn.functional.conv2d(
        image, torch.from_numpy(w.astype(float)), stride=(1, 2), dilation=(2, 1), groups=groups
    ).numpy()
    count, interpreted = packed_and_run(proto, x)
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    assert count == 1
    assert (interpreted == sums).all()
    assert (compiled == sums).all()


@pytest.mark.parametrize("kernel", [1, 5])
def test_depthwise_about_a_zero_point_of_the_call(kernel: int) -> None:
    x = RNG.standard_normal((1, 200, 5, 4)).astype(np.float32)
    w = some_bytes("i8", 200, 1, kernel, kernel)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["y"], pads=[kernel // 2] * 4, group=200),
    ]
    proto = model(nodes, x, {"w": w})
    count, interpreted = packed_and_run(proto, x)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32(high - low) / np.float32(255)
    zero = int(np.rint(-np.float32(low) / scale))
    image = torch.from_numpy(np.clip(np.rint(x / scale) + zero, 0, 255) - zero).double()
    sums = torch.nn.functional.conv2d(
        image, torch.from_numpy(w.astype(float)), padding=kernel // 2, groups=200
    ).numpy()
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    assert count == 2
    for result in (interpreted, compiled):
        assert (result == sums).all()


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("pad", [0, 1])
def test_conv_integer_is_exact(dtype: str, pad: int) -> None:
    x, w = some_bytes(dtype, 2, 5, 9, 8), some_bytes("i8", 7, 5, 3, 3)
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], pads=[pad] * 4)
    proto = model([node], x, {"w": w, "xz": BYTES[dtype][0](3)})
    count, interpreted = packed_and_run(proto, x)
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    assert count == 1
    for result in (interpreted, compiled):
        assert (result == exact_sums(x, 3, w, 1, pad)).all()


def test_conv_integer_about_a_zero_point_of_the_call() -> None:
    """Where windows cross the border, fewer weights meet the zero point."""
    x, w = RNG.standard_normal((1, 5, 9, 8)).astype(np.float32), some_bytes("i8", 7, 5, 3, 3)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["y"], pads=[1] * 4),
    ]
    proto = model(nodes, x, {"w": w})
    count, interpreted = packed_and_run(proto, x)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32(high - low) / np.float32(255)
    zero = int(np.rint(-np.float32(low) / scale))
    q = np.clip(np.rint(x / scale) + zero, 0, 255)
    (compiled,) = irc.onnx.InferenceSession(proto).run(None, {"x": x})
    assert count == 2  # and the sums of the weight inside, which are made once
    for result in (interpreted, compiled):
        assert (result == exact_sums(q, zero, w, 1, 1)).all()
