"""A meaning that emits: programs as flow modules, through the builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects import flow, indexing, literals, scans, searches, windows
from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function
from irc.dialects.flow import tensor
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.program import Program as FlowProgram

if TYPE_CHECKING:
    from tests.fuzz.program import Program


class FlowMeaning:
    """Appends flow ops; values are SSA values."""

    def __init__(self, block: Block) -> None:
        self.b = FlowBuilder(block)

    def shape(self, x: SSAValue) -> tuple[int, ...]:
        return tensor(x).static_shape()

    def dtype(self, x: SSAValue) -> str:
        return tensor(x).dtype

    def fn(self, name: str, *xs: SSAValue) -> SSAValue:
        return self.b.pointwise(name, *xs)

    def cast(self, x: SSAValue, dtype: str) -> SSAValue:
        return self.b.cast(x, dtype)

    def constant(self, value: float, dtype: str) -> SSAValue:
        return self.b.scalar(value, dtype)

    def iota(self, shape: Sequence[int], dim: int) -> SSAValue:
        return self.b.op(literals.IotaOp, [], result=TensorType.of(shape, "i64"), dim=dim)

    def reduce(self, fn: str, x: SSAValue, dims: Sequence[int], keep: bool = True) -> SSAValue:
        return self.b.reduce(fn, x, dims, keep_dims=keep)

    def arg_reduce(self, fn: str, x: SSAValue, dim: int) -> SSAValue:
        return self.b.op(searches.ArgReduceOp, [x], fn=fn, dim=dim, keep_dims=False)

    def cumulative(self, fn: str, x: SSAValue, dim: int) -> SSAValue:
        attrs = {"exclusive": False, "reverse": False}
        return self.b.op(scans.CumulativeOp, [x], fn=fn, dim=dim, **attrs)

    def contract(self, spec: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.b.op(flow.ContractOp, [a, b], spec=spec)

    def reshape(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        return self.b.reshape(x, shape)

    def transpose(self, x: SSAValue, perm: Sequence[int]) -> SSAValue:
        return self.b.op(flow.TransposeOp, [x], perm=tuple(perm))

    def broadcast(self, x: SSAValue, shape: Sequence[int]) -> SSAValue:
        return self.b.broadcast(x, shape)

    def slice(
        self, x: SSAValue, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
    ) -> SSAValue:
        bounds = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
        return self.b.op(flow.SliceOp, [x], **bounds)

    def concat(self, xs: Sequence[SSAValue], dim: int) -> SSAValue:
        return self.b.op(flow.ConcatOp, list(xs), dim=dim)

    def pad(self, x: SSAValue, low: Sequence[int], high: Sequence[int], value: float) -> SSAValue:
        return self.b.op(flow.PadOp, [x], low=tuple(low), high=tuple(high), value=float(value))

    def take(self, table: SSAValue, index: SSAValue, dim: int) -> SSAValue:
        return self.b.op(indexing.TakeOp, [table, index], dim=dim)

    def gather(self, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
        return self.b.op(indexing.GatherOp, [x, index], dim=dim)

    def scatter(
        self, x: SSAValue, index: SSAValue, source: SSAValue, dim: int, fn: str
    ) -> SSAValue:
        return self.b.op(indexing.ScatterOp, [x, index, source], dim=dim, fn=fn)

    def attention(
        self, q: SSAValue, k: SSAValue, v: SSAValue, mask: Any, causal: bool, scale: float
    ) -> SSAValue:
        inputs = [q, k, v, *([] if mask is None else [mask])]
        return self.b.op(AttentionOp, inputs, is_causal=causal, scale=float(scale))

    def convolution(
        self, x: SSAValue, w: SSAValue, bias: Any, stride: int, pad: int, dilation: int, groups: int
    ) -> SSAValue:
        dims = len(self.shape(x)) - 2
        inputs = [x, w, *([] if bias is None else [bias])]
        return self.b.op(
            windows.ConvolutionOp, inputs, strides=(stride,) * dims, low=(pad,) * dims,
            high=(pad,) * dims, dilations=(dilation,) * dims, groups=groups,
        )  # fmt: skip

    def pool(self, fn: str, x: SSAValue, window: int, stride: int, pad: int) -> SSAValue:
        shape = self.shape(x)
        sizes = [(n + 2 * pad - window) // stride + 1 for n in shape[2:]]
        return self.b.op(
            windows.PoolOp, [x], result=TensorType.of((*shape[:2], *sizes), self.dtype(x)), fn=fn,
            window=(window,) * 2, strides=(stride,) * 2, low=(pad,) * 2, high=(pad,) * 2,
            dilations=(1, 1), count_padding=True,
        )  # fmt: skip


def flow_program(program: Program) -> FlowProgram:
    """Return a program as a flow module whose arguments are all inputs."""
    kinds = [TensorType.of(x.shape, x.dtype) for x in program.inputs]
    block = Block(arg_types=kinds)
    names = [x.name for x in program.inputs]
    values = program.walk(FlowMeaning(block), dict(zip(names, block.args, strict=True)))
    results = [values[name] for name in program.outputs]
    func = finish_function(
        "forward", block, results,
        arg_attrs=[argument_attrs("input", name) for name in names],
        res_attrs=[argument_attrs("output", f"out{i}") for i in range(len(results))],
    )  # fmt: skip
    module = ModuleOp([func])
    module.verify()
    return FlowProgram(module, {}, f"fuzz_{program.seed}")
