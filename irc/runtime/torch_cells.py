"""LSTM and GRU of many steps in torch's own kernels, where ONNX's form is one that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ORDER: Mapping[str, Sequence[int]] = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""For each gate of torch (i f g o; r z n), its place among ONNX's (i o f c; z r h)."""

PLAIN: Mapping[str, Sequence[str]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"),
}  # fmt: skip


def is_plain(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """True where torch's cell computes the same: no lengths, peepholes, clipping."""
    x, lengths, peepholes = (operands[i] for i in (0, 4, 7))
    directions = 2 if options["direction"] == "bidirectional" else 1
    return (
        kind in ORDER
        and list(options["activations"]) == list(PLAIN[kind]) * directions
        and (lengths is None and peepholes is None and options["clip"] is None)
        and not (options["input_forget"] or options["layout"])
        and (kind == "LSTM" or bool(options["linear_before_reset"]))
        and x.is_floating_point()
        and x.shape[0] > 0
    )


def run(
    kind: str, operands: Sequence[torch.Tensor | None], options: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Run a cell over time, as ONNX has its operands and results.

    Args:
        kind: ``LSTM`` or ``GRU``.
        operands: eight of them: x, w, r, biases, lengths, first h, first c, peepholes.
        options: of the op, for which :func:`is_plain` holds.
    """
    import torch

    x, w, r, bias, _, h, c, _ = operands
    assert x is not None and w is not None and r is not None
    hidden, directions = options["hidden"], w.shape[0]
    turned = options["direction"] == "reverse"
    weights: list[torch.Tensor] = []
    for d in range(directions):
        weights += [_torch_order(kind, part[d]) for part in (w, r)]
        if bias is not None:
            weights += [_torch_order(kind, part) for part in bias[d].chunk(2)]
    first = [
        x.new_zeros(directions, x.shape[1], hidden) if s is None else s.contiguous()
        for s in (h, c)[: 2 if kind == "LSTM" else 1]
    ]
    sequence = x.flip(0) if turned else x
    rest = (weights, bias is not None, 1, 0.0, False, directions == 2, False)
    if kind == "LSTM":
        y, *last = torch.lstm(sequence, first, *rest)
    else:
        y, *last = torch.gru(sequence, first[0], *rest)
    y = y.flip(0) if turned else y
    apart = y.reshape(x.shape[0], x.shape[1], directions, hidden).transpose(1, 2)
    return [apart.contiguous(), *(value.contiguous() for value in last)]


def _torch_order(kind: str, value: torch.Tensor) -> torch.Tensor:
    import torch

    gates = value.chunk(len(ORDER[kind]))
    return torch.cat([gates[i] for i in ORDER[kind]])
