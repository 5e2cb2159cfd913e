"""Kernels built in Python: what tests of every backend and `python -m tests.gpu` make them with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from xdsl.ir import Block, SSAValue

from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.task import (
    IndexOp,
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
)
from irc.dialects.task_types import BufferType, ValueType

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
        index_strides: Sequence[int] | None = None, index_counts: Sequence[int] | None = None,
    ) -> SSAValue:  # fmt: skip
        arg = self.block.args[buffer]
        full = any(strides[self.parallel :]) or any(v.type.is_full for v in index)  # type: ignore[attr-defined]
        full = full or len(self.space) == self.parallel
        return self._add(
            LoadOp, [arg, *index], arg.type.dtype, full, offset=offset, strides=tuple(strides),  # type: ignore[attr-defined]
            index_strides=None if index_strides is None else tuple(index_strides),
            index_counts=None if index_counts is None else tuple(index_counts),
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
