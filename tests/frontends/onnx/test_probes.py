"""Models that others published, from installed packages (see tests/models.txt)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from irc.frontends.onnx import load_onnx
from tests.frontends.onnx.compare import op_counts, reference, run

RNG = np.random.default_rng(0)


def find(package: str, path: str) -> Path:
    # The package is not imported: its dependencies are not installed.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {package} is not installed (tests/models.txt)")
    file = Path(spec.submodule_search_locations[0]) / path
    if not file.exists():
        pytest.skip(f"{package} has no file {path} in this version")
    return file


def compare(path: Path, feeds: dict[str, np.ndarray], sizes: dict[str, int], **more: object):
    import onnx

    program = load_onnx(path, sizes, **more)  # type: ignore[arg-type]
    wanted = reference(onnx.load(path), feeds)
    outputs = run(program, {name: feeds[name] for name in program.input_names})
    for a, b in zip(wanted, outputs, strict=True):
        assert a.shape == b.shape
        assert abs(a - b).max() <= 1e-4 * abs(a).max()
    return program


def vad_inputs() -> dict[str, np.ndarray]:
    return {
        "input": RNG.standard_normal((1, 576)).astype(np.float32) * 0.1,
        "state": RNG.standard_normal((2, 1, 128)).astype(np.float32),
        "sr": np.array(16000),
    }


def test_voice_activity_detector() -> None:
    path = find("silero_vad", "data/silero_vad_op18_ifless.onnx")
    # The sample rate is an input: both branches are computed and one selected.
    program = compare(path, vad_inputs(), {"batch": 1, "sequence": 576})
    assert not any(name.startswith("onnx::") for name in op_counts(program))


def test_voice_activity_detector_of_one_sample_rate() -> None:
    path = find("silero_vad", "data/silero_vad.onnx")
    sizes = {"input_0": 1, "input_1": 576, "state_1": 1}
    program = compare(path, vad_inputs(), sizes, constants={"sr": np.array(16000)})
    # Its LSTM takes one step a call, which is written out.
    assert not any(name.startswith("onnx::") for name in op_counts(program))


def test_text_direction_classifier() -> None:
    path = find("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    x = RNG.standard_normal((2, 3, 48, 96)).astype(np.float32)
    program = compare(path, {"x": x}, {"x_0": 2, "x_2": 48, "x_3": 96})
    assert op_counts(program)["flow.convolution"] == 53
