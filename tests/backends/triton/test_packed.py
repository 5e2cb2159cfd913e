"""Integer weights and grouped products as Triton kernels: equal to their meaning."""

from pathlib import Path

import pytest
import torch

from irc.backends.triton import compile_for, emit
from irc.dialects.task import KernelOp
from irc.kernels.form import integer_bound, read
from tests.backends import gpu_kernels as g
from tests.backends.panel_kernels import grouped, quantised
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")

SHAPES = {
    "token": (4, 1, 70, 192),
    "token_8": (8, 1, 33, 128),
    "few": (4, 5, 48, 320),
    "prompt": (8, 70, 70, 64),
}
"""Bits, rows, columns and products."""


def checked(tmp_path: Path, kernels: list[KernelOp], **texts: str) -> None:
    runs = []
    for number, kernel in enumerate(kernels):
        kernel.properties["sym_name"] = type(kernel.sym_name)(f"packed{number}")
        form = read(kernel)
        inputs = g.inputs_for(kernel, lambda i, form=form: integer_bound(form, i))
        # Words of any bits, the sign's as well.
        signed = [x * 40_503_011 - 7 if x.dtype == torch.int32 else x for x in inputs]
        # Some rows name no matrix.
        signed = [x - 1 if x.dtype == torch.int64 else x for x in signed]
        runs.append((kernel, signed))
    interpret(tmp_path, runs, texts=texts)
    for kernel, inputs in runs:
        (wanted,) = g.meaning(kernel, inputs)
        (output,) = outputs_of(tmp_path, kernel)
        bound = 1e-2 if output.dtype == torch.float16 else 1e-3
        torch.testing.assert_close(output.double(), wanted, rtol=bound / 10, atol=bound)


def test_weights_of_integers_in_the_interpreter(tmp_path: Path) -> None:
    kernels = [quantised(*shape, symmetric=name != "few") for name, shape in SHAPES.items()]
    checked(tmp_path, kernels)


def test_planted_bugs_are_seen(tmp_path: Path) -> None:
    """The mask of a nibble, and the test of a row's matrix."""
    bugs = [
        (quantised(*SHAPES["token"]), "& w7", "& 7"),
        (grouped(9, 3, 20, 40), "a = tl.where(here, ", "a = tl.where(here | True, "),
    ]
    for number, (kernel, line, other) in enumerate(bugs):
        text = emit(kernel)
        assert line in text
        own = kernel.sym_name.data
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError):
            checked(folder, [kernel], packed0=text.replace(line, other).replace(own, "packed0"))


GROUPS = {"few": (9, 3, 20, 40), "one row": (1, 4, 70, 33), "many": (150, 5, 130, 64)}


@pytest.mark.parametrize("name", GROUPS)
def test_grouped_products_in_the_interpreter(tmp_path: Path, name: str) -> None:
    checked(tmp_path, [grouped(*GROUPS[name]), grouped(*GROUPS[name], dtype="f16")])


@pytest.mark.parametrize("target", [80, 90, 100])
def test_a_token_compiles_without_spills(target: int) -> None:
    assert compile_for(quantised(4, 1, 512, 1024), target).spill_bytes == 0
