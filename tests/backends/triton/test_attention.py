"""Attention as one streaming Triton kernel: equal to its meaning, and compiled for all targets."""

import math
from pathlib import Path

import pytest
import torch

from irc.backends.triton import compile_for, emit
from irc.kernels.gpu.attention import candidates
from irc.kernels.gpu.limits import GPUS, gpu
from irc.kernels.gpu.tiles import with_tile
from tests.backends import attention_kernels as attention
from tests.backends.attention_kernels import Attend
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")

CASES = attention.attend_cases()
KERNELS = {name: attention.kernel_of(case) for name, case in CASES.items()}
TOLERANCE = {"f32": 3e-6, "f16": 3e-3, "bf16": 2e-2}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    interpret(folder, [(k, attention.inputs_of(CASES[n], k)) for n, k in KERNELS.items()])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_attention_in_the_interpreter(results: Path, name: str) -> None:
    kernel, case = KERNELS[name], CASES[name]
    wanted = attention.meaning(kernel, attention.inputs_of(case, kernel))
    for output, right in zip(outputs_of(results, kernel), wanted, strict=True):
        tolerance = TOLERANCE[case.dtype]
        torch.testing.assert_close(output.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("line", ["x = tl.where((t[None, :] < 53)", "(t[None, :] <= s + start)"])
def test_a_dropped_mask_is_seen(tmp_path: Path, line: str) -> None:
    """The tests above can fail: without its tail or causal mask a kernel gives other numbers."""
    case = CASES["padded" if "start" in line else "attention"]
    kernel = attention.kernel_of(case)
    inputs = attention.inputs_of(case, kernel)
    text = emit(kernel)
    assert line in text
    whole = "x = tl.where((t[None, :] < 9999)" if "start" not in line else "(t[None, :] < 9999)"
    interpret(tmp_path, [(kernel, inputs)], texts={kernel.sym_name.data: text.replace(line, whole)})
    wanted = attention.meaning(kernel, inputs)[0]
    output = outputs_of(tmp_path, kernel)[0].double()
    assert not torch.allclose(output, wanted, rtol=1e-3, atol=1e-3)


def test_one_row_that_goes_on_compiles() -> None:
    case = Attend(rows=1, keys=1, groups=1, batch=1, goes_on=True, sums=True, mask="float")
    assert compile_for(attention.kernel_of(case), 90).spill_bytes == 0


@pytest.mark.parametrize("target", [80, 90, 100])
@pytest.mark.parametrize("name", ["causal", "decode", "masked", "long_f16", "ring_masked"])
def test_attention_compiles_without_spills(name: str, target: int) -> None:
    report = compile_for(KERNELS[name], target)
    assert report.spill_bytes == 0
    assert report.shared_bytes <= gpu(f"sm_{target}").block_bytes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("features", [32, 64, 80, 128])
def test_tiles_of_long_attention_do_not_spill(dtype: str, features: int) -> None:
    case = Attend(
        batch=1, rows=1000, keys=1000, depth=features, width=features, dtype=dtype, causal=True
    )
    for tile in candidates(1000, 1000, features, dtype)[:1]:
        kernel = with_tile(attention.kernel_of(case), tile.options())
        for target in GPUS.values():
            assert compile_for(kernel, target.arch).spill_bytes == 0


def test_scores_are_scaled_in_units_of_log_2() -> None:
    text = emit(attention.kernel_of(Attend(scale=0.5)))
    assert repr(0.5 * math.log2(math.e)) in text
