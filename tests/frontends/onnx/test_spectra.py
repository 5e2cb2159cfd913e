"""STFT is a convolution, at most as far from numpy's transform as float32 allows."""

from __future__ import annotations

import numpy as np
import pytest

from irc.frontends.onnx import load_onnx
from irc.program import Program
from tests.frontends.onnx.compare import model_of, op_counts, run

RNG = np.random.default_rng(3)


def frames(x: np.ndarray, window: np.ndarray, length: int, step: int) -> np.ndarray:
    """Return the windowed frames in float64."""
    before = (length - len(window)) // 2
    wide = np.pad(window.astype(np.float64), (before, length - len(window) - before))
    count = 1 + (x.shape[1] - length) // step
    return np.stack([x[:, i * step : i * step + length] for i in range(count)], 1) * wide


def converted(body: str, inputs: str, *, stored: str = "") -> Program:
    model = model_of(body, inputs, "float[a,b,c,d] y", stored=stored)
    return load_onnx(model)


@pytest.mark.parametrize("onesided", [None, 0, 1])
@pytest.mark.parametrize(
    ("time", "length", "width", "step"), [(40, 16, 16, 4), (37, 15, 11, 3), (9, 9, 4, 1)]
)
def test_frames_agree_with_numpy(
    onesided: int | None, time: int, length: int, width: int, step: int
) -> None:
    x = RNG.standard_normal((2, time)).astype(np.float32)
    window = RNG.random(width).astype(np.float32)
    flag = "" if onesided is None else f" <onesided = {onesided}>"
    program = converted(
        f"y = STFT{flag} (x, s, w, n)", f"float[2,{time},1] x, float[{width}] w",
        stored=f"int64 s = {{{step}}}, int64 n = {{{length}}}",
    )  # fmt: skip
    assert not any(name.startswith("onnx::") for name in op_counts(program))
    (spectrum,) = run(program, {"x": x[:, :, None], "w": window})
    transform = np.fft.fft if onesided == 0 else np.fft.rfft
    wanted = transform(frames(x, window, length, step))
    np.testing.assert_allclose(spectrum[..., 0], wanted.real, atol=2e-5)
    np.testing.assert_allclose(spectrum[..., 1], wanted.imag, atol=2e-5)


def test_a_stored_window_is_part_of_the_filters() -> None:
    # As exporters of speech models write it: a signal without a dim of channels, no length.
    program = converted(
        "y = STFT (x, s, w)", "float[1,20] x",
        stored="int64 s = {4}, float[6] w = {0.1,0.5,1,1,0.5,0.1}",
    )  # fmt: skip
    x = RNG.standard_normal((1, 20)).astype(np.float32)
    (spectrum,) = run(program, {"x": x})
    window = np.array([0.1, 0.5, 1, 1, 0.5, 0.1], np.float32)
    wanted = np.fft.rfft(frames(x, window, 6, 4))
    assert spectrum.shape == (1, 4, 4, 2)
    np.testing.assert_allclose(spectrum[..., 0] + 1j * spectrum[..., 1], wanted, atol=1e-5)
    assert set(op_counts(program)) == {
        "flow.constant", "flow.reshape", "flow.convolution", "flow.transpose"
    }  # fmt: skip


def test_complex_signals_run_in_the_library_with_their_shape() -> None:
    program = converted(
        "y = STFT <onesided = 0> (x, s, w)", "float[1,20,2] x, float[8] w", stored="int64 s = {4}"
    )
    assert any(name.startswith("onnx") for name in op_counts(program))
    x = RNG.standard_normal((1, 20, 2)).astype(np.float32)
    window = RNG.random(8).astype(np.float32)
    (spectrum,) = run(program, {"x": x, "w": window})
    wanted = np.fft.fft(frames(x[..., 0] + 1j * x[..., 1], window, 8, 4))
    np.testing.assert_allclose(spectrum[..., 0] + 1j * spectrum[..., 1], wanted, atol=1e-5)


def test_the_library_knows_that_one_side_is_the_default() -> None:
    """Type inference of onnx takes both sides where the file does not say."""
    text = "y = STFT (x, s, w)"
    model = model_of(text, "float[1,6000] x, float[3000] w", "float[a,b,c,d] y",
                     stored="int64 s = {1000}")  # fmt: skip
    program = load_onnx(model)
    x = RNG.standard_normal((1, 6000)).astype(np.float32)
    (spectrum,) = run(program, {"x": x, "w": np.ones(3000, np.float32)})
    wanted = np.fft.rfft(frames(x, np.ones(3000, np.float32), 3000, 1000))
    np.testing.assert_allclose(spectrum[..., 0], wanted.real, atol=2e-3)
