"""A file through ONNX Runtime and through irc: how far apart the results are."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import irc.onnx

CLOSE = 1e-4
"""Difference that is allowed, relative to the largest element of a result."""


def difference(path: Path, feeds: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference from ONNX Runtime, relative to the largest element.

    Raises:
        AssertionError: where shapes or dtypes differ.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    wanted = reference.run(None, dict(feeds))
    outputs = irc.onnx.InferenceSession(str(path)).run(None, dict(feeds))
    worst = 0.0
    for mine, theirs in zip(map(np.asarray, outputs), map(np.asarray, wanted), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        scale = float(np.abs(theirs).max(initial=1e-30))
        worst = max(worst, float(np.abs(mine - theirs).max(initial=0)) / scale)
    return worst
