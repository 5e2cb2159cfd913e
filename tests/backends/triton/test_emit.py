"""Triton sources: what they hold, what they refuse, and that they compile for real targets."""

import ast
import sys
from pathlib import Path

import pytest
import torch

from irc.backends.triton import compile_for, emit, load
from irc.backends.triton.functions import expression
from irc.dialects.task import KernelOp
from irc.errors import IrcError, IrcErrors
from irc.ops.functions import POINTWISE
from tests.backends import gpu_kernels as g

pytest.importorskip("triton")
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i8", "u8", "i1")


def test_names_from_outside_stay_in_comments() -> None:
    kernel = g.noted(g.softmax(), 'n7"""\nimport os  # \\')
    tree = ast.parse(emit(kernel))
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert names == {"_maximum", "kernel_softmax", "launch", "main"}
    imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    assert imported == ["os", "torch", "triton", "triton.language"]
    assert r'# fuses: "n1\"\n__global__ void bad() {} \\", "n2"' in emit(kernel)


def test_the_mapping_is_kept_where_it_fits() -> None:
    assert "# launched as: spatial(4) * repeat(4)" in emit(g.softmax(rows=13, tile=4))
    assert "GRID = (4,)" in emit(g.softmax(rows=13, tile=4))


def test_tf32_only_where_asked() -> None:
    assert 'input_precision="ieee"' in emit(g.matmul())
    assert 'input_precision="tf32"' in emit(g.matmul(tf32=1))


def test_everything_unsupported_is_reported_at_once() -> None:
    b = g.Builder("bad", (4,), 1)
    x, z, y = b.input(4, "i64"), b.input(4, "c64"), b.output(4, "i64")
    v = b.fn("exp", b.fn("atan2", b.load(x, (1,)), b.load(x, (1,))))
    b.load(z, (1,))
    b.store(v, y, (1,))
    with pytest.raises(IrcErrors) as caught:
        emit(b.kernel(sources=["n4"]))
    assert caught.value.codes == ("op-unsupported",)
    text = str(caught.value)
    for part in ("exp on i64", "atan2 on i64, i64", "buffer 1 of c64", "it comes from n4"):
        assert part in text


def test_a_missing_triton_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(IrcError) as caught:
        compile_for(g.softmax(), 80)
    assert caught.value.code == "compiler-missing"


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(IrcError, match="file-missing"):
        load(tmp_path / "none.py")


KERNELS = [
    g.softmax(), g.softmax(rows=3, columns=20000, name="softmax_wide"), g.layer_norm(dtype="bf16"),
    g.embedding(), g.transposed_copy(), g.causal_any(), g.whole_product(), g.huge(), g.empty(),
    g.empty(rows=3, columns=0, name="no_columns"), g.matmul(),
    g.matmul(dtype="bf16", transposed=True),
    g.matmul(m=3, n=5, k=0, name="no_products"), g.matmul(dtype="f64"), g.swapped_batches(),
    g.matmul(m=9, n=20, k=7, dtype="i32", epilogue=False),
    *[g.reductions(d) for d in ("f16", "i8", "u8", "i1")],
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.sym_name.data)
def test_kernel_compiles(kernel: KernelOp) -> None:
    report = compile_for(kernel, 90)
    assert report.registers > 0
    assert report.spill_bytes == 0
    assert report.shared_bytes <= 227 * 1024


@pytest.mark.parametrize("arch", [80, 100])
def test_other_targets(arch: int) -> None:
    assert compile_for(g.matmul(dtype="f16"), arch).spill_bytes == 0
    assert compile_for(g.layer_norm(), arch).spill_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_function_compiles(dtype: str) -> None:
    """One kernel of all functions of a dtype: names of libdevice, types of constants."""
    b = g.Builder(f"functions_{dtype}", (50,), 1, (64,))
    x, z, choice = b.input(50, dtype), b.input(50, dtype), b.input(50, "i1")
    left, right = b.load(x, (1,)), b.load(z, (1,))
    values = []
    for fn, row in POINTWISE.items():
        result = "i1" if row.result == "bool" else dtype
        if fn == "cast" or expression(fn, dtype, result) is None:
            continue
        operands = (
            [left, right][: row.arity] if fn != "where" else [b.load(choice, (1,)), left, right]
        )
        values.append(b.fn(fn, *operands))
    values += [b.fn("cast", left, dtype=to) for to in DTYPES]
    for value in values:
        b.store(value, b.output(50, value.type.dtype), (1,))
    assert compile_for(b.kernel(), 80).registers > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_a_gpt_compile(dtype: torch.dtype) -> None:
    for kernel in g.gpt_kernels(dtype).values():
        for arch in (80, 90):
            assert compile_for(kernel, arch).spill_bytes == 0
