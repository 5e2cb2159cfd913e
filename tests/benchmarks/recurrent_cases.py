"""ONNX files with recurrent nets: those of packages of the index, and exports of three sizes."""

# pyright: basic
from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.exports.published import SILERO, Published

STATE = {"h": (1, 1, 128), "c": (1, 1, 128)}
_RNG = np.random.default_rng(1)

FILES: Mapping[str, Published] = {
    "tashkeel": Published(
        "piper", "tashkeel/model.onnx", {},
        {
            "char_inputs": _RNG.integers(2, 30, (1, 60)),
            "diac_inputs": np.zeros((1, 60), np.int64),
            "input_lengths": np.array([60]),
        },
    ),
    "nakdimon": Published(
        "piper", "hebrew/nakdimon.onnx", {},
        {"input_1": _RNG.integers(2, 30, (1, 60)).astype(np.float32)},
    ),
    "silero sequence": Published(
        SILERO, "data/silero_vad_16k_sequence.onnx", {"input": (32, 576), **STATE}, scale=0.1
    ),
    "whisper vad": Published(
        "faster_whisper", "assets/silero_vad_v6.onnx", {"input": (32, 576), **STATE}, scale=0.1
    ),
    "ddddocr old": Published("ddddocr", "common_old.onnx", {"input1": (1, 1, 64, 160)}),
}  # fmt: skip
"""With real weights: ``pip install --no-deps piper-tts silero-vad faster-whisper ddddocr``.

tashkeel (GRUs) and nakdimon (loops written out) set marks of Arabic and Hebrew, the VADs and the
reader of captchas (8-bit) have an LSTM.
"""

KINDS = ("LSTM", "GRU", "RNN")
SIZES: Mapping[str, tuple[int, int, int, int]] = {
    "small": (1, 10, 32, 1), "medium": (4, 50, 128, 1), "large": (16, 64, 256, 2),
}  # fmt: skip
"""Batch, steps, units and layers; the large ones go both ways."""
EXPORTS = tuple(f"{kind} {size}" for kind in KINDS for size in SIZES)
CASES = (*FILES, *EXPORTS)


def prepare(name: str, folder: Path) -> tuple[Path, Path] | None:
    """Write the inputs of a case, and its file where it is an export.

    Returns:
        The model and an archive of inputs by name, or None where no package that holds it is there.
    """
    feeds = folder / f"{name.replace(' ', '-')}.npz"
    published = FILES.get(name)
    if published is None:
        model = feeds.with_suffix(".onnx")
        np.savez(feeds, x=_export(name, model))
        return model, feeds
    if published.path is None:
        return None
    np.savez(feeds, **published.feeds())
    return published.path, feeds


def _export(name: str, path: Path) -> np.ndarray:
    """Write a net as the exporter by traces does: one op for each layer."""
    import torch

    kind, size = name.split()
    batch, steps, units, layers = SIZES[size]
    torch.manual_seed(0)
    net = getattr(torch.nn, kind)(
        units, units, layers, batch_first=True, bidirectional=size == "large"
    ).eval()
    x = torch.randn(batch, steps, units)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(path), dynamo=False, input_names=["x"])
    return x.numpy()
