"""Packages written for ONNX Runtime, unchanged: their own code calls irc's session instead."""

# pyright: basic
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import irc.onnx


def test_voice_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    silero = pytest.importorskip("silero_vad.utils_vad")
    path = str(Path(silero.__file__).with_name("data") / "silero_vad.onnx")
    sound = torch.sin(torch.arange(2048) * 0.3).reshape(4, 512) * 0.1

    def speech() -> list[float]:
        wrapper = silero.OnnxWrapper(path)
        return [float(wrapper(part[None], 16000)) for part in sound]

    theirs = speech()
    monkeypatch.setitem(sys.modules, "onnxruntime", irc.onnx)
    np.testing.assert_allclose(speech(), theirs, rtol=1e-4)


def test_types_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", irc.onnx)
    for name in [each for each in sys.modules if each.partition(".")[0] == "magika"]:
        monkeypatch.delitem(sys.modules, name)
    magika = pytest.importorskip("magika")
    detector = magika.Magika()
    texts = [b"import os\nprint(os.sep)\n" * 20, b"<html><body><p>a</p></body></html>" * 20]
    labels = [str(detector.identify_bytes(text).output.label) for text in texts]
    assert labels == ["python", "html"]
