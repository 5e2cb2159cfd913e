"""Models with real weights that packages of the index hold (see tests/models.txt)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
        states: for each output that the next call is given again, the input that takes it.
        scale: standard deviation of the inputs.
    """

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, int] = field(default_factory=dict[str, int])
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    scale: float = 1.0

    @property
    def path(self) -> Path | None:
        """The file, or None where the package is not installed or has no such file."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        found = Path(spec.submodule_search_locations[0]) / self.file
        return found if found.exists() else None

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return random inputs."""
        rng = np.random.default_rng(seed)
        found: dict[str, np.ndarray] = {
            name: (self.scale * rng.standard_normal(shape)).astype(np.float32)
            for name, shape in self.shapes.items()
        }
        return found | {name: np.array(number) for name, number in self.whole.items()}


VOICE = {"input": (1, 576), "state": (2, 1, 128)}
NEXT = {"stateN": "state"}
RATE = {"sr": 16000}

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
    "voice-half": Published(SILERO, "data/silero_vad_half.onnx", VOICE, {}, NEXT, scale=0.1),
}  # fmt: skip
