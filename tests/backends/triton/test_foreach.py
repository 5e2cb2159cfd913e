"""One launch for many tensors by Triton: in its interpreter, and compiled for each target."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import StringAttr

from irc.backends.triton import compile_for, emit
from irc.backends.triton.build import Variant, compile_module, import_kernel
from tests.backends.foreach_kernels import assert_right, inputs_of, steps, wanted
from tests.backends.triton.interpreting import interpret, outputs_of

pytest.importorskip("triton")
DTYPES = ("f32", "bf16", "f16", "f64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kernels, run once in one process; one of them with a planted bug."""
    folder = tmp_path_factory.mktemp("foreach")
    kernels = [steps(dtype=dtype, target="sm_90") for dtype in DTYPES]
    runs = [(kernel, inputs_of(parts)) for kernel, parts in kernels]
    wrong, parts = steps(dtype="f32", target="sm_90")
    wrong.properties["sym_name"] = StringAttr("wrong")
    text = emit(wrong)
    tail = "m0 = i0 < length"
    assert tail in text
    runs.append((wrong, inputs_of(parts)))
    interpret(folder, runs, {"wrong": text.replace(tail, "m0 = i0 < length - 1")})
    return folder


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_part_is_stepped(folder: Path, dtype: str) -> None:
    kernel, parts = steps(dtype=dtype, target="sm_90")
    assert_right(outputs_of(folder, kernel), wanted(parts, inputs_of(parts)), dtype)


def test_a_wrong_tail_is_seen(folder: Path) -> None:
    kernel, parts = steps(dtype="f32", target="sm_90")
    kernel.properties["sym_name"] = StringAttr("wrong")
    with pytest.raises(AssertionError):
        assert_right(outputs_of(folder, kernel), wanted(parts, inputs_of(parts)), "f32")


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_it_compiles_without_spills(arch: int) -> None:
    report = compile_for(steps((768, 768 * 3072, 1), "bf16", f"sm_{arch}")[0], arch)
    assert report.spill_bytes == 0 and 0 < report.registers <= 128


def test_whole_chunks_move_in_wide_loads(tmp_path: Path) -> None:
    """Four floats at once: what the alignment of the addresses is stated for."""
    path = tmp_path / "kernel.py"
    path.write_text(emit(steps((768, 768 * 3072), "f32", "sm_90")[0]))
    module = import_kernel(path)
    wide, narrow = (compile_module(module, 90, Variant(a)).asm["ptx"] for a in (16, 1))
    assert ".v4.b32" in wide
    assert ".v4.b32" not in narrow
