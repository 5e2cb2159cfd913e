"""Models with real weights that packages of the index hold (see tests/models.txt)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SILERO, RAPIDOCR = "silero_vad", "rapidocr_onnxruntime"


@dataclass(frozen=True)
class Published:
    """A file of a package, and the shapes that users call it with.

    Attributes:
        package: its import name; it is not imported, for its dependencies are not installed.
        file: inside the package.
        shapes: of the inputs that are float32.
        whole: the inputs that are whole numbers.
        bytes: shapes of inputs of numbers below 256, i32.
        states: for each output that the next call is given again, the input that takes it.
        scale: standard deviation of the inputs.
    """

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, Any] = field(default_factory=dict[str, Any])
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    scale: float = 1.0

    @property
    def path(self) -> Path | None:
        """The file, or None where the package is not installed or has no such file."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / self.file
        return path if path.exists() else None

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return random inputs."""
        rng = np.random.default_rng(seed)
        feeds: dict[str, np.ndarray] = {
            name: (self.scale * rng.standard_normal(shape)).astype(np.float32)
            for name, shape in self.shapes.items()
        }
        feeds |= {name: np.array(number) for name, number in self.whole.items()}
        return feeds | {
            name: rng.integers(0, 256, shape, np.int32) for name, shape in self.bytes.items()
        }


VOICE = {"input": (1, 576), "state": (2, 1, 128)}
NEXT = {"stateN": "state"}
RATE = {"sr": 16000}
SAMPLES = {"waveforms_lens": [16000]}

PUBLISHED: Mapping[str, Published] = {
    "ocr-detection": Published(
        RAPIDOCR, "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 480)}
    ),
    "ocr-direction": Published(
        RAPIDOCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}
    ),
    "ocr-recognition": Published(
        RAPIDOCR, "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}
    ),
    "voice": Published(
        SILERO, "data/silero_vad_op18_ifless.onnx", VOICE, RATE, NEXT, scale=0.1
    ),
    "voice-branches": Published(SILERO, "data/silero_vad.onnx", VOICE, RATE, NEXT, scale=0.1),
    "voice-16k": Published(SILERO, "data/silero_vad_16k_op15.onnx", VOICE, RATE, NEXT, scale=0.1),
    "ocr6-detection": Published(
        "rapidocr", "models/PP-OCRv6_det_small.onnx", {"x": (1, 3, 320, 320)}, scale=0.5
    ),
    "ocr6-recognition": Published(
        "rapidocr", "models/PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 320)}
    ),
    "objects": Published("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "file-type": Published(
        "magika", "models/standard_v3_3/model.onnx", {}, bytes={"bytes": (1, 2048)}
    ),
    "notes": Published(
        "basic_pitch", "saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    "spectrum": Published(
        "onnx_asr", "preprocessors/data/kaldi.onnx", {"waveforms": (1, 16000)}, SAMPLES
    ),
    "mel": Published(
        "onnx_asr", "preprocessors/data/nemo128.onnx", {"waveforms": (1, 16000)}, SAMPLES
    ),
    "resampling": Published(
        "onnx_asr", "preprocessors/data/resample_44_16.onnx", {"waveforms": (1, 16000)}, SAMPLES
    ),
    "voice-half": Published(SILERO, "data/silero_vad_half.onnx", VOICE, {}, NEXT, scale=0.1),
}  # fmt: skip
