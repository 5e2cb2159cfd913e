"""RNN, GRU and LSTM of ONNX in torch: any activation, lengths, peepholes, weights of 8 bits.

Where torch's own cell computes the same, it runs (:mod:`irc.runtime.torch_cells`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.runtime import recurrent_sweep, torch_cells
from irc.runtime.quantized_product import QuantizedProduct

if TYPE_CHECKING:
    import torch

QUANTIZED_WEIGHTS = (1, 2, 8, 9, 10, 11)
"""Operands of an LSTM of 8-bit weights that are weights: w, r, and their scales and zero points."""

Operands: TypeAlias = "list[torch.Tensor | None]"
Step: TypeAlias = Callable[..., "tuple[torch.Tensor, ...]"]


@dataclass(frozen=True)
class Cell:
    """A kind of cell.

    Attributes:
        kind: of ONNX.
        step: ``step(x W, states, products with R, b_r, peepholes, functions, options)``.
        gates: parts of a row of its weights.
        functions: activations of a direction.
        states: that go from step to step.
    """

    kind: str
    step: Step
    gates: int
    functions: int
    states: int


@dataclass(frozen=True)
class Product:
    """Products with a weight, ``x @ weight.T``."""

    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return x @ self.weight.T

    def chunk(self, count: int) -> list[Product]:
        """Return the products with each of equal parts."""
        return [Product(part) for part in self.weight.chunk(count)]


def rnn(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    """RNN: x, w, r, biases, lengths, first h."""
    return _plain(Cell("RNN", _rnn_step, 1, 1, 1), operands, options)


def gru(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    """GRU: x, w, r, biases, lengths, first h."""
    return _plain(Cell("GRU", _gru_step, 3, 2, 1), operands, options)


def lstm(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    """LSTM: x, w, r, biases, lengths, first h, first c, peepholes."""
    return _plain(LSTM, operands, options)


Products: TypeAlias = "tuple[list[QuantizedProduct], list[QuantizedProduct]]"


def quantized_lstm(
    operands: Operands, options: Mapping[str, Any], products: Products | None = None
) -> list[torch.Tensor]:
    """LSTM of 8-bit weights, quantised as ONNX Runtime's ``DynamicQuantizeLSTM`` does.

    The inputs of all steps are quantised together, the hidden state of each step and row by itself;
    a scale is for a whole weight, or for a column of it. (ONNX Runtime quantises the states of some
    rows together, of how many depends on its threads.)

    Args:
        operands: those of an LSTM, w as i8 or u8 ``[directions, inputs, 4 * hidden]`` and r
            ``[directions, hidden, 4 * hidden]``, then scale and zero point of w and of r.
        options: of an LSTM.
        products: of the weights, where they are known.
    """
    x, _, _, *rest = operands = [*operands, *[None] * (12 - len(operands))]
    assert x is not None
    lengths = rest[1]
    if lengths is not None:
        # What lies behind the longest sequence has no part in the range.
        x = x.clone()
        x[int(lengths.max()) :] = 0
    inputs, hidden = products or _quantized(operands)
    return _run(LSTM, x, (inputs, [each.by_row for each in hidden]), [*rest[:5]], options)


def _quantized(operands: Operands) -> Products:
    """Return the products with the inputs' weights and with the hidden state's, by direction."""
    weights = [value for i in QUANTIZED_WEIGHTS if (value := operands[i]) is not None]
    w, r, w_scale, w_zero, r_scale, r_zero = weights
    inputs = [QuantizedProduct.of(w, w_scale, w_zero, d) for d in range(w.shape[0])]
    hidden = [QuantizedProduct.of(r, r_scale, r_zero, d) for d in range(r.shape[0])]
    return inputs, hidden


class KeptQuantized:
    """An LSTM of 8-bit weights that are the same tensors in every call, and prepared once.

    Args:
        options: of the op.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        # One tuple: another thread sees weights and what is made of them, or neither.
        self._prepared: tuple[Any, Any] = None, None

    def __call__(self, operands: Operands) -> list[torch.Tensor]:
        """Run on the operands of a call."""
        operands = [*operands, *[None] * (12 - len(operands))]
        now = [_written(operands[i]) for i in QUANTIZED_WEIGHTS]
        known, products = self._prepared
        if known != now:
            products = _quantized(operands)
            self._prepared = now, products
        return quantized_lstm(operands, self._options, products)


def _plain(cell: Cell, operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    operands = [*operands, *[None] * (8 - len(operands))]
    if recurrent_sweep.fits(cell.kind, operands, options):
        weights = recurrent_sweep.packed(cell.kind, operands, options)
        return recurrent_sweep.run(cell.kind, operands, options, weights)
    if torch_cells.is_plain(cell.kind, operands, options):
        return torch_cells.run(cell.kind, operands, options)
    x, w, r, *rest = operands
    assert x is not None and w is not None and r is not None
    products = [Product(part) for part in w], [Product(part) for part in r]
    return _run(cell, x, products, rest, options)


class Kept:
    """A cell over time whose weights are the same tensors in every call, and packed once.

    Args:
        kind: of cell.
        options: of the op.
    """

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self._kind, self._options = kind, options
        # One tuple: another thread sees weights and what is packed of them, or neither.
        self._packed: tuple[Any, Any] = None, None
        # Shapes of operands and whether the native loop takes them: other dtypes never come.
        self._fitting: tuple[Any, bool] = None, False

    def __call__(self, operands: Operands) -> list[torch.Tensor]:
        """Run on the operands of a call."""
        operands = [*operands, *[None] * (8 - len(operands))]
        weights = self._weights(operands)
        if weights is None:
            return CELLS[self._kind](operands, self._options)
        return recurrent_sweep.run(self._kind, operands, self._options, weights)

    def write(self, operands: Operands, out: Sequence[torch.Tensor]) -> bool:
        """Run on the operands of a call and write the results; False where they do not fit.

        Args:
            operands: of the op.
            out: contiguous memory of the results.
        """
        operands = [*operands, *[None] * (8 - len(operands))]
        weights = self._weights(operands)
        if weights is None:
            return False
        shapes = recurrent_sweep.shapes(self._kind, operands, self._options)
        if [each.shape for each in out] != shapes:
            return False
        recurrent_sweep.write(self._kind, operands, self._options, weights, out)
        return True

    def _weights(self, operands: Operands) -> Any:
        """Return the packed weights; None where the native loop does not take the operands."""
        key = [None if value is None else value.shape for value in operands]
        seen, fits = self._fitting
        if seen != key:
            fits = recurrent_sweep.fits(self._kind, operands, self._options)
            self._fitting = key, fits
        if not fits:
            return None
        now = [_written(value) for value in operands[1:4]]
        known, packed = self._packed
        if known != now:
            packed = recurrent_sweep.packed(self._kind, operands, self._options)
            self._packed = now, packed
        return packed


def _written(value: torch.Tensor | None) -> tuple[int, int] | None:
    """Return where a weight lies and how often it was written to."""
    if value is None:
        return None
    return value.data_ptr(), 0 if value.is_inference() else value._version


def _run(
    cell: Cell, x: torch.Tensor, products: tuple[Any, Any], rest: Operands,
    options: Mapping[str, Any],
) -> list[torch.Tensor]:  # fmt: skip
    """Run a cell over time; ``products`` with W and with R for each direction."""
    import torch

    bias, lengths, *initial = rest
    x = x.transpose(0, 1) if options["layout"] else x
    functions = _functions(options)
    every: list[torch.Tensor] = []
    last: list[list[torch.Tensor]] = [[] for _ in range(cell.states)]
    for d, (from_inputs, from_hidden) in enumerate(zip(*products, strict=True)):
        reverse = options["direction"] == "reverse" or d == 1
        b = x.new_zeros(2 * cell.gates * options["hidden"]) if bias is None else bias[d]
        wb, rb = b.chunk(2)
        state = [
            x.new_zeros(x.shape[1], options["hidden"]) if s is None else _first(s, options)[d]
            for s in initial[: cell.states]
        ]
        peephole = None if cell.states < 2 or initial[2] is None else initial[2][d]
        projected = from_inputs(x) + wb
        mine = functions[d * cell.functions : (d + 1) * cell.functions]
        outputs, state = _sweep(
            cell.step, projected, state, (from_hidden, rb, peephole, mine, options), lengths,
            reverse,
        )  # fmt: skip
        every.append(outputs)
        for column, value in zip(last, state, strict=True):
            column.append(value)
    y = torch.stack(every, 1)
    finals = [torch.stack(column) for column in last]
    if options["layout"]:
        y, finals = y.permute(2, 0, 1, 3), [f.transpose(0, 1) for f in finals]
    return [y.contiguous(), *(f.contiguous() for f in finals)]


def _first(state: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    return state.transpose(0, 1) if options["layout"] else state


def _functions(options: Mapping[str, Any]) -> list[Callable[[Any], Any]]:
    # Parameters are listed only for the activations that have one, in order.
    with_alpha = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
    with_beta = {"Affine", "ScaledTanh", "HardSigmoid"}
    alphas, betas = iter(options["alpha"]), iter(options["beta"])
    return [
        _activation(
            name,
            next(alphas, None) if name in with_alpha else None,
            next(betas, None) if name in with_beta else None,
        )
        for name in options["activations"]
    ]


def _activation(name: str, alpha: float | None, beta: float | None) -> Callable[[Any], Any]:
    import torch
    from torch.nn import functional

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    match name:
        case "Relu":
            return torch.relu
        case "Tanh":
            return torch.tanh
        case "Sigmoid":
            return torch.sigmoid
        case "Softsign":
            return functional.softsign
        case "Softplus":
            return functional.softplus
        case "Affine":
            return lambda x: given(alpha, 1.0) * x + given(beta, 0.0)
        case "LeakyRelu":
            return lambda x: functional.leaky_relu(x, given(alpha, 0.01))
        case "ThresholdedRelu":
            return lambda x: torch.where(x > given(alpha, 1.0), x, torch.zeros_like(x))
        case "ScaledTanh":
            return lambda x: given(alpha, 1.0) * torch.tanh(given(beta, 1.0) * x)
        case "HardSigmoid":
            return lambda x: (given(alpha, 0.2) * x + given(beta, 0.5)).clamp(0, 1)
        case "Elu":
            return lambda x: functional.elu(x, given(alpha, 1.0))
        case _:
            raise KeyError(f"no activation {name!r}")


def _sweep(
    step: Step,
    projected: torch.Tensor,
    state: list[torch.Tensor],
    rest: tuple[Any, ...],
    lengths: torch.Tensor | None,
    reverse: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run a cell over time; a sequence that has ended keeps its state and gives zeros."""
    import torch

    steps = projected.shape[0]
    outputs: list[torch.Tensor] = [projected.new_zeros(state[0].shape)] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        new = list(step(projected[t], *state, *rest))
        if lengths is not None:
            on = (t < lengths).unsqueeze(-1)
            outputs[t] = torch.where(on, new[0], torch.zeros_like(new[0]))
            new = [torch.where(on, a, b) for a, b in zip(new, state, strict=True)]
        else:
            outputs[t] = new[0]
        state = new
    return torch.stack(outputs), state


def _clip(x: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    bound = options["clip"]
    return x if bound is None else x.clamp(-bound, bound)


def _rnn_step(x: Any, h: Any, r: Any, rb: Any, _: Any, functions: Any, options: Any) -> Any:
    return (functions[0](_clip(x + r(h) + rb, options)),)


def _gru_step(x: Any, h: Any, r: Any, rb: Any, _: Any, functions: Any, options: Any) -> Any:
    f, g = functions
    xz, xr, xh = x.chunk(3, -1)
    rz, rr, rh = r.chunk(3)
    bz, br, bh = rb.chunk(3)
    z = f(_clip(xz + rz(h) + bz, options))
    reset = f(_clip(xr + rr(h) + br, options))
    if options["linear_before_reset"]:
        new = g(_clip(xh + reset * (rh(h) + bh), options))
    else:
        new = g(_clip(xh + rh(reset * h) + bh, options))
    return ((1 - z) * new + z * h,)


def _lstm_step(
    x: Any, h: Any, c: Any, r: Any, rb: Any, p: Any, functions: Any, options: Any
) -> Any:
    f, g, last = functions
    i, o, forget, new = (x + r(h) + rb).chunk(4, -1)
    pi, po, pf = (0.0, 0.0, 0.0) if p is None else p.chunk(3)
    i = f(_clip(i + pi * c, options))
    forget = 1 - i if options["input_forget"] else f(_clip(forget + pf * c, options))
    c = forget * c + i * g(_clip(new, options))
    o = f(_clip(o + po * c, options))
    return o * last(c), c


LSTM = Cell("LSTM", _lstm_step, 4, 3, 2)
CELLS = {"RNN": rnn, "GRU": gru, "LSTM": lstm}
