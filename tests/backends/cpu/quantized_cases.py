"""Functions of one packed product, and how their kernels are held against it."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.backends.cpu import emit, info_of
from irc.backends.cpu.features import host
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.launches import LaunchOp
from irc.dialects.packed_products import PackedContractOp
from irc.dialects.task import KernelOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.levels import execute as interpret
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.runtime.dtypes import dtypes


def random(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    kind = dtypes()[dtype]
    if kind.is_floating_point:
        return torch.randn(shape).to(kind)
    info = torch.iinfo(kind)
    return torch.randint(info.min, info.max + 1, shape, dtype=torch.int64).to(kind)


class Case:
    """A function of one packed product; the first kernel of template packed is run."""

    def __init__(self, *shapes: tuple[tuple[int, ...], str]) -> None:
        self.shapes = shapes
        self.block = Block(arg_types=[TensorType.of(s, d) for s, d in shapes])
        self.b = FlowBuilder(self.block)
        self.operands = [random(s, d) for s, d in shapes]

    def product(self, count: int, **attrs: Any) -> SSAValue:
        return self.b.op(PackedContractOp, list(self.block.args[:count]), **attrs)

    def kernel(self, value: SSAValue) -> tuple[KernelOp, list[torch.Tensor], torch.Tensor]:
        """Return the kernel of ``value``, what it is given, and what it is to give."""
        module = ModuleOp([finish_function("forward", self.block, [value])])
        module.verify()
        wide = [
            x.double() if x.dtype in (torch.float32, torch.bfloat16) else x for x in self.operands
        ]
        (expected,) = interpret(module, wide)
        for each in (FusePass(), MapTasksPass()):
            each.apply(context(), module)
        module.verify()
        (mapped,) = interpret(module, wide)
        kernels = [op for op in module.ops if isinstance(op, KernelOp)]
        (kernel,) = [op for op in kernels if op.template.data == "packed"]
        assert len(kernels) == 1, "what follows is part of the kernel"
        (launch,) = (op for op in module.walk() if isinstance(op, LaunchOp))
        func = launch.parent_op()
        assert func is not None
        places = [func.regions[0].block.args.index(value) for value in launch.inputs]
        assert float((mapped - expected).abs().max()) <= tolerance(expected)
        return kernel, [self.operands[i] for i in places], expected

    def check(self, run: Any, features: Any, value: SSAValue, form: str, threads: int = 1) -> None:
        kernel, inputs, expected = self.kernel(value)
        tiled = form == "dot" and (features or host()).tiles
        forms = (form, "tiles") if tiled else (form,)
        assert info_of(emit(kernel, features)).template in [f"packed {each}" for each in forms]
        (output,) = run(kernel, inputs, threads, features)
        difference = (output.reshape(expected.shape) - expected).abs().max()
        assert float(difference) <= tolerance(expected)


def tolerance(expected: torch.Tensor) -> float:
    """Integers are exact."""
    return 4e-6 * float(expected.abs().max()) if expected.is_floating_point() else 0.0
