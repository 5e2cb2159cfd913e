"""Every CUDA kernel of the zoo compiles: a seeded share here, all of them in the slow run."""

import json
import shutil
from pathlib import Path

import pytest

from irc.backends.cuda import emit_plan_sources
from irc.backends.cuda.report import by_function
from irc.backends.cuda.report import main as report
from tests.backends import gpu_kernels as g
from tests.backends.cuda.zoo import compile_all, summary
from tests.benchmarks.models import lacks
from tests.gpu.programs import Case, cases

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
SPILLS = {
    "zoo/segformer training f32 sm_90 k82_matmul_add": 8,
    "gpt2 forward f32 sm_90 k2_attention": 8,
    "gpt training f32 sm_90 k2_attention": 24,
    **{
        f"zoo/{model} training {dtype} sm_80 {kernel}_matmul_mul_gelu_tanh_add": 32
        for model, kernel in (("gemma", "k17"), ("gemma3", "k23"))
        for dtype in ("f16", "bf16")
    },
}
"""Bytes of registers that kernels of the zoo keep in memory: all that do (nvcc 13.0)."""


def test_a_log_is_parted_by_kernel() -> None:
    log = (
        "ptxas info: Compiling entry function 'a' for 'sm_90a'\nUsed 10 registers\n"
        "ptxas info: Compiling entry function 'b' for 'sm_90a'\nUsed 20 registers\n"
    )
    assert [name for name, text in by_function(log).items() if "20 registers" in text] == ["b"]


@needs_nvcc
def test_a_share_of_the_kernels_of_a_model_compiles() -> None:
    chosen = [Case("tiny", "forward", "f32"), Case("gpt", "forward", "bf16")]
    rows = list(compile_all(chosen, [90], share=0.5, seed=3))
    line, ok = summary(rows)
    assert ok and sum(len(row.compiled) for row in rows) > 1, line
    assert not any(r.spill_bytes for row in rows for r in row.compiled.values()), line


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(lacks("minilm") is not None, reason="needs the models of tests/models.txt")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("arch", [80, 90])
def test_every_kernel_of_the_zoo_compiles(dtype: str, arch: int) -> None:
    rows = list(compile_all(cases(dtypes=[dtype]), [arch]))
    line, ok = summary(rows)
    assert ok, "\n".join([*map(str, rows), line])
    spilled = {
        f"{row.case} sm_{row.arch} {name}": report.spill_bytes
        for row in rows
        for name, report in row.compiled.items()
        if report.spill_bytes
    }
    assert all(size <= SPILLS.get(name, 0) for name, size in spilled.items()), spilled


@needs_nvcc
def test_the_report_stays_with_the_sources(tmp_path: Path) -> None:
    kernels = [g.matmul(70, 90, 200, dtype="f16", transposed=True, split_k=2, arch=90)]
    for name, text in emit_plan_sources(kernels).items():
        (tmp_path / name).write_text(text)
    assert report([str(tmp_path), "--arch", "90"]) == 0
    kernel_reports = json.loads((tmp_path / "report-sm_90.json").read_text())
    assert set(kernel_reports) == {"kernel_matmul", "kernel_matmul_sum"}
    assert kernel_reports["kernel_matmul"]["shared_bytes"] > 48 * 1024
    assert all(one["registers"] > 0 and one["spill_bytes"] == 0 for one in kernel_reports.values())


def test_a_folder_without_sources_is_a_user_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([str(tmp_path)]) == 2
    assert "file-missing" in capsys.readouterr().err
