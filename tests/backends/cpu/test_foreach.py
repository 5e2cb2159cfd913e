"""One kernel for many tensors: every part, any number of threads, memory that begins anywhere."""

import ctypes

import pytest
import torch

from irc.backends.cpu import Features, KernelCall, compile_segment
from irc.backends.cpu.emit import emit, info_of
from irc.backends.cpu.features import AVX2, BASELINE, host
from irc.dialects.task import KernelOp
from irc.interpret.task import run_kernel
from irc.runtime.dtypes import dtypes
from tests.backends.foreach_kernels import assert_right, inputs_of, steps, wanted

GUARD = 16
"""Elements before and behind each output, that must stay as they are."""


def run(
    kernel: KernelOp,
    inputs: list[torch.Tensor],
    threads: int = 2,
    features: Features | None = None,
    start: int = GUARD,
) -> list[torch.Tensor]:
    """Run a kernel; its outputs begin ``start`` elements into their memory."""
    segment = compile_segment(
        [kernel],
        [KernelCall(0, _places(len(kernel.args)))],
        threads,
        features,
    )
    padded = [
        torch.full((arg.type.num_elements + start + GUARD,), 7.0, dtype=dtypes()[arg.type.dtype])
        for arg in kernel.args[len(inputs) :]
    ]
    ends = [len(one) - GUARD for one in padded]
    views = [one[start:end] for one, end in zip(padded, ends, strict=True)]
    pointers = [t.data_ptr() for t in (*inputs, *views)]
    table = (ctypes.c_void_p * len(pointers))(*pointers)
    segment.run(ctypes.addressof(table))
    for one, end in zip(padded, ends, strict=True):
        assert (one[:start] == 7).all() and (one[end:] == 7).all(), "a part was overrun"
    return views


def _places(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((base, 0) for base in range(count))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_part_is_stepped(dtype: str, threads: int) -> None:
    kernel, parts = steps(dtype=dtype)
    inputs = inputs_of(parts)
    assert_right(run(kernel, inputs, threads), wanted(parts, inputs), dtype)


@pytest.mark.parametrize("features", [AVX2, BASELINE])
def test_on_a_machine_with_less(features: Features) -> None:
    kernel, parts = steps((3, 70, 5000))
    inputs = inputs_of(parts)
    if set(features.flags.split(",")) - set(host().flags.split(",")) and features is not BASELINE:
        pytest.skip("this machine lacks them")
    assert_right(run(kernel, inputs, 1, features), wanted(parts, inputs), "f32")


def test_memory_may_begin_anywhere() -> None:
    kernel, parts = steps((4099, 1, 30))
    inputs = [torch.cat([x.new_zeros(1), x])[1:] for x in inputs_of(parts)]
    assert_right(run(kernel, inputs, start=GUARD + 1), wanted(parts, inputs), "f32")


def test_the_interpreter_reads_it_so() -> None:
    kernel, parts = steps((5, 1, 700))
    inputs = inputs_of(parts)
    outputs = [
        torch.zeros(arg.type.num_elements, dtype=torch.float64)
        for arg in kernel.args[len(inputs) :]
    ]
    run_kernel(kernel, inputs, outputs, torch.float64)
    for one, other in zip(outputs, wanted(parts, inputs), strict=True):
        assert torch.equal(one, other)


def test_small_parts_take_one_thread_and_long_ones_several() -> None:
    assert not info_of(emit(steps((3, 9))[0])).parallel
    assert info_of(emit(steps((3, 90_000))[0])).parallel


def test_a_state_is_written_in_place() -> None:
    """The memory of an output is that of its input, as a plan has it."""
    kernel, parts = steps((1000, 1, 5000))
    inputs = inputs_of(parts)
    exact = wanted(parts, inputs)
    places = [*range(len(inputs)), *(5 * part + i for part in range(3) for i in (0, 2, 3))]
    segment = compile_segment([kernel], [KernelCall(0, tuple((p, 0) for p in places))], 2)
    table = (ctypes.c_void_p * len(inputs))(*[t.data_ptr() for t in inputs])
    segment.run(ctypes.addressof(table))
    assert_right([inputs[p] for p in places[len(inputs) :]], exact, "f32")
