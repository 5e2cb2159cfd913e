"""RNN, GRU and LSTM, by the cells of :mod:`irc.runtime.onnx_library`."""

from __future__ import annotations

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, as_array, as_tensor

DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}

ACTIVATIONS = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
)  # fmt: skip


def _recurrent(call: Call) -> tuple[Array, ...]:
    from irc.runtime.onnx_library import LIBRARY

    direction = call.attr("direction", "forward")
    names = {name.lower(): name for name in ACTIVATIONS}
    activations = call.attr("activations") or DEFAULTS[call.op] * (
        1 + (direction == "bidirectional")
    )
    options = {
        "direction": direction,
        "layout": call.attr("layout", 0),
        "hidden": call.attr("hidden_size") or call[2].shape[-1],
        "activations": [names[name.lower()] for name in activations],
        "alpha": call.attr("activation_alpha") or [],
        "beta": call.attr("activation_beta") or [],
        "clip": call.attr("clip"),
        "input_forget": call.attr("input_forget", 0),
        "linear_before_reset": call.attr("linear_before_reset", 0),
    }
    operands = [None if value is None else as_tensor(value) for value in call.inputs]
    return tuple(as_array(value) for value in LIBRARY[call.op](operands, options))


KERNELS: Kernels = dict.fromkeys(DEFAULTS, _recurrent)
