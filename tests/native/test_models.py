"""Models of others, compiled from ONNX files, in an interpreter with numpy alone."""

import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import irc
from irc.api import compile_file
from irc.backends.cpu.variants import VARIANTS
from irc.runtime import load
from irc.runtime.native import processor
from tests.exports.export import export
from tests.exports.published import PUBLISHED
from tests.models.zoo.table import ZOO
from tests.native.test_clean import run_clean

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
    ),
]


def check(model: Path, feeds: dict[str, np.ndarray], plan: Path) -> None:
    """Hold a program against its plan, against ONNX Runtime, and its AVX2 code against both."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    sizes: dict[str, int] = {}
    for given in session.get_inputs():
        named = zip(given.shape, feeds[given.name].shape, strict=True)
        sizes |= {name: size for name, size in named if isinstance(name, str)}
    text = compile_file(str(model), str(plan), sizes=sizes)
    assert text.endswith("numpy alone")
    run = irc.load(plan)
    order = [each.name for each in load(plan, threads=1).inputs]
    wanted = [y.numpy() for y in run(*(torch.from_numpy(feeds[name]) for name in order))]
    reference = session.run(None, feeds)
    found = run_clean(plan, {name: feeds[name] for name in order})
    for got, want, other in zip(found, wanted, reference, strict=True):
        assert np.array_equal(got, want)
        assert np.abs(got - other).max() <= 1e-4 * np.abs(other).max()
    if not set(VARIANTS["x86-64-v3"].requires) - processor.flags():
        program = load(plan, threads=2, code="x86-64-v3")
        for got, want in zip(program.run({n: feeds[n] for n in order}), wanted, strict=True):
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", ["ocr-detection", "voice"])
def test_published_models(name: str, tmp_path: Path) -> None:
    model = PUBLISHED[name]
    if model.path is None:
        pytest.skip(f"{model.package} is not installed (tests/models.txt)")
    check(model.path, model.feeds(), tmp_path / "plan")


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_exported_models(name: str, tmp_path: Path) -> None:
    feeds = export(ZOO[name], tmp_path / "model.onnx")
    check(tmp_path / "model.onnx", feeds, tmp_path / "plan")


def test_a_residual_network(tmp_path: Path) -> None:
    from tests.benchmarks.models import build

    module, (image,) = build("resnet50")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (image,), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    name = str(program.model.graph.inputs[0].name)
    check(tmp_path / "model.onnx", {name: image.numpy()}, tmp_path / "plan")
