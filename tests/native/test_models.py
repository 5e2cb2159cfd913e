"""Models of others, compiled from ONNX files, in an interpreter with numpy alone."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import irc
from irc.backends.cpu.variants import VARIANTS
from irc.from_files import compile_file
from irc.runtime import load
from irc.runtime.native import processor
from irc.runtime.native.report import random_input
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
    for argument in session.get_inputs():
        named = zip(argument.shape, feeds[argument.name].shape, strict=True)
        sizes |= {name: size for name, size in named if isinstance(name, str)}
    text = compile_file(str(model), str(plan), sizes=sizes)
    assert text.endswith("numpy alone")
    run = irc.load(plan)
    order = [each.name for each in load(plan, threads=1).inputs]
    wanted = [y.numpy() for y in run(*(torch.from_numpy(feeds[name]) for name in order))]
    reference = session.run(None, feeds)
    outputs = run_clean(plan, {name: feeds[name] for name in order})
    for got, want, other in zip(outputs, wanted, reference, strict=True):
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


def check_open(plan: Path, sizes: Sequence[dict[str, int]]) -> None:
    """Hold a program of open sizes against its plan, without torch at the last of some sizes."""
    program, run = load(plan, threads=1), irc.load(plan)
    for each in sizes:
        ports = program.ports(each)
        inputs = {port.name: random_input(port, seed) for seed, port in enumerate(ports)}
        wanted = [y.numpy() for y in run(*map(torch.from_numpy, inputs.values()))]
        runs = [program.run(inputs)]
        if each is sizes[-1]:
            runs.append(run_clean(plan, inputs, threads=1))
        for outputs in runs:
            for got, want in zip(outputs, wanted, strict=True):
                assert np.array_equal(got, want), each


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_sentences_of_any_length(tmp_path: Path) -> None:
    from tests.benchmarks.models import build

    try:
        module, (ids,) = build("minilm")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    text = irc.export_plan(
        module, (ids.expand(2, -1).contiguous(),), out=tmp_path / "plan",
        dynamic={"x": {0: "sentences", 1: "tokens"}},
    )  # fmt: skip
    assert text.endswith("numpy alone")
    shapes = [(2, 128), (3, 17), (2, 2), (7, 129), (11, 33), (5, 250)]
    check_open(tmp_path / "plan", [{"sentences": b, "tokens": t} for b, t in shapes])


@pytest.mark.usefixtures("_one_thread")
def test_an_exported_transformer_of_any_sizes(tmp_path: Path) -> None:
    feeds = export(ZOO["bert"], tmp_path / "model.onnx", named=True)
    text = compile_file(str(tmp_path / "model.onnx"), str(tmp_path / "plan"))
    assert text.endswith("numpy alone")
    assert "for all of " in text
    assert all(name in feeds for name in (p.name for p in load(tmp_path / "plan").inputs))
    names = [each.name for each in load(tmp_path / "plan").sizes]
    check_open(tmp_path / "plan", [dict.fromkeys(names, n) for n in (2, 3, 17, 31)])


@pytest.mark.usefixtures("_one_thread")
def test_a_residual_network_of_any_batch(tmp_path: Path) -> None:
    from tests.benchmarks.models import build

    module, (image,) = build("resnet50")
    images = image.expand(2, -1, -1, -1)[..., :64, :64].contiguous()
    text = irc.export_plan(module, (images,), out=tmp_path / "plan", dynamic={"x": {0: "n"}})
    assert text.endswith("numpy alone")
    check_open(tmp_path / "plan", [{"n": n} for n in (2, 3, 5)])
