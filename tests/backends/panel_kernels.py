"""Kernels that read panels: products of integer weights, and grouped ones, as passes map them."""

from __future__ import annotations

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

import irc
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.frontends.torch.capture import capture
from irc.kernels.grouped import grouped_product
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.pipeline import Options, default_pipeline, run_passes


def quantised(
    bits: int, m: int, n: int, k: int, *, target: str = "sm_90", symmetric: bool = True
) -> KernelOp:
    """The product of a quantised layer."""
    torch.manual_seed(0)
    layer = irc.quantize(torch.nn.Sequential(torch.nn.Linear(k, n)), bits=bits, symmetric=symmetric)
    program = capture(layer.eval(), (torch.randn(m, k),), {}).program
    run_passes(program.module, default_pipeline(Options(backend="triton", target=target)))
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    (product,) = [kernel for kernel in kernels if kernel.template.data == "packed"]
    product.detach()
    return product


def grouped(
    rows: int, count: int, n: int, k: int, dtype: str = "f32", *, target: str = "sm_90"
) -> KernelOp:
    """Rows that each meet the matrix that an index names; indices outside give zeros."""
    kinds = [((rows, k), dtype), ((count, n, k), dtype), ((rows,), "i64")]
    block = Block(arg_types=[TensorType.of(shape, kind) for shape, kind in kinds])
    result = grouped_product(FlowBuilder(block), *block.args)
    module = ModuleOp([finish_function("forward", block, [result])])
    run_passes(module, [FusePass(target=target), MapTasksPass(target)])
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    (product,) = [kernel for kernel in kernels if kernel.template.data == "grouped"]
    product.detach()
    return product
