"""CUDA sources: what they hold, what they refuse, and that nvcc takes them."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from irc.backends.cuda import compile_for, emit, load
from irc.dialects.mapping_attr import parse_mapping, verify_coverage
from irc.dialects.task import KernelOp
from irc.errors import IrcError, IrcErrors
from tests.backends import gpu_kernels as g

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def test_names_from_outside_stay_in_comments() -> None:
    text = emit(g.noted(g.softmax(), "n7\nint stolen; // \\"))
    code = "\n".join(line.split("//")[0] for line in text.splitlines())
    assert "bad" in text and "bad" not in code
    assert "stolen" in text and "stolen" not in code
    assert not any(line.endswith("\\") for line in text.splitlines() if "//" in line)


KERNELS = [
    g.softmax(), g.softmax(columns=9, rows=70), g.softmax(columns=20000), g.column_sums(),
    g.flat_add(), g.transposed_copy(), g.iota(), g.matmul(),
    g.matmul(m=300, n=300, block_m=128, block_n=128),
    g.matmul(dtype="f16"), g.matmul(m=300, n=300, dtype="bf16", block_m=128, block_n=128),
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.sym_name.data)
def test_the_refined_mapping_covers_the_tasks_and_fills_the_launch(kernel: KernelOp) -> None:
    text = emit(kernel)
    mapping = parse_mapping(re.search(r"// refined to threads: (.*)", text)[1])
    blocks, threads = map(int, re.search(r"IRC_LAUNCH\(kernel_\w+, (\d+), (\d+),", text).groups())
    assert mapping.num_workers == blocks * threads
    verify_coverage(mapping)


def test_the_contraction_is_mapped_as_hidet_maps_it() -> None:
    text = emit(g.matmul(m=300, n=300, block_m=128, block_n=128))
    assert "spatial(3, 3) * spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)" in text
    assert "sum[8][8]" in text


def test_vectors_only_where_everything_is_aligned() -> None:
    assert "Vector<float, 4>" in emit(g.flat_add(size=1000))
    assert "Vector<__half, 8>" in emit(g.flat_add(size=1600, dtype="f16"))
    assert "Vector" not in emit(g.gelu_bias(columns=33))


def test_everything_unsupported_is_reported_at_once() -> None:
    b = g.Builder("bad", (4,), 1)
    x, y = b.input(4, "i64"), b.output(4, "i64")
    b.store(b.fn("exp", b.fn("atan2", b.load(x, (1,)), b.load(x, (1,)))), y, (1,))
    with pytest.raises(IrcErrors) as caught:
        emit(b.kernel())
    assert caught.value.codes == ("op-unsupported",)
    assert "exp on i64" in str(caught.value) and "atan2 on i64, i64" in str(caught.value)


def test_a_missing_compiler_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(IrcError) as caught:
        compile_for(g.softmax(), 90)
    assert caught.value.code == "compiler-missing"


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="file-missing"):
        load(tmp_path / "none.cu")


@needs_nvcc
@pytest.mark.parametrize(
    ("kernel", "arch"),
    [
        (g.layer_norm(dtype="bf16"), 90), (g.huge(), 90), (g.empty(), 90), (g.causal_any(), 80),
        (g.matmul(m=300, n=300, k=64, block_m=128, block_n=128), 90),
        (g.matmul(m=300, n=300, k=64, dtype="bf16", block_m=128, block_n=128, transposed=True), 90),
        (g.matmul(m=300, n=300, k=64, dtype="f16", block_m=128, block_n=128), 80),
    ],
    ids=lambda v: v.sym_name.data if isinstance(v, KernelOp) else str(v),
)  # fmt: skip
def test_kernel_compiles(kernel: KernelOp, arch: int) -> None:
    report = compile_for(kernel, arch)
    assert report.spill_bytes == 0
    # What a block may ask for.
    assert report.shared_bytes <= (227 if arch == 90 else 163) * 1024


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_a_gpt_compile(dtype: torch.dtype) -> None:
    for kernel in g.gpt_kernels(dtype).values():
        assert compile_for(kernel, 90).spill_bytes == 0
