"""Integer weights and grouped products as Triton kernels: equal to their meaning."""

from pathlib import Path

import pytest
import torch

import irc
from irc.backends.triton import compile_for, emit
from irc.dialects.task import KernelOp
from irc.frontends.torch.capture import capture
from irc.kernels.form import integer_bound, read
from irc.pipeline import Options, default_pipeline, run_passes
from tests.backends import gpu_kernels as g
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")

SHAPES = {
    "token": (4, 1, 70, 192),
    "token_8": (8, 1, 33, 128),
    "few": (4, 5, 48, 320),
    "prompt": (8, 70, 70, 64),
}
"""Bits, rows, columns and products."""


def quantised(bits: int, m: int, n: int, k: int, **options: object) -> KernelOp:
    """The product of a quantised layer, as the pipeline maps it."""
    torch.manual_seed(0)
    layer = irc.quantize(torch.nn.Sequential(torch.nn.Linear(k, n)), bits=bits, **options)
    program = capture(layer.eval(), (torch.randn(m, k),), {}).program
    run_passes(program.module, default_pipeline(Options(backend="triton", target="sm_90")))
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    (found,) = [kernel for kernel in kernels if kernel.template.data == "packed"]
    return found


def checked(tmp_path: Path, kernels: list[KernelOp], **texts: str) -> None:
    runs = []
    for number, kernel in enumerate(kernels):
        kernel.detach()
        kernel.properties["sym_name"] = type(kernel.sym_name)(f"packed{number}")
        form = read(kernel)
        inputs = g.inputs_for(kernel, lambda i, form=form: integer_bound(form, i))
        # Words of any bits, the sign's as well.
        signed = [x * 40_503_011 - 7 if x.dtype == torch.int32 else x for x in inputs]
        runs.append((kernel, signed))
    interpret(tmp_path, runs, texts=texts)
    for kernel, inputs in runs:
        (wanted,) = g.meaning(kernel, inputs)
        (found,) = outputs_of(tmp_path, kernel)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


def test_weights_of_integers_in_the_interpreter(tmp_path: Path) -> None:
    kernels = [quantised(*shape, symmetric=name != "few") for name, shape in SHAPES.items()]
    checked(tmp_path, kernels)


@pytest.mark.parametrize("line", ["& w7", "mn = jn < 80"])
def test_a_planted_bug_is_seen(tmp_path: Path, line: str) -> None:
    kernel = quantised(*SHAPES["token"])
    kernel.properties["sym_name"] = type(kernel.sym_name)("packed0")
    text = emit(kernel)
    if line not in text:
        pytest.skip("no tail with this tile")
    with pytest.raises(AssertionError):
        checked(
            tmp_path, [kernel], packed0=text.replace(line, "& 7" if "w7" in line else "mn = jn < 1")
        )


@pytest.mark.parametrize("target", [80, 90, 100])
def test_a_token_compiles_without_spills(target: int) -> None:
    assert compile_for(quantised(4, 1, 512, 1024), target).spill_bytes == 0
