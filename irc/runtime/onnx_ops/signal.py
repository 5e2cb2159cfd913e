"""Signals: Fourier transforms, windows, mel filters."""

from __future__ import annotations

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernel, Kernels
from irc.runtime.onnx_ops.values import ELEMENTS, HALF, Array


def _complex(x: Array) -> Array:
    """Return the numbers of a tensor whose last dim is one real or a real and imaginary part."""
    wide = x.astype(np.float32) if x.dtype in HALF else x
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]


def _pairs(values: Array, dtype: np.dtype) -> Array:
    return np.stack([np.real(values), np.imag(values)], -1).astype(dtype)


def transformed(x: Array, axis: int, length: int | None, *, inverse: bool,
                onesided: bool) -> Array:  # fmt: skip
    """Return the discrete Fourier transform along an axis, in the precision of the operand."""
    values = _complex(x)
    if inverse and onesided:
        length = 2 * (x.shape[axis] - 1) if length is None else length
        return np.fft.irfft(values, n=length, axis=axis)[..., None].astype(x.dtype)
    spectrum = (np.fft.ifft if inverse else np.fft.fft)(values, n=length, axis=axis)
    if onesided:
        spectrum = np.take(spectrum, range(spectrum.shape[axis] // 2 + 1), axis)
    return _pairs(spectrum, x.dtype)


def _dft(call: Call) -> Array:
    axis = int(call.number(2, -2)) if call.version >= 20 else call.attr("axis", 1)
    return transformed(
        call[0], axis % call[0].ndim, call.number(1),
        inverse=bool(call.attr("inverse", 0)), onesided=bool(call.attr("onesided", 0)),
    )  # fmt: skip


def _stft(call: Call) -> Array:
    x, step, window, length = call[0], int(call.number(1)), call[2], call.number(3)
    values = _complex(x) if x.ndim == 3 else x
    length = int(length) if length is not None else window.shape[0]
    if window is None:
        window = np.ones(length, x.dtype)
    count = 1 + (values.shape[1] - length) // step
    frames = np.stack([values[:, i * step : i * step + length] for i in range(count)], 1)
    before = (length - window.shape[0]) // 2
    window = np.pad(window, (before, length - window.shape[0] - before))
    onesided = call.attr("onesided", 1) and not np.iscomplexobj(values)
    spectra = (np.fft.rfft if onesided else np.fft.fft)(frames * window, axis=-1)
    return _pairs(spectra, x.dtype)


def _window(*cosines: float) -> Kernel:
    """A window that is a sum of cosines: ``a0 - a1 cos(x) + a2 cos(2 x)``."""

    def kernel(call: Call) -> Array:
        size = int(call.number(0))
        period = size if call.attr("periodic", 1) else size - 1
        angle = 2 * np.pi * np.arange(size) / max(period, 1)
        parts = [(-1) ** i * a * np.cos(i * angle) for i, a in enumerate(cosines)]
        return np.sum(parts, 0).astype(ELEMENTS[call.attr("output_datatype", 1)])

    return kernel


def _mel(call: Call) -> Array:
    bins: int
    length: int
    rate: int
    low: float
    high: float
    bins, length, rate, low, high = (call.number(i) for i in range(5))
    spectrum = length // 2 + 1
    edges = np.array([low, high], np.float64)
    low, high = 2595 * np.log10(1 + edges / 700)
    mels = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    places = ((length + 1) * hertz // rate).astype(np.int64)
    weights = np.zeros((spectrum, bins), np.float64)
    for i in range(bins):
        first, centre, last = places[i : i + 3]
        if centre == first:
            weights[centre, i] = 1
        else:
            weights[first : centre + 1, i] = (np.arange(first, centre + 1) - first) / (
                centre - first
            )
        if last > centre:
            weights[centre:last, i] = (last - np.arange(centre, last)) / (last - centre)
    return weights.astype(ELEMENTS[call.attr("output_datatype", 1)])


KERNELS: Kernels = {
    "BlackmanWindow": _window(0.42, 0.5, 0.08),
    "DFT": _dft,
    "HammingWindow": _window(25 / 46, 1 - 25 / 46),
    "HannWindow": _window(0.5, 0.5),
    "MelWeightMatrix": _mel,
    "STFT": _stft,
}
