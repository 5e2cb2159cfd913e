"""Library ops on their own."""

from __future__ import annotations

import json

import pytest
import torch

from irc.errors import IrcError
from irc.runtime import onnx_library


def test_a_result_that_is_not_as_stated_is_refused() -> None:
    x = torch.tensor([0.0, 1.0, 2.0])
    arguments = json.loads('[[{"operand": 0}], {}]')
    (output,) = onnx_library.run("onnx::NonZero", arguments, [x], [((1, 2), "i64")])
    assert output.tolist() == [[1, 2]]
    with pytest.raises(IrcError, match="the program says"):
        onnx_library.run("onnx::NonZero", arguments, [x], [((1, 3), "i64")])


def test_lstm_agrees_with_torch() -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTM(3, 5)
    x = torch.randn(7, 2, 3)
    wanted, (h, c) = cell(x)

    def gates(weight: torch.Tensor) -> torch.Tensor:
        i, f, g, o = weight.detach().chunk(4)
        return torch.cat([i, o, f, g])

    bias = torch.cat([gates(cell.bias_ih_l0), gates(cell.bias_hh_l0)])
    operands = [x, gates(cell.weight_ih_l0)[None], gates(cell.weight_hh_l0)[None], bias[None]]
    options = {
        "direction": "forward", "layout": 0, "hidden": 5,
        "activations": ["Sigmoid", "Tanh", "Tanh"],
        "alpha": [], "beta": [], "clip": None, "input_forget": 0, "linear_before_reset": 0,
    }  # fmt: skip
    positions = [{"operand": i} for i in range(4)]
    results = [((7, 1, 2, 5), "f32"), ((1, 2, 5), "f32"), ((1, 2, 5), "f32")]
    outputs = onnx_library.run("onnx::LSTM", [positions, options], operands, results)
    for a, b in zip(outputs, (wanted.unsqueeze(1), h, c), strict=True):
        torch.testing.assert_close(a, b)
