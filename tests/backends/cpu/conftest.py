"""Kernels run by the backend, and the same kernels in numpy."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import pytest
import torch

from irc.backends.cpu import Features, KernelCall, compile_segment
from irc.backends.cpu.features import AVX2, AVX512, BASELINE
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.interpret.kernel import run_body
from tests.backends.cpu.maker import Maker, strides_of

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip


def execute(
    kernel: KernelOp, inputs: Sequence[torch.Tensor], num_threads: int = 1,
    features: Features | None = None, fill: float = 7,
) -> list[torch.Tensor]:  # fmt: skip
    """Run a kernel by the backend on guarded outputs."""
    outputs = []
    for arg in kernel.args[len(inputs) :]:
        kind = arg.type
        assert isinstance(kind, BufferType)
        outputs.append(torch.full((kind.num_elements + 64,), fill).to(TORCH[kind.dtype]))
    call = KernelCall(0, tuple((i, 0) for i in range(len(kernel.args))))
    segment = compile_segment([kernel], [call], num_threads, features)
    segment.run_pointers([t.data_ptr() for t in (*inputs, *outputs)])
    for output in outputs:
        guard = torch.full((64,), fill).to(output.dtype)
        assert torch.equal(output[-64:], guard), "written past the end"
    return [output[:-64] for output in outputs]


def expected(kernel: KernelOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a kernel by the interpreter, floats in float64."""
    flat = [t.flatten() for t in inputs]
    wide = [t.double() if t.is_floating_point() else t for t in flat]
    outputs, counts = [], []
    for arg in kernel.args[len(inputs) :]:
        kind = arg.type
        assert isinstance(kind, BufferType)
        dtype = TORCH[kind.dtype]
        wider = torch.float64 if dtype.is_floating_point else dtype
        outputs.append(torch.full((kind.num_elements,), 7).to(wider))
        counts.append(torch.zeros(kind.num_elements, dtype=torch.int32))
    extents = kernel.space_extents[: kernel.num_parallel]
    tasks = torch.tensor(list(np.ndindex(*extents)), dtype=torch.int64)
    tasks = tasks.reshape(prod(extents), len(extents))
    run_body(kernel, tasks, [*wide, *outputs], counts, torch.float64)
    return outputs


FEATURES = {"avx512": AVX512, "avx2": AVX2, "baseline": BASELINE}


@pytest.fixture(params=["host", "avx2", "baseline"])
def features(request: pytest.FixtureRequest) -> Features | None:
    """The machine's own instructions, and what older machines have."""
    return FEATURES.get(request.param)


@pytest.fixture
def reference() -> Callable[..., list[torch.Tensor]]:
    return expected


@pytest.fixture
def make() -> type[Maker]:
    return Maker


@pytest.fixture
def run() -> Callable[..., list[torch.Tensor]]:
    return execute


@pytest.fixture
def contiguous() -> Callable[..., tuple[int, ...]]:
    return strides_of


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
