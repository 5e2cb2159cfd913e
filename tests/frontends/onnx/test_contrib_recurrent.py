"""LSTMs of 8-bit weights, against ONNX Runtime, which quantises their inputs as they run."""

from __future__ import annotations

import numpy as np
import pytest

from irc.errors import IrcError
from irc.onnx import InferenceSession
from irc.runtime.quantized_product import QuantizedProduct
from tests.frontends.onnx.test_contrib import bytes_of, check, floats, model_with


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


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("columns", "batch"), [(False, 1), (True, 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_of_8_bit_weights(direction: str, columns: bool, batch: int, signed: bool) -> None:
    given = operands(2 if direction == "bidirectional" else 1, batch, columns=columns,
                     signed=signed)  # fmt: skip
    # ONNX Runtime wants the weights stored.
    check("DynamicQuantizeLSTM", given, outputs=3, stored=(1, 2, 8, 9, 10, 11), relative=2e-5,
          hidden_size=5, direction=direction)  # fmt: skip


def test_a_missing_scale_is_said() -> None:
    given = operands(1, 1)[:8]
    named = {f"x{i}": value for i, value in enumerate(given) if value is not None}
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
    given = [None if v is None else torch.from_numpy(v) for v in operands(1, 2)]
    kept, made = recurrent.KeptQuantized(options), list[int]()
    make = QuantizedProduct.of
    monkeypatch.setattr(
        QuantizedProduct, "of", staticmethod(lambda *a: (made.append(1), make(*a))[1])
    )
    first = kept(given)[0]
    assert torch.equal(kept(given)[0], first)
    assert len(made) == 2
    scale = given[8]
    assert scale is not None
    scale.mul_(2)
    again = kept(given)[0]
    assert len(made) == 4
    assert torch.equal(again, recurrent.quantized_lstm(given, options)[0])
    assert not torch.equal(again, first)
