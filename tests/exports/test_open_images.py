"""Nets on images whose height and width have names compile open, as OCR and detectors have them."""

# pyright: basic
from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import irc
from irc.cli import main
from tests.frontends.onnx.compare import model_of, reference

IMAGE = "float[N,3,H,W] x"
KERNEL = "float[8,3,3,3] k"
UP = "float[8,4,2,2] u"


def weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give inputs that are weights their values."""
    rng = np.random.default_rng(0)
    for each in [each for each in model.graph.input if each.name != "x"]:
        shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        values = (0.2 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, each.name))
        model.graph.input.remove(each)
    return model


def up(attributes: str, *, before: str = "pads=[1,1,1,1], strides=[2,2]") -> onnx.ModelProto:
    """A convolution that halves an image, and a transposed one."""
    body = f"h = Conv<{before}>(x, k)\ny = ConvTranspose<{attributes}>(h, u)"
    return weights(model_of(body, f"{IMAGE}, {KERNEL}, {UP}", "float[N,4,A,B] y"))


def pooled() -> onnx.ModelProto:
    """Halved three times, then pooled: of 64 rows there are 4 at the end, of 16 one."""
    halved = "h = Conv<pads=[1,1,1,1], strides=[2,2]>(x, k)\nr = Relu(h)\n"
    pool = "p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)\nq = MaxPool<kernel_shape=[2,2],"
    ends = " strides=[2,2]>(p)\nm = GlobalAveragePool(q)\ny = Flatten(m)"
    return weights(model_of(f"{halved}{pool}{ends}", f"{IMAGE}, {KERNEL}", "float[N,C] y"))


def lines() -> onnx.ModelProto:
    """Text recognition: an image of one row of text has height 1 at the end, which is dropped."""
    body = (
        "h = Conv<pads=[1,1,1,1], strides=[2,2]>(x, k)\n"
        "p = MaxPool<kernel_shape=[32,1], strides=[32,1]>(h)\n"
        "axes = Constant<value_ints=[2]>()\ny = Squeeze(p, axes)"
    )
    return weights(model_of(body, f"{IMAGE}, {KERNEL}", "float[N,8,A] y"))


NETS = {
    "transposed": (up("strides=[2,2]"), [(1, 64, 96), (3, 61, 90), (2, 128, 64)]),
    "same upper": (up("strides=[2,2], auto_pad=\"SAME_UPPER\""), [(1, 64, 96), (3, 61, 90)]),
    "longer": (up("strides=[3,2], output_padding=[1,0]"), [(1, 64, 96), (2, 33, 70)]),
    "pooled": (pooled(), [(1, 64, 96), (2, 70, 33), (5, 200, 160)]),
    "lines": (lines(), [(1, 64, 96), (2, 64, 320)]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NETS))
def test_height_and_width_stay_open(name: str, tmp_path: Path) -> None:
    model, calls = NETS[name]
    onnx.save(model, tmp_path / "net.onnx")
    assert main(["compile", f"{tmp_path}/net.onnx", "-o", f"{tmp_path}/plan"]) == 0
    run = irc.load(tmp_path / "plan")
    for n, height, width in calls:
        x = np.random.default_rng(1).standard_normal((n, 3, height, width)).astype(np.float32)
        outputs = run(torch.from_numpy(x))
        (wanted,) = reference(model, {"x": x})
        output = outputs[0] if isinstance(outputs, tuple | list) else outputs
        np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_the_help_of_a_file_that_cannot_stay_open_works_as_it_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(up("strides=[2,2], output_shape=[64,96]"), tmp_path / "net.onnx")
    words = ["compile", f"{tmp_path}/net.onnx", "-o", f"{tmp_path}/plan"]
    assert main(words) == 2
    said = capsys.readouterr().err
    (told,) = [line for line in said.splitlines() if line.startswith("  help:")]
    assert told == "  help: give numbers of yours: --size H=64 --size W=96 (tried; N stays open)"
    line = told.partition("yours: ")[2].partition(" (")[0]
    assert main([*words, *shlex.split(line)]) == 0
    assert "open sizes  N 1.." in capsys.readouterr().out


def test_the_help_for_a_mesh_works_as_it_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = 'pads = Constant<value_ints=[0,5,0,5]>()\ny = Pad<mode="reflect">(x, pads)'
    onnx.save(model_of(body, "float[N,L] x", "float[N,M] y"), tmp_path / "net.onnx")
    words = ["compile", f"{tmp_path}/net.onnx", "-o", f"{tmp_path}/plan", "--mesh", "data=2"]
    assert main(words) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "help:" in line]
    line = told.partition("yours: ")[2].partition(" (")[0]
    assert line.startswith("--size") and main([*words, *shlex.split(line)]) == 0
