"""Kernels built in Python, run by the backend, and the same kernels in numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from xdsl.ir import Block, SSAValue

from irc.backends.cpu import Features, KernelCall, compile_segment
from irc.backends.cpu.features import AVX2, AVX512, BASELINE
from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.task import (
    BufferType,
    IndexOp,
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
    ValueType,
)
from irc.interpret.kernel import run_body

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip
BOOLS = ("eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf")


@dataclass
class Maker:
    """Writes one kernel's body; buffers are listed first, outputs last."""

    space: tuple[int, ...]
    parallel: int
    inputs: Sequence[tuple[int, str]]
    outputs: Sequence[tuple[int, str]]
    template: str = "rows"
    mapping: TaskMapping | None = None
    block: Block = field(init=False)

    def __post_init__(self) -> None:
        kinds = [BufferType.of(*buffer) for buffer in (*self.inputs, *self.outputs)]
        self.block = Block(arg_types=kinds)

    def _add(
        self, cls: Any, inputs: Sequence[SSAValue], dtype: str, full: bool, **attrs: Any
    ) -> SSAValue:
        op = cls.make(inputs, [ValueType.of(dtype, full=full)], **attrs)
        self.block.add_op(op)
        return op.outputs[0]

    def load(
        self, buffer: int, strides: Sequence[int], offset: int = 0, index: Sequence[SSAValue] = (),
        index_strides: Sequence[int] | None = None,
    ) -> SSAValue:  # fmt: skip
        arg = self.block.args[buffer]
        full = any(strides[self.parallel :]) or any(v.type.is_full for v in index)  # type: ignore[attr-defined]
        full = full or len(self.space) == self.parallel
        return self._add(
            LoadOp, [arg, *index], arg.type.dtype, full, offset=offset, strides=tuple(strides),  # type: ignore[attr-defined]
            index_strides=None if index_strides is None else tuple(index_strides),
        )  # fmt: skip

    def constant(self, value: float, dtype: str = "f32") -> SSAValue:
        return self._add(KernelConstantOp, [], dtype, False, value=(value,))

    def index(self, dim: int) -> SSAValue:
        return self._add(IndexOp, [], "i64", True, dim=dim)

    def fn(self, name: str, *args: SSAValue, dtype: str = "") -> SSAValue:
        kinds = [v.type for v in args]
        if name in BOOLS or name.startswith("logical"):
            dtype = "i1"
        same = kinds[-1].dtype  # type: ignore[attr-defined]
        full = any(kind.is_full for kind in kinds)  # type: ignore[attr-defined]
        return self._add(KernelPointwiseOp, args, dtype or same, full, fn=name)

    def reduce(self, name: str, value: SSAValue, dtype: str = "") -> SSAValue:
        return self._add(KernelReduceOp, [value], dtype or value.type.dtype, False, fn=name)  # type: ignore[attr-defined]

    def contract(self, a: SSAValue, b: SSAValue, dtype: str = "") -> SSAValue:
        return self._add(KernelContractOp, [a, b], dtype or a.type.dtype, False)  # type: ignore[attr-defined]

    def store(self, value: SSAValue, buffer: int, strides: Sequence[int], offset: int = 0) -> None:
        arg = self.block.args[buffer + len(self.inputs)]
        self.block.add_op(StoreOp.make([value, arg], [], offset=offset, strides=tuple(strides)))

    def kernel(self, name: str = "k") -> KernelOp:
        tasks = self.space[: self.parallel]
        mapping = self.mapping or (
            spatial(*tasks) if tasks and prod(tasks) else repeat(*([1] * len(tasks)))
        )
        op = KernelOp.make(
            name, self.block, template=self.template, space=self.space, parallel=self.parallel,
            num_inputs=len(self.inputs), mapping=mapping,
        )  # fmt: skip
        op.verify()
        return op


def strides_of(shape: Sequence[int], dims: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Contiguous strides of a tensor whose dims are the given dims of the space; others 0."""
    strides, step = [0] * ndim, 1
    for extent, dim in zip(reversed(shape), reversed(dims), strict=True):
        strides[dim] = step
        step *= extent
    return tuple(strides)


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
