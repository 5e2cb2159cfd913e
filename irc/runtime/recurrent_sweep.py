"""RNN, GRU and LSTM of ONNX by one native loop over time, where their form allows it.

The loop is a function of the CPU backend (:mod:`irc.backends.cpu.recurrent.sweep`), compiled for a
kind of cell and a number of units. What is called of torch beside it only makes memory: a call of a
small net costs little. The directions and rows of a large one are divided among threads, which
nobody waits for (:mod:`irc.runtime.shared_jobs`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from irc.ops.recurrent import (
    GATES,
    MOST_ROWS,
    ROWS,
    SIMPLE,
    UNIT,
    columns,
    loop_of,
    padded,
    rows,
    simple,
)
from irc.runtime.shared_jobs import share

if TYPE_CHECKING:
    import torch

SHARED = 1 << 24
"""Multiplications of a call, from which on threads share it: about half a millisecond."""

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 9, *[ctypes.c_int64] * 5)
FLOAT_BYTES = 4


def fits(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """True for float32, no peepholes, nothing clipped, simple activations."""
    x, w, lengths, peepholes = (operands[i] for i in (0, 1, 4, 7))
    state = (w.shape[0], x.shape[1], options["hidden"])
    return (
        simple(options["activations"])
        and (peepholes is None and options["clip"] is None)
        and not (options["input_forget"] or options["layout"])
        and all(_is_plain(v) for i, v in enumerate(operands) if v is not None and i != 4)
        and 0 < x.shape[1] <= MOST_ROWS
        and x.shape[0] > 0
        and options["hidden"] > 0
        # The loop does not look.
        and (lengths is None or tuple(lengths.shape) == x.shape[1:2])
        and w.shape[2] == x.shape[2]
        and all(s is None or tuple(s.shape) == state for s in operands[5:7])
    )


def _is_plain(value: torch.Tensor) -> bool:
    import torch

    return value.dtype is torch.float32 and value.device.type == "cpu"


def _loop(kind: str, options: Mapping[str, Any]) -> str:
    return loop_of(kind, resets_after=bool(options["linear_before_reset"]))


@dataclass(frozen=True)
class Packed:
    """The weights of one direction as the loop reads them, with P padded units.

    Attributes:
        inputs: of the inputs' products; see :mod:`irc.ops.recurrent`, also for ``recurrent``.
        added: ``[gates * P]``, to the products with the inputs.
        recurrent: of the hidden state's products.
        inner: ``[P]``, to a GRU's product before the reset gate.
        addresses: of these four, in the order of the loop's arguments: inputs, added, recurrent,
            inner.
        loop: the native function.
    """

    inputs: torch.Tensor
    added: torch.Tensor
    recurrent: torch.Tensor
    inner: torch.Tensor
    addresses: tuple[int, int, int, int]
    loop: Callable[..., None]

    @staticmethod
    def of(
        kind: str,
        weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
        hidden: int,
        activations: Sequence[str],
    ) -> Packed:
        """Pack w, r and the bias of a direction."""
        import torch
        from torch.nn.functional import pad

        native: Any = import_module("irc.backends.cpu.recurrent.sweep")
        w, r, bias = weights
        gates, whole, long = GATES[kind], padded(hidden), rows(kind, hidden)
        more = whole - hidden

        def units(value: torch.Tensor) -> torch.Tensor:
            """Pad the units of each gate."""
            apart = value.reshape(gates, hidden, -1)
            return pad(apart, (0, 0, 0, more))

        both = w.new_zeros(2 * gates * hidden) if bias is None else bias
        added, within = (units(part)[..., 0] for part in both.chunk(2))
        inner = within.new_zeros(whole)
        if kind == "GRU":
            inner = within[2].clone()
            within = torch.cat([within[:2], torch.zeros_like(within[2:])])
        # [gates, P, rows] to [P / UNIT, gates, rows, UNIT]
        matrix = pad(units(r), (0, long - hidden)).reshape(gates, whole // UNIT, UNIT, long)
        # [gates * P, inputs] to [gates * P / columns, inputs, columns]
        width = columns(kind, hidden)
        of_inputs = units(w).reshape(gates * whole // width, width, w.shape[1])
        packed = (
            of_inputs.transpose(1, 2).contiguous(),
            (added + within).reshape(-1).contiguous(),
            matrix.permute(1, 0, 3, 2).contiguous(),
            inner.contiguous(),
        )
        a, b, c, d = (value.data_ptr() for value in packed)
        loop = native.sweep(kind, hidden, tuple(SIMPLE[name] for name in activations))
        return Packed(*packed, (a, b, c, d), _PROTOTYPE(loop))


def packed(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> list[Packed]:
    """Pack the weights of all directions."""
    kind = _loop(kind, options)
    w, r, bias = operands[1:4]
    each = len(options["activations"]) // w.shape[0]
    return [
        Packed.of(
            kind, (w[d], r[d], None if bias is None else bias[d]), options["hidden"],
            options["activations"][d * each : (d + 1) * each],
        )
        for d in range(w.shape[0])
    ]  # fmt: skip


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

    out = [torch.empty(shape) for shape in shapes(kind, operands, options)]
    write(kind, operands, options, weights, out)
    return out


def shapes(kind: str, operands: Sequence[Any], options: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of the results: all states, the last h, and the last c of an LSTM."""
    steps, batch = operands[0].shape[:2]
    directions, hidden = operands[1].shape[0], options["hidden"]
    state = (directions, batch, hidden)
    return [(steps, *state), *[state] * (2 if kind == "LSTM" else 1)]


def write(
    kind: str,
    operands: Sequence[Any],
    options: Mapping[str, Any],
    weights: Sequence[Packed],
    out: Sequence[torch.Tensor],
) -> None:
    """Run a cell over time and write its results to ``out``: contiguous, of :func:`shapes`."""
    x, first_h, first_c = operands[0].contiguous(), operands[5], operands[6]
    steps, batch, inputs = x.shape
    hidden, directions = options["hidden"], len(weights)
    wide = padded(hidden)
    more = wide - hidden
    gates = GATES[loop := _loop(kind, options)]
    y = out[0]
    zeros = (directions, batch, wide)
    h = x.new_zeros(zeros) if first_h is None else _padded(first_h, more)
    if loop == "GRU before":
        cell = None
    elif more or kind != "LSTM":
        # It is written to.
        cell = x.new_zeros(zeros) if first_c is None else _padded(first_c, more).clone()
    else:
        cell = out[2].zero_() if first_c is None else out[2].copy_(first_c)
    states = x.new_empty(steps, directions, batch, wide) if more else y
    ends = _ends(operands[4], steps)
    if ends is not None:
        states.zero_()  # what lies behind the end of a sequence
    row_bytes, stride = FLOAT_BYTES * wide, directions * batch * wide
    work = steps * batch * gates * hidden * (inputs + hidden) * directions
    threads = 1 if work < SHARED else _num_threads()
    parts = _parts(x, ends, -(-threads // directions))
    jobs: list[Callable[[], None]] = []
    for d, one in enumerate(weights):
        w, added, r, inner = one.addresses
        for row, length, count, values in parts:
            place = (d * batch + row) * row_bytes
            used = x.new_empty(length * count * wide * gates)
            kept = x.new_empty(2 * wide) if cell is None else cell
            arguments = (
                values.data_ptr(), w, added, used.data_ptr(), r, inner, h.data_ptr() + place,
                kept.data_ptr() + (0 if cell is None else place), states.data_ptr() + place,
                length, count, options["direction"] == "reverse" or d == 1, inputs, stride,
            )  # fmt: skip
            if threads == 1:
                one.loop(*arguments)
            else:
                jobs.append(_Job(one, arguments, (values, used, kept, h, states)))
    share(jobs, threads)
    if more:
        y.copy_(states[..., :hidden])
        if kind == "LSTM" and cell is not None:
            out[2].copy_(cell[..., :hidden])
    _copy_last(y, h, out[1], ends, options["direction"])


@dataclass(frozen=True)
class _Job:
    """One call of the loop, and all the memory that it works with."""

    weights: Packed
    arguments: tuple[int, ...]
    memory: tuple[torch.Tensor, ...]

    def __call__(self) -> None:
        self.weights.loop(*self.arguments)


def _padded(state: torch.Tensor, more: int) -> torch.Tensor:
    """Return states with so many more units, contiguous."""
    if not more:
        return state.contiguous()
    from torch.nn.functional import pad

    return pad(state, (0, more))


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()


def _parts(
    x: torch.Tensor, ends: Sequence[int] | None, count: int
) -> list[tuple[int, int, int, torch.Tensor]]:
    """Return parts of a batch: the first row, steps, rows, and their inputs, contiguous.

    Args:
        x: all inputs.
        ends: how long each sequence is, where each is a part by itself.
        count: parts at most, each of whole groups of rows.
    """
    steps, batch = x.shape[:2]
    if ends is not None:
        return [(i, end, 1, x[:end, i].contiguous()) for i, end in enumerate(ends)]
    rows = -(-batch // (count * ROWS)) * ROWS
    if count == 1 or rows >= batch:
        return [(0, steps, batch, x)]
    return [
        (i, steps, part.shape[1], part)
        for i in range(0, batch, rows)
        for part in [x[:, i : i + rows].contiguous()]
    ]


def _copy_last(
    y: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    ends: Sequence[int] | None,
    direction: str,
) -> None:
    """Copy the state after the last step of each direction, of what the loop has written."""
    hidden = y.shape[-1]
    if ends is not None:
        for i, end in enumerate(ends):
            for d in range(y.shape[1]):
                backwards = direction == "reverse" or d == 1
                state = first[d, i, :hidden] if not end else y[0 if backwards else end - 1, d, i]
                last[d, i].copy_(state)
    elif y.shape[1] == 1:
        last.copy_(y[0 if direction == "reverse" else -1])
    else:
        last[0].copy_(y[-1, 0])
        last[1].copy_(y[0, 1])


def _ends(lengths: torch.Tensor | None, steps: int) -> list[int] | None:
    """Return how long each sequence is; None where all are as long as there are steps."""
    if lengths is None:
        return None
    told: Any = lengths  # torch types no list of them
    ends = [min(max(0, end), steps) for end in told.tolist()]
    return None if all(end == steps for end in ends) else ends
