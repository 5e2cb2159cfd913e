"""Models with real weights: equal to ONNX Runtime's, as published and as its optimiser writes them.

Those with a state are called again with the state that the call before gave.
"""

# pyright: basic
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import irc.onnx
from tests.exports.compare import CLOSE
from tests.exports.export import optimised
from tests.exports.published import PUBLISHED, Published

onnxruntime = pytest.importorskip("onnxruntime")

CALLS = 4
QUICK = ("ocr-direction", "voice", "mel", "resampling")
SLOW = [name for name in PUBLISHED if name not in QUICK]


def sessions(path: Path) -> tuple[irc.onnx.InferenceSession, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return irc.onnx.InferenceSession(str(path)), theirs


def compare(path: Path, published: Published) -> irc.onnx.InferenceSession:
    """Run a file in both sessions, each with its own states, and return irc's."""
    mine, theirs = sessions(path)
    names = [out.name for out in theirs.get_outputs()]
    states: list[dict[str, np.ndarray]] = [{}, {}]
    for call in range(CALLS if published.states else 1):
        feeds = published.feeds(call)
        results = [
            s.run(None, feeds | state) for s, state in zip((mine, theirs), states, strict=True)
        ]
        for name, output, wanted in zip(names, *results, strict=True):
            assert output.shape == wanted.shape and output.dtype == wanted.dtype
            np.testing.assert_allclose(output, wanted, rtol=0, atol=CLOSE * abs(wanted).max(),
                                       err_msg=f"{name} of call {call}")  # fmt: skip
        for state, outputs in zip(states, results, strict=True):
            state |= {
                published.states[n]: value
                for n, value in zip(names, outputs, strict=True)
                if n in published.states
            }
    return mine


def path_of(name: str) -> Path:
    path = PUBLISHED[name].path
    if path is None:
        pytest.skip(f"package {PUBLISHED[name].package} is not installed (tests/models.txt)")
    return path


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_as_published(name: str) -> None:
    compare(path_of(name), PUBLISHED[name])


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
@pytest.mark.parametrize("level", ["extended", "all"])
def test_as_the_optimiser_of_onnxruntime_writes_it(name: str, level: str, tmp_path: Path) -> None:
    optimised(path_of(name), tmp_path / "m.onnx", level=level)
    compare(tmp_path / "m.onnx", PUBLISHED[name])
