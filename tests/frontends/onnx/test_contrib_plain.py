"""Small ops of com.microsoft; those that ONNX Runtime has on GPUs only, against their formulas."""

# pyright: basic
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irc.onnx import InferenceSession
from tests.frontends.onnx.test_contrib import bytes_of, check, floats, model_with, one, zero


def run(kind: str, *operands: np.ndarray | None, outputs: int = 1, **attributes: Any) -> Any:
    """Run one op here alone."""
    inputs = {f"x{i}": x for i, x in enumerate(operands) if x is not None}
    model = model_with(kind, inputs, len(operands), outputs, **attributes)
    results = InferenceSession(model).run(None, inputs)
    return results if outputs > 1 else results[0]


def close(output: np.ndarray, wanted: np.ndarray) -> None:
    assert output.shape == wanted.shape
    np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)


def test_sums() -> None:
    x, bias, skip = floats(2, 3, 4), floats(4), floats(2, 3, 4)
    close(run("BiasAdd", x, bias, skip), x + bias + skip)
    close(run("BiasDropout", x, bias, skip), x + bias + skip)
    check("ExpandDims", [x, np.array(-1, np.int32)], stored=[1])


def test_distances() -> None:
    for metric in ("euclidean", "sqeuclidean"):
        check("CDist", [floats(3, 4), floats(5, 4)], metric=metric)


def test_complex_products() -> None:
    a, b = floats(3, 2), floats(3, 2)
    left, right = a.view(np.complex64), b.view(np.complex64)
    close(run("ComplexMul", a, b), (left * right).view(np.float32))
    close(run("ComplexMulConj", a, b), (left * right.conj()).view(np.float32))


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.array([0.5 * v * (1 + erf(v / 2**0.5)) for v in x.reshape(-1)]).reshape(x.shape)


def test_gelu_of_halves() -> None:
    x, bias = floats(2, 3, 8), floats(8)
    total = x + bias
    close(run("BiasSplitGelu", x, bias), (total[..., :4] * gelu(total[..., 4:])).astype(np.float32))


def normed(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int) -> np.ndarray:
    apart = x.reshape(*x.shape[:3], groups, -1)
    mean = apart.mean((1, 2, 4), keepdims=True)
    scaled = (apart - mean) / np.sqrt(apart.var((1, 2, 4), keepdims=True) + 1e-5)
    return (scaled.reshape(x.shape) * gamma + beta).astype(np.float32)


@pytest.mark.parametrize("activation", [0, 1])
def test_group_norms(activation: int) -> None:
    x, gamma, beta, skip, bias = floats(2, 3, 5, 6), floats(6), floats(6), floats(2, 6), floats(6)

    def then(y: np.ndarray) -> np.ndarray:
        return y / (1 + np.exp(-y)) if activation else y

    attributes = {"groups": 3, "activation": activation, "channels_last": 1}
    close(run("GroupNorm", x, gamma, beta, **attributes), then(normed(x, gamma, beta, 3)))
    total = x + skip[:, None, None, :] + bias
    y, added = run("SkipGroupNorm", x, gamma, beta, skip, bias, outputs=2, **attributes)
    close(added, total)
    close(y, then(normed(total, gamma, beta, 3)))


def test_products_with_more_in_them() -> None:
    a, b, bias = floats(3, 4), floats(4, 5), floats(5)
    output = run("GemmFastGelu", a, b, bias)
    tanh = np.tanh(0.7978845608 * (a @ b + bias + 0.044715 * (a @ b + bias) ** 3))
    close(output, 0.5 * (a @ b + bias) * (1 + tanh))
    relu = run("FusedMatMulActivation", a, b, alpha=0.5, activation="Relu")
    close(relu, np.maximum(0.5 * a @ b, 0))


@pytest.mark.parametrize("kind", [0, 1])
def test_bits_and_bytes(kind: int) -> None:
    rows, depth, block = 6, 32, 16
    packed, scales = bytes_of(rows * depth // 2), np.abs(floats(rows * depth // block))
    check(
        "MatMulBnb4", [floats(3, depth), packed, scales], stored=[1, 2],
        K=depth, N=rows, block_size=block, quant_type=kind,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_few_bits(bits: int) -> None:
    rows, depth, block = 5, 48, 16
    weights = bytes_of(rows, depth // block, block * bits // 8)
    zeros = bytes_of(rows, -(-(depth // block) * bits // 8))
    attributes = {"K": depth, "N": rows, "bits": bits, "block_size": block}
    scales, bias = floats(rows, depth // block, scale=0.1), floats(rows)
    check("MatMulNBits", [floats(3, depth), weights, scales], stored=[1, 2], **attributes)
    operands = [floats(2, 3, depth), weights, scales, zeros, None, bias]
    check("MatMulNBits", operands, stored=[1, 2, 3, 5], **attributes)


def test_columns_in_another_order() -> None:
    """Without zero points, which ONNX Runtime's kernel passes over where columns are reordered."""
    rows, depth, block = 5, 32, 16
    weights, scales = bytes_of(rows, 2, 8), floats(rows, 2, scale=0.1)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(2), block)).astype(np.int32)
    check(
        "MatMulNBits", [floats(3, depth), weights, scales, None, order],
        stored=[1, 2, 4], K=depth, N=rows, bits=4, block_size=block,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_a_quantised_table(bits: int, zeros: bool) -> None:
    table = bytes_of(9, 32 * bits // 8)
    operands = [table, np.array([[3, 0, 8], [1, 1, 2]], np.int64), floats(9, 2, scale=0.1)]
    if zeros:
        operands.append(bytes_of(9, bits * 2 // 8))
    check(
        "GatherBlockQuantized", operands, stored=[0, 2, *([3] if zeros else [])],
        bits=bits, block_size=16, gather_axis=0, quantize_axis=1,
    )  # fmt: skip


def test_quantised_means() -> None:
    x = bytes_of(2, 3, 4)
    mean = ((x.astype(np.float32) - 128) * 0.05).mean((1, 2), keepdims=True)
    output = run("QLinearReduceMean", x, one(0.05), zero(), one(0.04), zero(100), axes=[1, 2])
    assert np.abs(output - np.clip(np.round(mean / 0.04) + 100, 0, 255)).max() <= 1


def test_exact_integers() -> None:
    a, b = bytes_of(3, 4), bytes_of(3, 4)
    wanted = (a.astype(np.int32) - 7) * (b.astype(np.int32) - 9)
    assert (run("MulInteger", a, zero(7), b, zero(9)) == wanted).all()
    sums = run("ReduceSumInteger", a, axes=[1], keepdims=0)
    assert (sums == a.astype(np.int32).sum(1)).all()


def test_channels_last() -> None:
    x, w, bias = floats(1, 7, 7, 3), floats(4, 3, 3, 3), floats(4)
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    plain = np.moveaxis(x, -1, 1).copy()
    model = model_with(
        "FusedConv", {"x0": plain, "x1": w, "x2": bias}, activation="Relu", **attributes
    )
    (wanted,) = InferenceSession(model).run(None, {"x0": plain, "x1": w, "x2": bias})
    output = run("NhwcFusedConv", x, w, bias, activation="Relu", **attributes)
    close(output, np.moveaxis(wanted, 1, -1))
    check("NhwcMaxPool", [bytes_of(1, 6, 6, 3)], kernel_shape=[2, 2], strides=[2, 2])
    sides = [bytes_of(1, 6, 6, 3), one(0.05), zero(), bytes_of(4, 3, 3, 3), one(0.03), zero(100)]
    check(
        "QLinearConv", [*sides, one(0.1), zero(120)], stored=[1, 2, 3, 4, 5, 6, 7], steps=1,
        channels_last=1, kernel_shape=[3, 3],
    )  # fmt: skip
