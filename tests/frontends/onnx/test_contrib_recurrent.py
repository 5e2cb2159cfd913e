"""LSTMs of 8-bit weights, against ONNX Runtime, which quantises their inputs as they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import onnxruntime
import pytest

from irc.errors import IrcError
from irc.onnx import InferenceSession
from irc.runtime.quantized_product import QuantizedProduct
from tests.frontends.onnx.test_contrib import bytes_of, check, floats, model_with

Feeds: TypeAlias = Mapping[str, np.ndarray]


def operands(
    directions: int, batch: int, *, steps: int = 7, width: int = 6, hidden: int = 5,
    signed: bool = True, columns: bool = False,
) -> list[np.ndarray | None]:  # fmt: skip
    """Return x, w, r, biases, no lengths, h, c, no peepholes, and scales and zero points."""
    kind = np.int8 if signed else np.uint8
    scale = (directions, 4 * hidden) if columns else (directions,)
    zero = np.zeros(scale, np.int8) if signed else np.full(scale, 127, np.uint8)
    w, r = (bytes_of(directions, rows, 4 * hidden).view(kind) for rows in (width, hidden))
    states = [floats(directions, batch, hidden), floats(directions, batch, hidden)]
    scales = [np.abs(floats(*scale, scale=0.01)) + 0.001 for _ in range(2)]
    return [
        floats(steps, batch, width), w, r, floats(directions, 8 * hidden), None, *states, None,
        scales[0], zero, scales[1], zero,
    ]  # fmt: skip


STORED = (1, 2, 8, 9, 10, 11)
"""ONNX Runtime wants the weights stored."""


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("columns", "batch"), [(False, 1), (True, 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_of_8_bit_weights(direction: str, columns: bool, batch: int, signed: bool) -> None:
    inputs = operands(2 if direction == "bidirectional" else 1, batch, columns=columns,
                      signed=signed)  # fmt: skip
    check("DynamicQuantizeLSTM", inputs, outputs=3, stored=STORED, relative=2e-5,
          hidden_size=5, direction=direction)  # fmt: skip


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the weights that the library prepares: none where the cell is a kernel."""
    prepared, make = list[int](), QuantizedProduct.of
    monkeypatch.setattr(
        QuantizedProduct, "of", staticmethod(lambda *a: (prepared.append(1), make(*a))[1])
    )
    return prepared


def session(inputs: list[np.ndarray | None], **options: object) -> tuple[InferenceSession, Feeds]:
    """Return a session of one op, and its inputs; weights and biases are stored."""
    named = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    stored = [f"x{i}" for i in (*STORED, 3)]
    model = model_with("DynamicQuantizeLSTM", named, 12, 3, stored, **options)
    return InferenceSession(model), {n: v for n, v in named.items() if n not in stored}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("steps", "width", "hidden"), [(1, 1, 1), (40, 37, 33), (100, 16, 64)])
def test_it_is_a_kernel_exact_where_bytes_are(
    steps: int, width: int, hidden: int, columns: bool, in_torch: list[int]
) -> None:
    inputs = operands(2, 1, steps=steps, width=width, hidden=hidden, columns=columns)
    check("DynamicQuantizeLSTM", inputs, outputs=3, stored=(*STORED, 3), relative=1e-5,
          hidden_size=hidden, direction="bidirectional")  # fmt: skip
    assert not in_torch


def test_a_row_of_a_batch_is_what_onnx_runtime_gives_for_it_alone() -> None:
    inputs = operands(1, 7, steps=20, width=18, hidden=20, signed=False)
    x, h, c = inputs[0], inputs[5], inputs[6]
    assert x is not None and h is not None and c is not None
    x[0, :, 0], x[0, :, 1] = 5.0, -5.0  # all rows have one range
    mine, feeds = session(inputs, hidden_size=20)
    every = [np.asarray(value) for value in mine.run(None, feeds)]
    for row in range(7):
        alone = slice(row, row + 1)
        named = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
        cut = {n: v[:, alone] if n in feeds else v for n, v in named.items()}
        stored = [n for n in named if n not in feeds]
        model = model_with("DynamicQuantizeLSTM", cut, 12, 3, stored, hidden_size=20)
        other = onnxruntime.InferenceSession(model.SerializeToString())
        want = other.run(None, {name: cut[name] for name in feeds})
        for one, value in zip(every, want, strict=True):
            np.testing.assert_allclose(one[..., alone, :], value, rtol=1e-5, atol=1e-5)


def test_lengths_are_those_of_onnx_runtime(in_torch: list[int]) -> None:
    inputs = operands(2, 1, steps=9, hidden=20)
    inputs[4] = np.array([6], np.int32)
    check("DynamicQuantizeLSTM", inputs, outputs=3, stored=(*STORED, 3), relative=2e-5,
          hidden_size=20, direction="bidirectional")  # fmt: skip
    assert not in_torch


@pytest.mark.parametrize(("steps", "width", "hidden"), [(3, 5, 4), (9, 18, 20), (20, 40, 64)])
def test_nan_in_an_input_or_a_state_is_nan_after_it(
    steps: int, width: int, hidden: int, in_torch: list[int]
) -> None:
    inputs = operands(1, 2, steps=steps, width=width, hidden=hidden)
    mine, feeds = session(inputs, hidden_size=hidden)
    feeds["x0"][-1, 1, -1] = np.nan  # all inputs have one range
    assert all(np.isnan(value).all() for value in mine.run(None, feeds))
    feeds["x0"][-1, 1, -1] = 0.0
    feeds["x5"][0, 1, -1] = np.nan  # a state has one of its own
    every, h, c = (np.asarray(value) for value in mine.run(None, feeds))
    for value in (every[:, 0], h[0], c[0]):
        assert np.isnan(value[..., 1, :]).all() and np.isfinite(value[..., 0, :]).all()
    assert not in_torch


def test_peepholes_are_left_to_the_library(in_torch: list[int]) -> None:
    inputs = operands(1, 1, hidden=20)
    inputs[7] = floats(1, 60)
    check("DynamicQuantizeLSTM", inputs, outputs=3, stored=(*STORED, 3), relative=2e-5,
          hidden_size=20)  # fmt: skip
    assert in_torch


def test_an_empty_batch_gives_nothing() -> None:
    mine, feeds = session(operands(1, 0, hidden=20), hidden_size=20)
    assert [np.shape(value) for value in mine.run(None, feeds)] == [
        (7, 1, 0, 20), (1, 0, 20), (1, 0, 20),
    ]  # fmt: skip


def test_a_missing_scale_is_said() -> None:
    inputs = operands(1, 1)[:8]
    named = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    model = model_with("DynamicQuantizeLSTM", named, 8, 3, [], hidden_size=5)
    with pytest.raises(IrcError, match="operand 8 is missing"):
        InferenceSession(model)


def test_sums_beyond_what_float32_holds_are_exact() -> None:
    import torch

    depth = 70_000
    weight = torch.full((1, depth, 1), 255, dtype=torch.uint8)
    product = QuantizedProduct.of(
        weight, torch.ones(1), torch.zeros(1, dtype=torch.uint8), 0
    )  # fmt: skip
    x = torch.full((1, depth), 255.0)
    x[0, 0] = 254.0
    exact = (255 * (depth - 1) + 254) * 255
    assert len(product.weight) > 1
    assert product(x).item() == pytest.approx(exact, rel=1e-7)


def test_weights_are_prepared_once_and_again_after_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from irc.runtime import recurrent

    options = {
        "hidden": 5, "direction": "forward", "layout": 0, "clip": None, "input_forget": 0,
        "activations": ["Sigmoid", "Tanh", "Tanh"], "alpha": [], "beta": [],
    }  # fmt: skip
    tensors = [None if v is None else torch.from_numpy(v) for v in operands(1, 2)]
    kept, prepared = recurrent.KeptQuantized(options), list[int]()
    make = QuantizedProduct.of
    monkeypatch.setattr(
        QuantizedProduct, "of", staticmethod(lambda *a: (prepared.append(1), make(*a))[1])
    )
    first = kept(tensors)[0]
    assert torch.equal(kept(tensors)[0], first)
    assert len(prepared) == 2
    scale = tensors[8]
    assert scale is not None
    scale.mul_(2)
    again = kept(tensors)[0]
    assert len(prepared) == 4
    assert torch.equal(again, recurrent.quantized_lstm(tensors, options)[0])
    assert not torch.equal(again, first)
