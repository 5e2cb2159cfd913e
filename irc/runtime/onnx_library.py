"""ONNX ops that no flow op expresses, in torch: what `flow.extern` runs for targets ``onnx::Name``.

Nothing of onnx or onnxruntime is used. Torch is imported on the first call.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.runtime import torch_cells
from irc.runtime.onnx_ops.run import PREFIX, run_extern
from irc.runtime.onnx_ops.signal import transformed
from irc.runtime.onnx_ops.values import as_array, as_tensor

if TYPE_CHECKING:
    import torch

Operands: TypeAlias = "list[torch.Tensor | None]"
Kernel: TypeAlias = Callable[["Operands", Mapping[str, Any]], "list[torch.Tensor]"]


def run(
    target: str,
    arguments: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], str]],
) -> list[torch.Tensor]:
    """Run an extern op.

    Args:
        target: ``onnx::LSTM``.
        arguments: the op's decoded JSON: positions (an operand's number, or null) and options.
        inputs: operands.
        results: shape and dtype that the op states for each result, which are checked.
    """
    if target.startswith(PREFIX):
        found = run_extern(target, arguments, inputs, [dtype for _, dtype in results])
        return _checked(target, found, results)
    positions, options = arguments
    operands = [None if p is None else inputs[p["operand"]] for p in positions]
    found = LIBRARY[target.removeprefix("onnx::")](operands, options)[: len(results)]
    return _checked(target, found, results)


def _checked(
    target: str, found: list[Any], results: Sequence[tuple[tuple[int, ...], str]]
) -> list[torch.Tensor]:
    for value, (shape, _) in zip(found, results, strict=True):
        # -1: what decides the size is this op.
        if len(value.shape) != len(shape) or any(
            stated not in (-1, size) for stated, size in zip(shape, value.shape, strict=True)
        ):
            raise ValueError(f"{target} gives {list(value.shape)}, the program says {list(shape)}")
    return found


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


Step: TypeAlias = Callable[..., "tuple[torch.Tensor, ...]"]


def _recurrent(kind: str, step: Step, gates: int, per_direction: int, states: int) -> Kernel:
    """Make a kernel of a cell: ``step(x W, states, R, b_r, peepholes, functions, options)``."""

    def kernel(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
        import torch

        operands = [*operands, *[None] * (8 - len(operands))]
        if torch_cells.is_plain(kind, operands, options):
            return torch_cells.run(kind, operands, options)
        x, w, r, bias, lengths, *initial = operands
        assert x is not None and w is not None and r is not None
        x = x.transpose(0, 1) if options["layout"] else x
        functions = _functions(options)
        every: list[torch.Tensor] = []
        last: list[list[torch.Tensor]] = [[] for _ in range(states)]
        for d in range(w.shape[0]):
            reverse = options["direction"] == "reverse" or d == 1
            b = x.new_zeros(2 * gates * options["hidden"]) if bias is None else bias[d]
            wb, rb = b.chunk(2)
            state = [
                x.new_zeros(x.shape[1], options["hidden"]) if s is None else _first(s, options)[d]
                for s in initial[:states]
            ]
            peephole = None if states < 2 or initial[2] is None else initial[2][d]
            projected = x @ w[d].T + wb
            mine = functions[d * per_direction : (d + 1) * per_direction]
            outputs, state = _sweep(
                step, projected, state, (r[d], rb, peephole, mine, options), lengths, reverse
            )
            every.append(outputs)
            for column, value in zip(last, state, strict=True):
                column.append(value)
        y = torch.stack(every, 1)
        finals = [torch.stack(column) for column in last]
        if options["layout"]:
            y, finals = y.permute(2, 0, 1, 3), [f.transpose(0, 1) for f in finals]
        return [y.contiguous(), *(f.contiguous() for f in finals)]

    return kernel


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
    return (functions[0](_clip(x + h @ r.T + rb, options)),)


def _gru_step(x: Any, h: Any, r: Any, rb: Any, _: Any, functions: Any, options: Any) -> Any:
    f, g = functions
    xz, xr, xh = x.chunk(3, -1)
    rz, rr, rh = r.chunk(3)
    bz, br, bh = rb.chunk(3)
    z = f(_clip(xz + h @ rz.T + bz, options))
    reset = f(_clip(xr + h @ rr.T + br, options))
    if options["linear_before_reset"]:
        new = g(_clip(xh + reset * (h @ rh.T + bh), options))
    else:
        new = g(_clip(xh + (reset * h) @ rh.T + bh, options))
    return ((1 - z) * new + z * h,)


def _lstm_step(
    x: Any, h: Any, c: Any, r: Any, rb: Any, p: Any, functions: Any, options: Any
) -> Any:
    f, g, last = functions
    i, o, forget, new = (x + h @ r.T + rb).chunk(4, -1)
    pi, po, pf = (0.0, 0.0, 0.0) if p is None else p.chunk(3)
    i = f(_clip(i + pi * c, options))
    forget = 1 - i if options["input_forget"] else f(_clip(forget + pf * c, options))
    c = forget * c + i * g(_clip(new, options))
    o = f(_clip(o + po * c, options))
    return o * last(c), c


def _conv_transpose(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    x, w, bias = (*operands, None)[:3]
    assert x is not None and w is not None
    n = x.ndim - 2
    low, high = options["low"], options["high"]
    # Torch crops both ends alike, so nothing is cropped there and both ends are cut here.
    full = torch.ops.aten.convolution(
        x, w, bias, options["strides"], [0] * n, options["dilations"], True, [0] * n,
        options["groups"],
    )  # fmt: skip
    amounts = [
        amount
        for lo, hi, more in reversed(list(zip(low, high, options["extra"], strict=True)))
        for amount in (-lo, more - hi)
    ]
    cropped = torch.nn.functional.pad(full, amounts)
    if bias is not None and any(m > h for m, h in zip(options["extra"], high, strict=True)):
        # Elements past the full result see no input, but they do see the bias.
        blank = torch.nn.functional.pad(torch.ones_like(full), amounts) == 0
        shaped = bias.reshape(-1, *[1] * n).expand(cropped.shape)
        cropped = torch.where(blank, shaped, cropped)
    return [cropped.contiguous()]


def _max_pool(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    """MaxPool with the places of the maxima, as row-major indices into the whole tensor."""
    import torch

    (x,) = operands
    assert x is not None
    n, sizes = x.ndim - 2, x.shape[2:]
    places = torch.arange(x.numel()).reshape(x.shape)
    if options["storage_order"] and n > 1:
        volume = sizes.numel()
        order = torch.arange(volume).reshape(*sizes[::-1]).permute(*reversed(range(n)))
        images = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * n) * volume
        places = images + order
    lowest = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    ends = [
        (max(0, size + lo + hi), lo)
        for size, lo, hi in zip(sizes, options["low"], options["high"], strict=True)
    ]
    reach = [d * (k - 1) + 1 for d, k in zip(options["dilations"], options["window"], strict=True)]
    # Extra room for windows that ceil mode adds past the padding.
    amounts = [
        a
        for (_, lo), hi, s in reversed(
            list(zip(ends, options["high"], options["strides"], strict=True))
        )
        for a in (lo, hi + s - 1)
    ]
    values = torch.nn.functional.pad(x, amounts, value=lowest)
    indices = torch.nn.functional.pad(places, amounts)
    for i in range(n):
        dilation, stride = options["dilations"][i], options["strides"][i]
        values = values.unfold(2 + i, reach[i], stride)[..., ::dilation]
        indices = indices.unfold(2 + i, reach[i], stride)[..., ::dilation]
    flat = values.flatten(2 + n)
    best = flat.argmax(-1, keepdim=True)
    found = [flat.gather(-1, best).squeeze(-1), indices.flatten(2 + n).gather(-1, best).squeeze(-1)]
    kept = tuple(slice(0, size) for size in (*x.shape[:2], *options["result"]))
    return [value[kept].contiguous() for value in found]


def _non_zero(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    (x,) = operands
    assert x is not None
    return [torch.nonzero(x if x.ndim else x.reshape(1)).T.contiguous()]


MODES = {"linear": "bilinear", "cubic": "bicubic"}
"""torch's names for ONNX's interpolations."""


def _grid_sample(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    x, grid = operands
    assert x is not None and grid is not None
    mode: str = options["mode"]
    found = torch.nn.functional.grid_sample(
        x, grid.to(x.dtype), mode=MODES.get(mode, mode), padding_mode=options["padding"],
        align_corners=bool(options["align"]),
    )  # fmt: skip
    return [found]


def _det(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    (x,) = operands
    assert x is not None
    return [torch.linalg.det(x)]


def _col2im(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    (x,) = operands
    assert x is not None
    image, (top, left, bottom, right) = options["image"], options["pads"]
    padded = (image[0] + top + bottom, image[1] + left + right)
    found = torch.nn.functional.fold(
        x, padded, options["block"], dilation=options["dilations"], stride=options["strides"]
    )
    return [found[..., top : top + image[0], left : left + image[1]].contiguous()]


def _dft(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    (x,) = operands
    assert x is not None
    found = transformed(
        as_array(x), options["axis"], options["length"],
        inverse=options["inverse"], onesided=options["onesided"],
    )  # fmt: skip
    return [as_tensor(found)]


LIBRARY: Mapping[str, Kernel] = {
    "Col2Im": _col2im,
    "ConvTranspose": _conv_transpose,
    "DFT": _dft,
    "Det": _det,
    "GRU": _recurrent("GRU", _gru_step, 3, 2, 1),
    "GridSample": _grid_sample,
    "LSTM": _recurrent("LSTM", _lstm_step, 4, 3, 2),
    "MaxPool": _max_pool,
    "NonZero": _non_zero,
    "RNN": _recurrent("RNN", _rnn_step, 1, 1, 1),
}
