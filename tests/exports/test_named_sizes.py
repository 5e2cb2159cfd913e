"""Published files whose sizes have names compile without a word on sizes, and serve several."""

# pyright: basic
from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import irc
from irc.cli import main

onnxruntime = pytest.importorskip("onnxruntime")

SPEECH, VOICE = "onnx_asr/preprocessors/data", "silero_vad/data"


class Case(NamedTuple):
    """A file below the packages, and two calls: for each the numbers of its sizes."""

    file: str
    calls: tuple[dict[str, int], dict[str, int]]


def signals(name: str) -> Case:
    return Case(f"{SPEECH}/{name}.onnx", ({"B": 1, "N": 8000}, {"B": 2, "N": 12345}))


def images(file: str, *sizes: tuple[int, int, int]) -> Case:
    first, second = ({"B": n, "N": height, "M": width} for n, height, width in sizes)
    return Case(file, (first, second))


OCR, OCR4 = "rapidocr/models", "rapidocr_onnxruntime/models"
CASES = {
    "detector": images("nudenet/320n.onnx", (1, 320, 320), (2, 64, 96)),
    "direction": images(f"{OCR}/ch_ppocr_mobile_v2.0_cls_mobile.onnx", (1, 48, 192), (3, 70, 101)),
    "direction4": images(f"{OCR4}/ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 48, 192), (3, 70, 101)),
    "text6": images(f"{OCR}/PP-OCRv6_det_small.onnx", (1, 64, 96), (2, 128, 192)),
    "text4": images(f"{OCR4}/ch_PP-OCRv4_det_infer.onnx", (1, 64, 96), (2, 128, 192)),
    "line4": images(f"{OCR4}/ch_PP-OCRv4_rec_infer.onnx", (1, 48, 320), (6, 48, 200)),
    "file-type": Case("magika/models/standard_v3_3/model.onnx", ({"B": 1}, {"B": 3})),
    "notes": Case("basic_pitch/saved_models/icassp_2022/nmp.onnx", ({"B": 1}, {"B": 2})),
    "voice": Case(f"{VOICE}/silero_vad_op18_ifless.onnx", ({"B": 1, "N": 576}, {"B": 2, "N": 576})),
    "voice-sequence": Case(f"{VOICE}/silero_vad_16k_sequence.onnx", ({"B": 2}, {"B": 5})),
    "gigaam2": signals("gigaam_v2"),
    "gigaam3": signals("gigaam_v3"),
    "kaldi": signals("kaldi"),
    "nemo": signals("nemo128"),
    "whisper": signals("whisper80"),
    "44-to-16": signals("resample_44_16"),
    "24-to-16": signals("resample_24_16"),
    "16-to-8": signals("resample_16_8"),
}
QUICK = ("16-to-8",)
CLOSE = 1e-3
"""Of the largest element: logarithms of sums that are nearly 0 differ most."""


def path_of(file: str) -> Path:
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {package} is not installed (tests/models.txt)")
    return Path(spec.submodule_search_locations[0]) / rest


def feeds(inputs: Any, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Return inputs of a call: the first named dim is B, the next one N, of an image also M."""
    rng, arrays = np.random.default_rng(0), {}
    for each in inputs:
        named = [i for i, dim in enumerate(each.shape) if not isinstance(dim, int)]
        letters = {i: "BNM"[position] for position, i in enumerate(named)}
        shape = [sizes[letters[i]] if i in letters else dim for i, dim in enumerate(each.shape)]
        if each.type == "tensor(float)":
            arrays[each.name] = (0.1 * rng.standard_normal(shape)).astype(np.float32)
        elif each.name == "sr":
            arrays[each.name] = np.array(16000)
        elif each.name == "waveforms_lens":
            arrays[each.name] = np.arange(sizes["N"], sizes["N"] - sizes["B"], -1)
        else:
            arrays[each.name] = rng.integers(0, 256, shape, np.int32)
    return arrays


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_file_with_named_sizes_compiles_at_the_first_try(name: str, tmp_path: Path) -> None:
    path = path_of(CASES[name].file)
    assert main(["compile", str(path), "-o", str(tmp_path / "plan")]) == 0
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    run = irc.load(str(tmp_path / "plan"))
    for sizes in CASES[name].calls:
        call = feeds(theirs.get_inputs(), sizes)
        outputs = run(*(torch.from_numpy(np.asarray(value)) for value in call.values()))
        wanted = theirs.run(None, call)
        results = outputs if isinstance(outputs, tuple | list) else (outputs,)
        for mine, other in zip(results, wanted, strict=True):
            assert tuple(mine.shape) == other.shape
            np.testing.assert_allclose(
                mine.numpy(), other, rtol=0, atol=CLOSE * max(abs(other).max(), 1)
            )
