"""One launch for many tensors in CUDA: on the host shim, compiled, and through the driver."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from irc.backends.cuda import compile_for, emit, machine
from irc.backends.cuda.launch_table import read_table
from irc.backends.cuda.segment import CudaSegment, load_kernels
from irc.dialects.task import LoadOp
from irc.runtime.dtypes import dtypes
from irc.runtime.segments import SegmentCall
from tests.backends.cuda.host import HostError, run_on_host
from tests.backends.cuda.host_machine import HostMachine
from tests.backends.foreach_kernels import assert_right, inputs_of, steps, wanted

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_every_part_is_stepped(dtype: str) -> None:
    kernel, parts = steps(dtype=dtype, target="sm_90")
    inputs = inputs_of(parts)
    assert_right(run_on_host(kernel, inputs), wanted(parts, inputs), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_parts_of_one_number_each(dtype: str) -> None:
    kernel, parts = steps((1, 1, 1), dtype, "sm_90")
    assert not any(any(op.strides) for op in kernel.body.ops if isinstance(op, LoadOp))
    inputs = inputs_of(parts)
    assert_right(run_on_host(kernel, inputs), wanted(parts, inputs), dtype)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("i0 < stop", "i0 <= stop"),
        (" <= blockIdx.x) part", " < blockIdx.x) part"),
        ("const long long i0 = start / 4 + i", "const long long i0 = i"),
    ],
    ids=["past the end", "wrong part", "first chunk again"],
)
def test_a_planted_bug_is_seen(text: str, wrong: str) -> None:
    kernel, parts = steps((5, 1, 4099), target="sm_90")
    inputs = inputs_of(parts)

    def plant(source: str) -> str:
        assert text in source
        return source.replace(text, wrong)

    exact = wanted(parts, inputs)
    with pytest.raises((AssertionError, HostError)):
        assert_right(run_on_host(kernel, inputs, plant), exact, "f32")


def test_the_driver_is_given_a_table(tmp_path: Path) -> None:
    """Buffers that begin anywhere are not copied; the same addresses take the same table."""
    kernel, parts = steps((5, 1, 4099), target="sm_90")
    inputs = inputs_of(parts)
    with machine.use(HostMachine(tmp_path)) as here:
        (loaded,) = load_kernels([emit(kernel)], here)
        count = len(kernel.args)
        call = SegmentCall(0, tuple((i, 0) for i in range(count)))
        segment = CudaSegment([loaded], [call], here)
        outputs = [
            torch.full((arg.type.num_elements + 1,), torch.nan, dtype=dtypes()[arg.type.dtype])[1:]
            for arg in kernel.args[len(inputs) :]
        ]
        pointers = [x.data_ptr() for x in (*inputs, *outputs)]
        table = (ctypes.c_int64 * count)(*pointers)
        for _ in range(2):
            segment.run(ctypes.addressof(table))
        assert not any(note.startswith("copy") for note in here.notes)
        (bound,) = segment._calls  # pyright: ignore[reportPrivateUsage]
        assert bound._tables is not None  # pyright: ignore[reportPrivateUsage]
        assert len(bound._tables._known) == 1  # pyright: ignore[reportPrivateUsage]
    assert_right(outputs, wanted(parts, inputs), "f32")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(("dtype", "arch"), [("bf16", 80), ("f32", 80), ("bf16", 90), ("f32", 90)])
def test_it_compiles_without_spills(dtype: str, arch: int) -> None:
    report = compile_for(steps((768, 768 * 3072, 1), dtype, f"sm_{arch}")[0], arch)
    assert report.spill_bytes == 0 and 0 < report.registers <= 128


def test_the_launch_table_says_what_the_device_is_told() -> None:
    kernel, _ = steps((5, 1, 4099), target="sm_90")
    table = read_table(emit(kernel))
    assert table.head == (0, 1, 2, 7, 5, 1, 4099)
    assert [launch.arguments for launch in table.launches] == [("addresses",)]
    assert table.launches[0].blocks == 7
