"""ONNX ops that no flow op expresses, in torch: what `flow.extern` runs for targets ``onnx::Name``.

Nothing of onnx or onnxruntime is used. Torch is imported on the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.errors import IrcError
from irc.runtime import recurrent
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
        values = run_extern(target, arguments, inputs, [dtype for _, dtype in results])
        return _checked(target, values, results)
    positions, options = arguments
    operands: Operands = [None if p is None else inputs[p["operand"]] for p in positions]
    values = LIBRARY[target.removeprefix("onnx::")](operands, options)[: len(results)]
    return _checked(target, values, results)


def prepared_cell(
    target: str,
    arguments: Sequence[Any],
    results: Sequence[tuple[tuple[int, ...], str]],
    fixed: Collection[int],
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] | None:
    """Return what runs a cell over time, its weights packed once; None where they may change.

    Args:
        target: ``onnx::LSTM``.
        arguments: as :func:`run` takes them.
        results: as :func:`run` takes them.
        fixed: operands that are weights.
    """
    cell: Callable[[Operands], list[torch.Tensor]]
    if target == "onnx::DynamicQuantizeLSTM":
        positions, options = arguments
        places = [None if p is None else p["operand"] for p in positions]
        if any(places[i] not in fixed for i in recurrent.QUANTIZED_WEIGHTS):
            return None
        cell = recurrent.KeptQuantized(options)
    elif (kept := _kept(target, arguments, fixed)) is not None:
        cell, places = kept
    else:
        return None

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        values = cell([None if i is None else inputs[i] for i in places])
        return _checked(target, values[: len(results)], results)

    return run


def cell_writer(
    target: str, arguments: Sequence[Any], fixed: Collection[int]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None] | None:
    """Return what runs a cell over time and writes its results; None where weights may change.

    Args:
        target: ``onnx::LSTM``.
        arguments: as :func:`run` takes them.
        fixed: operands that are weights.
    """
    kept = _kept(target, arguments, fixed)
    if kept is None:
        return None
    cell, places = kept

    def write(inputs: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        operands = [None if i is None else inputs[i] for i in places]
        if cell.write(operands, out):
            return
        results = [(tuple(each.shape), "") for each in out]
        for each, value in zip(out, _checked(target, cell(operands), results), strict=True):
            each.copy_(value)

    return write


def _kept(
    target: str, arguments: Sequence[Any], fixed: Collection[int]
) -> tuple[recurrent.Kept, list[int | None]] | None:
    """Return a cell and the place of each of its operands; None where weights may change."""
    positions, options = arguments
    places = [None if p is None else p["operand"] for p in positions]
    if any(place is not None and place not in fixed for place in places[1:4]):
        return None
    return recurrent.Kept(target.removeprefix("onnx::"), options), places


def _checked(
    target: str, values: list[Any], results: Sequence[tuple[tuple[int, ...], str]]
) -> list[torch.Tensor]:
    for value, (shape, _) in zip(values, results, strict=True):
        # -1: what decides the size is this op.
        if len(value.shape) != len(shape) or any(
            stated not in (-1, size) for stated, size in zip(shape, value.shape, strict=True)
        ):
            # Operands that onnx's inference does not hold against each other: an optimiser's.
            raise IrcError(
                "input-mismatch",
                f"a result of {target.rpartition(':')[2]} is {list(value.shape)}, "
                f"the program says {list(shape)}",
            )
    return values


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
    pooled = [
        flat.gather(-1, best).squeeze(-1),
        indices.flatten(2 + n).gather(-1, best).squeeze(-1),
    ]
    kept = tuple(slice(0, size) for size in (*x.shape[:2], *options["result"]))
    return [value[kept].contiguous() for value in pooled]


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
    sampled = torch.nn.functional.grid_sample(
        x, grid.to(x.dtype), mode=MODES.get(mode, mode), padding_mode=options["padding"],
        align_corners=bool(options["align"]),
    )  # fmt: skip
    return [sampled]


def _det(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    (x,) = operands
    assert x is not None
    return [torch.linalg.det(x)]  # pyright: ignore[reportUnknownMemberType]


def _col2im(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    import torch

    (x,) = operands
    assert x is not None
    image, (top, left, bottom, right) = options["image"], options["pads"]
    padded = (image[0] + top + bottom, image[1] + left + right)
    images = torch.nn.functional.fold(
        x, padded, options["block"], dilation=options["dilations"], stride=options["strides"]
    )
    return [images[..., top : top + image[0], left : left + image[1]].contiguous()]


def _dft(operands: Operands, options: Mapping[str, Any]) -> list[torch.Tensor]:
    (x,) = operands
    assert x is not None
    spectrum = transformed(
        as_array(x), options["axis"], options["length"],
        inverse=options["inverse"], onesided=options["onesided"],
    )  # fmt: skip
    return [as_tensor(spectrum)]


LIBRARY: Mapping[str, Kernel] = {
    "Col2Im": _col2im,
    "ConvTranspose": _conv_transpose,
    "DFT": _dft,
    "Det": _det,
    "DynamicQuantizeLSTM": recurrent.quantized_lstm,
    "GRU": recurrent.gru,
    "GridSample": _grid_sample,
    "LSTM": recurrent.lstm,
    "MaxPool": _max_pool,
    "NonZero": _non_zero,
    "RNN": recurrent.rnn,
}
