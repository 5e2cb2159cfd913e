"""Inputs that are the same number in every call, and what is said of sizes that must be numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import irc
from irc.cli import main
from irc.errors import IrcError
from irc.from_files import compile_file

BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[B,6] x, int64 rate, bool[1] wide) => (float[B,k] y)
  <int64[2] pads = {2, 2}> {
    high = Constant <value_int = 16000> ()
    fast = Equal (rate, high)
    y = If (fast) <
        then_branch = t () => (float[B,6] a) { a = Mul (x, x) },
        else_branch = e () => (float[B,6] b) { b = Neg (x) }
    >
}"""


def saved(tmp_path: Path, text: str) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


@pytest.mark.parametrize(("rate", "wanted"), [(16000, 9.0), (8000, -3.0)])
def test_a_value_decides_a_branch(tmp_path: Path, rate: int, wanted: float) -> None:
    path, plan = saved(tmp_path, BRANCHES), str(tmp_path / "plan")
    said = compile_file(path, plan, values={"rate": rate, "wide": 1})
    assert "kernels     1 for cpu" in said
    (output,) = irc.load(plan)(torch.full((2, 6), 3.0))
    np.testing.assert_array_equal(output.numpy(), np.full((2, 6), wanted, np.float32))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": 1}, "no input named 'rat'"),
        ({"x": 1}, "'x' is not one number"),
        ({"rate": 0.5}, "'rate' is int64, which 0.5 is not"),
    ],
)
def test_what_is_no_value_is_refused(
    tmp_path: Path, values: dict[str, float], message: str
) -> None:
    with pytest.raises(IrcError, match=message):
        compile_file(saved(tmp_path, BRANCHES), str(tmp_path / "plan"), values=values)


def test_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, BRANCHES)
    words = ["compile", path, "-o", str(tmp_path / "plan"), "--value", "wide=1"]
    assert main([*words, "--value", "rate=16000"]) == 0
    assert main([*words, "--force", "--value", "rate"]) == 2
    assert "write it as --value sr=16000" in capsys.readouterr().err


FRAMES = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,N] x) => (float[a,b,c,d] y) <int64 s = {160}, float[400] w = {WINDOW}> {
    y = STFT (x, s, w)
}""".replace("WINDOW", ",".join(["1"] * 400))


def test_signals_are_tried_with_more_samples(tmp_path: Path) -> None:
    """Frames of 400 samples are not found in the sizes that suit images."""
    said = compile_file(saved(tmp_path, FRAMES), str(tmp_path / "plan"))
    assert re.search(r"open sizes  N \d+\.\.", said)
    run = irc.load(str(tmp_path / "plan"))
    for samples in (1000, 9601):
        x = torch.randn(1, samples)
        (spectrum,) = run(x)
        wanted = torch.stft(x, 400, 160, window=torch.ones(400), center=False, return_complex=True)
        got = torch.view_as_complex(spectrum).transpose(1, 2)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
