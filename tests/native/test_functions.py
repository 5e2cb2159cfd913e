"""Functions that LLVM leaves to the C library where there is little to compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import irc
from irc.runtime import load
from irc.runtime.native import processor

DOUBLE = ("erf", "exp2", "expm1", "log1p", "log2", "log10")
FUNCTIONS = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tan")


@pytest.mark.skipif(processor.system() != "linux-x86_64", reason="programs are for x86-64")
def test_each_function_is_found(tmp_path: Path) -> None:
    class All(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [getattr(torch, name)(x) for name in FUNCTIONS]

    for number, shape in enumerate(((1,), (3,), (3, 4, 5))):
        x = torch.rand(shape)
        out = tmp_path / str(number)
        irc.export_plan(All(), (x,), out=out)
        for name, output in zip(FUNCTIONS, load(out).run([x.numpy()]), strict=True):
            wanted = getattr(torch, name)(x).numpy()
            np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.skipif(processor.system() != "linux-x86_64", reason="programs are for x86-64")
def test_each_function_of_float64_is_found(tmp_path: Path) -> None:
    """Those that kernels compute themselves in float32 alone, and erfc, which gelu is of."""

    class All(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [*(getattr(torch, name)(x) for name in DOUBLE), torch.nn.functional.gelu(x)]

    x = torch.rand(3, 5, dtype=torch.float64)
    irc.export_plan(All(), (x,), out=tmp_path / "plan")
    results = load(tmp_path / "plan").run([x.numpy()])
    for name, result, wanted in zip((*DOUBLE, "gelu"), results, All()(x), strict=True):
        np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-14, err_msg=name)
