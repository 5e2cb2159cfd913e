"""RNN, GRU and LSTM of ONNX by one native loop over time, where their form allows it.

The products with the inputs are one call for all steps; the rest is a function of the CPU backend
(:mod:`irc.backends.cpu.recurrent`), which is compiled for a kind of cell and a number of units.
"""

# pyright: basic
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SIMPLE: Mapping[str, str] = {"Tanh": "tanh", "Sigmoid": "sigmoid", "Relu": "relu"}
"""Activations without parameters, and flow's name for each."""
GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "GRU before": 3, "LSTM": 4}
MOST_ROWS = 8
"""Of a batch: a library reads a matrix once for all rows of a larger one."""

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 6, *[ctypes.c_int64] * 3)


def fits(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """True for float32 of one length, no peepholes, nothing clipped, simple activations."""
    x, lengths, peepholes = (operands[i] for i in (0, 4, 7))
    return (
        all(name in SIMPLE for name in options["activations"])
        and (lengths is None and peepholes is None and options["clip"] is None)
        and not (options["input_forget"] or options["layout"])
        and all(_is_plain(value) for value in operands if value is not None)
        and 0 < x.shape[1] <= MOST_ROWS
        and x.shape[0] > 0
        and options["hidden"] > 0
    )


def _is_plain(value: torch.Tensor) -> bool:
    import torch

    return value.dtype is torch.float32 and value.device.type == "cpu"


def _loop(kind: str, options: Mapping[str, Any]) -> str:
    """Return what the backend calls a kind of cell."""
    return "GRU before" if kind == "GRU" and not options["linear_before_reset"] else kind


@dataclass(frozen=True)
class Packed:
    """The weights of one direction as the loop reads them.

    Attributes:
        inputs: ``[gates * padded, inputs]``.
        added: ``[gates * padded]``, to the products with the inputs.
        recurrent: see :func:`irc.backends.cpu.recurrent.sweep`.
        inner: ``[padded]``, to a GRU's product before the reset gate.
    """

    inputs: torch.Tensor
    added: torch.Tensor
    recurrent: torch.Tensor
    inner: torch.Tensor

    @staticmethod
    def of(
        kind: str, w: torch.Tensor, r: torch.Tensor, bias: torch.Tensor | None, hidden: int
    ) -> Packed:
        """Pack the weights of a direction."""
        import torch
        from torch.nn.functional import pad

        native: Any = import_module("irc.backends.cpu.recurrent")
        gates, lanes = GATES[kind], native.lanes()
        padded = native.padded(kind, hidden)
        more = padded - hidden

        def units(value: torch.Tensor) -> torch.Tensor:
            """Pad the units of each gate."""
            apart = value.reshape(gates, hidden, -1)
            return pad(apart, (0, 0, 0, more))

        both = w.new_zeros(2 * gates * hidden) if bias is None else bias
        added, within = (units(part)[..., 0] for part in both.chunk(2))
        inner = within.new_zeros(padded)
        if kind == "GRU":
            inner = within[2].clone()
            within = torch.cat([within[:2], torch.zeros_like(within[2:])])
        # [gates, padded, rows] to [padded / lanes, rows, gates, lanes]
        rows = native.rows(kind, hidden)
        matrix = pad(units(r), (0, rows - hidden)).reshape(gates, padded // lanes, lanes, rows)
        return Packed(
            units(w).reshape(gates * padded, -1).contiguous(),
            (added + within).reshape(-1).contiguous(),
            matrix.permute(1, 3, 0, 2).contiguous(),
            inner.contiguous(),
        )


def packed(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> list[Packed]:
    """Pack the weights of all directions."""
    kind = _loop(kind, options)
    w, r, bias = operands[1:4]
    return [
        Packed.of(kind, w[d], r[d], None if bias is None else bias[d], options["hidden"])
        for d in range(w.shape[0])
    ]


def run(
    kind: str, operands: Sequence[Any], options: Mapping[str, Any], weights: Sequence[Packed]
) -> list[torch.Tensor]:
    """Run a cell over time, as ONNX has its operands and results.

    Args:
        kind: of cell.
        operands: eight of them: x, w, r, biases, lengths, first h, first c, peepholes.
        options: of the op; :func:`fits` holds for both.
        weights: what is packed of the operands.
    """
    import torch
    from torch.nn.functional import pad

    native: Any = import_module("irc.backends.cpu.recurrent")
    x, first_h, first_c = (operands[i] for i in (0, 5, 6))
    steps, batch, hidden = *x.shape[:2], options["hidden"]
    loop = _loop(kind, options)
    each = len(options["activations"]) // len(weights)
    every: list[torch.Tensor] = []
    last: list[list[torch.Tensor]] = [[], []]
    for d, one in enumerate(weights):
        padded = one.inner.shape[0]
        names = options["activations"][d * each : (d + 1) * each]
        address = native.sweep(loop, hidden, tuple(SIMPLE[name] for name in names))
        h, c = (
            x.new_zeros(batch, padded)
            if state is None
            else pad(state[d], (0, padded - hidden)).contiguous()
            for state in (first_h, first_c)
        )
        if first_c is not None:
            c = c.clone()  # it is written to
        elif loop == "GRU before":
            c = x.new_empty(2, padded)
        projected = torch.addmm(one.added, x.reshape(steps * batch, -1), one.inputs.t())
        y = torch.empty(steps, batch, padded)
        backwards = options["direction"] == "reverse" or d == 1
        _PROTOTYPE(address)(
            projected.data_ptr(), one.recurrent.data_ptr(), one.inner.data_ptr(), h.data_ptr(),
            c.data_ptr(), y.data_ptr(), steps, batch, int(backwards),
        )  # fmt: skip
        y = y[..., :hidden]
        every.append(y)
        last[0].append(y[0 if backwards else -1])
        last[1].append(c[:, :hidden])
    joined = every[0].unsqueeze(1) if len(every) == 1 else torch.stack(every, 1)
    states = last if kind == "LSTM" else last[:1]
    return [joined.contiguous(), *(torch.stack(column) for column in states)]
