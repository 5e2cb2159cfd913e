"""A pointwise function is one record in one file: adding one to a copy of irc is all there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from irc.ops.functions import POINTWISE

ROOT = Path(__file__).parents[2]
RECORD = """
def _erfcx(v: Operands) -> Expression:
    return (v.a * v.a).of("exp") * v.a.of("erfc")


FUNCTIONS = (
    *FUNCTIONS,
    Pointwise(
        "erfcx",
        flops=40,
        derivative=(lambda v: v.g * (2 * v.a * v.y - 2 / math.sqrt(math.pi)),),
        torch="special_erfcx",
        onnx="Erfcx",
        aten="special_erfcx",
        composed=_erfcx,
    ),
)
"""
PROGRAM = """
import torch

import irc
from irc.backends.cuda import functions as cuda
from irc.backends.triton import functions as triton
from irc.frontends.onnx.elementwise import CONVERTERS
from irc.frontends.torch.capture import capture
from irc.ops.derivatives_pointwise import DERIVATIVES
from irc.rewrite.operators import OPERATORS


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.special.erfcx(x)


for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
    x = torch.linspace(-2, 3, 77, dtype=dtype, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    assert not capture(Net(), (x.detach(),)).externs
    got, wanted = irc.compile(Net())(x), torch.special.erfcx(wide)
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
    mine, theirs = (torch.autograd.grad(y.sum(), of)[0] for y, of in ((got, x), (wanted, wide)))
    torch.testing.assert_close(mine.double(), theirs, rtol=3 * tolerance, atol=3 * tolerance)
for target, helper in ((cuda, "irc_erfcx"), (triton, "_erfcx_f32")):
    text = target.expression("erfcx", "f32", "f32")
    assert text == f"{helper}({{0}})", text
    assert helper in target.helpers_in(text)
assert "Erfcx" in CONVERTERS and "erfcx" in DERIVATIVES and "erfcx" in OPERATORS
print(irc.__file__)
"""


def test_one_record_is_a_function_everywhere(tmp_path: Path) -> None:
    assert "erfcx" not in POINTWISE, "choose another function"
    shutil.copytree(ROOT / "irc", tmp_path / "irc", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "irc/ops/functions/special.py").open("a") as file:
        file.write(RECORD)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
