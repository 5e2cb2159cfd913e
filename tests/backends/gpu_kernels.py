"""Kernels written by hand, and what they mean: each point of the space in torch, in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.attributes import to_python
from irc.dialects.mapping import compose, repeat, spatial
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
from irc.ops.functions import POINTWISE
from irc.runtime.dtypes import dtypes
from irc.runtime.library import run


class Builder:
    """Builds one kernel; all inputs come before all outputs."""

    def __init__(
        self,
        name: str,
        space: Sequence[int],
        parallel: int,
        tile: Sequence[int] = (),
        template: str = "rows",
        **options: int,
    ) -> None:
        self.name, self.space, self.parallel = name, tuple(space), parallel
        self.tile = tuple(tile) or (1,) * parallel
        self.template, self.options = template, options
        self.block = Block()
        self.num_inputs = 0

    def input(self, size: int, dtype: str) -> SSAValue:
        self.num_inputs += 1
        return self.output(size, dtype)

    def output(self, size: int, dtype: str) -> SSAValue:
        return self.block.insert_arg(BufferType.of(size, dtype), len(self.block.args))

    def load(
        self, buffer: SSAValue, strides: Sequence[int], *indices: SSAValue, offset: int = 0,
        index_strides: Sequence[int] | None = None, index_counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> SSAValue:  # fmt: skip
        full = self._spans(strides) or any(v.type.is_full for v in indices)
        return self._add(
            LoadOp, [buffer, *indices], dtype or buffer.type.dtype, full, offset=offset,
            strides=tuple(strides), index_strides=tuple(index_strides) if index_strides else None,
            index_counts=tuple(index_counts) if index_counts else None,
        )  # fmt: skip

    def store(
        self, value: SSAValue, buffer: SSAValue, strides: Sequence[int], offset: int = 0
    ) -> None:
        op = StoreOp.make([value, buffer], [], offset=offset, strides=tuple(strides))
        self.block.add_op(op)

    def constant(self, value: float, dtype: str) -> SSAValue:
        number = float(value) if dtype in ("f64", "f32", "f16", "bf16") else int(value)
        return self._add(KernelConstantOp, [], dtype, False, value=(number,))

    def index(self, dim: int) -> SSAValue:
        return self._add(IndexOp, [], "i64", dim >= self.parallel, dim=dim)

    def fn(self, fn: str, *operands: SSAValue, dtype: str | None = None) -> SSAValue:
        if dtype is None:
            dtype = "i1" if POINTWISE[fn].result == "bool" else operands[-1].type.dtype
        full = any(v.type.is_full for v in operands)
        return self._add(KernelPointwiseOp, operands, dtype, full, fn=fn)

    def reduce(self, fn: str, value: SSAValue) -> SSAValue:
        return self._add(KernelReduceOp, [value], value.type.dtype, False, fn=fn)

    def contract(self, a: SSAValue, b: SSAValue, dtype: str = "f32") -> SSAValue:
        return self._add(KernelContractOp, [a, b], dtype, False)

    def kernel(self, **kwargs: Any) -> KernelOp:
        sizes = self.space[: self.parallel]
        grid = [-(-n // t) or 1 for n, t in zip(sizes, self.tile, strict=True)]
        kernel = KernelOp.make(
            self.name, self.block, template=self.template, space=self.space, parallel=self.parallel,
            num_inputs=self.num_inputs, mapping=compose(spatial(*grid), repeat(*self.tile)),
            tile=self.options, **kwargs,
        )  # fmt: skip
        kernel.verify()
        return kernel

    def _spans(self, strides: Sequence[int]) -> bool:
        return any(strides[self.parallel :]) or self.parallel == len(self.space)

    def _add(
        self, cls: Any, operands: Sequence[SSAValue], dtype: str, full: bool, **attrs: Any
    ) -> SSAValue:
        op = cls.make(operands, [ValueType.of(dtype, full=full)], **attrs)
        self.block.add_op(op)
        return op.outputs[0]


def meaning(kernel: KernelOp, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a kernel: float buffers as float64 (not rounded), others exact."""
    if kernel.template.data == "attention":
        from tests.backends import attention_kernels

        return attention_kernels.meaning(kernel, list(inputs))
    if kernel.template.data == "attention_backward":
        from tests.backends.attention_backward_kernels import backward_meaning

        return backward_meaning(kernel, list(inputs))
    if kernel.part_lengths:
        from tests.backends import foreach_kernels

        return foreach_kernels.meaning(kernel, inputs)
    space, parallel = kernel.space_extents, kernel.num_parallel
    buffers = [widen(x) for x in inputs]
    for arg in kernel.args[len(inputs) :]:
        kind = dtypes()[arg.type.dtype]
        fill = torch.nan if kind.is_floating_point else 0
        kind = torch.float64 if kind.is_floating_point else kind
        buffers.append(torch.full((arg.type.num_elements,), fill, dtype=kind))
    slots = {arg: i for i, arg in enumerate(kernel.args)}
    values: dict[SSAValue, torch.Tensor] = {}
    for op in kernel.body.block.ops:
        value = _meaning(op, space, parallel, values, slots, buffers)
        if op.outputs:
            values[op.outputs[0]] = value
    return buffers[len(inputs) :]


def _meaning(op, space, parallel, values, slots, buffers):
    plain = {k: to_python(v) for k, v in op.properties.items()}
    task = space[:parallel] + (1,) * (len(space) - parallel)
    match op.name:
        case "task.load":
            at = positions(plain, space if op.outputs[0].type.is_full else task)
            for index, stride in zip(op.inputs[1:], plain.get("index_strides", ()), strict=True):
                at = at + values[index] * stride
            return buffers[slots[op.inputs[0]]][at]
        case "task.store":
            at = positions(plain, space if op.inputs[0].type.is_full else task)
            target = buffers[slots[op.inputs[1]]]
            target[at] = values[op.inputs[0]].expand(at.shape).to(target.dtype)
        case "task.constant":
            value = torch.tensor(plain["value"][0], dtype=dtypes()[op.outputs[0].type.dtype])
            return widen(value).reshape((1,) * len(space))
        case "task.index":
            shape = [n if d == plain["dim"] else 1 for d, n in enumerate(space)]
            return torch.arange(space[plain["dim"]]).reshape(shape)
        case "task.pointwise":
            result = op.outputs[0].type.dtype
            return run(
                "flow.pointwise",
                {"fn": plain["fn"]},
                [values[v] for v in op.inputs],
                [((), result)],
            )[0]
        case "task.reduce":
            value = values[op.inputs[0]].expand(space)
            dims = tuple(range(parallel, len(space)))
            attrs = {"fn": plain["fn"], "dims": dims, "keep_dims": True}
            return run("flow.reduce", attrs, [value], [((), "f64")])[0]
        case "task.contract":
            a, b = (values[v].expand(space) for v in op.inputs)
            return (a * b).sum(tuple(range(parallel, len(space))), keepdim=True)
        case name:
            raise KeyError(name)
    return None


def positions(plain, space):
    at = torch.full((1,) * len(space) or (), plain["offset"], dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(space, plain["strides"], strict=True)):
        shape = [size if d == dim else 1 for d in range(len(space))]
        at = at + (torch.arange(size) * stride).reshape(shape)
    return at.expand(space)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def inputs_for(kernel: KernelOp, bound: Callable[[int], int], seed: int = 0) -> list[torch.Tensor]:
    """Return random inputs; ``bound`` gives the exclusive bound of integers in a buffer."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for i, arg in enumerate(kernel.args[: kernel.num_inputs.value.data]):
        size, dtype = arg.type.num_elements, dtypes()[arg.type.dtype]
        if dtype.is_floating_point:
            inputs.append(torch.randn(size, generator=generator, dtype=torch.float64).to(dtype))
        else:
            inputs.append(torch.randint(0, bound(i), (size,), generator=generator).to(dtype))
    return inputs


def softmax(rows=13, columns=77, dtype="f32", tile=4, name="softmax") -> KernelOp:
    b = Builder(name, (rows, columns), 1, (tile,))
    x, y = b.input(rows * columns, dtype), b.output(rows * columns, dtype)
    v = b.load(x, (columns, 1))
    e = b.fn("exp", b.fn("sub", v, b.reduce("max", v)))
    b.store(b.fn("div", e, b.reduce("sum", e)), y, (columns, 1))
    return b.kernel(sources=['n1"\n__global__ void bad() {} \\', "n2"], loc="gpt.py:12 # */ \\")


def layer_norm(rows=7, columns=100, dtype="f32", tile=2, name="layer_norm") -> KernelOp:
    b = Builder(name, (rows, columns), 1, (tile,))
    x, w, r = (
        b.input(rows * columns, dtype),
        b.input(columns, dtype),
        b.input(rows * columns, dtype),
    )
    y, mean_out = b.output(rows * columns, dtype), b.output(rows, "f32")
    v = b.fn("add", b.load(x, (columns, 1)), b.load(r, (columns, 1)))
    n = b.constant(columns, dtype)
    mean = b.fn("div", b.reduce("sum", v), n)
    d = b.fn("sub", v, mean)
    var = b.fn("div", b.reduce("sum", b.fn("mul", d, d)), n)
    scale = b.fn("rsqrt", b.fn("add", var, b.constant(1e-5, dtype)))
    b.store(b.fn("mul", b.fn("mul", d, scale), b.load(w, (0, 1))), y, (columns, 1))
    b.store(b.fn("cast", mean, dtype="f32"), mean_out, (1, 0))
    return b.kernel()


def gelu_bias(rows=9, columns=33, dtype="f32", tile=(4, 64)) -> KernelOp:
    b = Builder("gelu_bias", (rows, columns), 2, tile)
    x, w, y = (
        b.input(rows * columns, dtype),
        b.input(columns, dtype),
        b.output(rows * columns, dtype),
    )
    v = b.fn("gelu", b.fn("add", b.load(x, (columns, 1)), b.load(w, (0, 1))))
    b.store(v, y, (columns, 1))
    return b.kernel()


def flat_add(size=1000, dtype="f32", tile=256) -> KernelOp:
    b = Builder("flat_add", (size // 10, 10), 2, (max(1, tile // 10), 10))
    x, z, y = b.input(size, dtype), b.input(size, dtype), b.output(size, dtype)
    b.store(b.fn("add", b.load(x, (10, 1)), b.load(z, (10, 1))), y, (10, 1))
    return b.kernel()


def embedding(tokens=11, width=20, vocab=31, dtype="f32") -> KernelOp:
    b = Builder("embedding", (tokens, width), 2, (2, 32))
    table, ids = b.input(vocab * width, dtype), b.input(tokens, "i64")
    position, y = b.input(tokens * width, dtype), b.output(tokens * width, dtype)
    at = b.load(ids, (1, 0))
    v = b.load(table, (0, 1), at, index_strides=(width,), index_counts=(vocab,))
    b.store(b.fn("add", v, b.load(position, (width, 1))), y, (width, 1))
    return b.kernel()


def transposed_copy(batch=2, rows=37, columns=21, dtype="f32", tile=(1, 16, 16)) -> KernelOp:
    b = Builder("transposed_copy", (batch, columns, rows), 3, tile)
    x, y = b.input(batch * rows * columns, dtype), b.output(batch * rows * columns, dtype)
    v = b.load(x, (rows * columns, 1, columns))
    b.store(v, y, (rows * columns, rows, 1))
    return b.kernel()


def iota(size=45) -> KernelOp:
    b = Builder("iota", (size, 3), 2, (16, 3))
    y = b.output(size * 3, "i64")
    b.store(b.fn("add", b.fn("mul", b.index(0), b.constant(5, "i64")), b.index(1)), y, (3, 1))
    return b.kernel()


def causal_any(rows=6, columns=50) -> KernelOp:
    """Reductions of truth values and integers over two reduced dims, with a position mask."""
    b = Builder("causal_any", (rows, 5, columns // 5), 1, (2,))
    x = b.input(rows * columns, "i32")
    flags, most, total = b.output(rows, "i1"), b.output(rows, "i32"), b.output(rows, "i64")
    v = b.load(x, (columns, 1, 5))
    early = b.fn("le", b.index(2), b.index(0))
    big = b.fn("logical_and", b.fn("gt", v, b.constant(95, "i32")), early)
    b.store(b.reduce("any", big), flags, (1, 0, 0))
    b.store(b.reduce("max", b.fn("neg", v)), most, (1, 0, 0))
    b.store(b.reduce("sum", b.fn("cast", v, dtype="i64")), total, (1, 0, 0))
    return b.kernel()


def column_sums(rows=70, columns=19, tile=8) -> KernelOp:
    """Reduce over the outer dim: tasks are contiguous, columns are not."""
    b = Builder("column_sums", (columns, rows), 1, (tile,))
    x, y = b.input(rows * columns, "f32"), b.output(columns, "f32")
    least = b.output(columns, "f32")
    v = b.load(x, (1, columns))
    b.store(b.reduce("sum", v), y, (1, 0))
    b.store(b.reduce("min", b.fn("abs", v)), least, (1, 0))
    return b.kernel()


def whole_product(size=23) -> KernelOp:
    """No tasks at all: one program."""
    b = Builder("whole_product", (size,), 0)
    x, y = b.input(size, "f32"), b.output(1, "f32")
    b.store(b.reduce("prod", b.load(x, (1,))), y, (0,))
    return b.kernel()


def matmul(
    m=37, n=53, k=29, batch=(), dtype="f32", transposed=False, a_transposed=False, epilogue=True,
    name="matmul", **tile: int,
) -> KernelOp:  # fmt: skip
    """A batched matmul with bias, gelu and residual; operands may be stored transposed."""
    tile = {"block_m": 32, "block_n": 32, "block_k": 16, **tile}
    count = len(batch)
    ones = (1,) * count
    b = Builder(
        name,
        (*batch, m, n, k),
        count + 2,
        (*ones, tile["block_m"], tile["block_n"]),
        "matmul",
        **tile,
    )
    total = 1
    lead_a, lead_b, lead_c = [], [], []
    for size in reversed(batch):
        lead_a.insert(0, total * m * k)
        lead_b.insert(0, total * n * k)
        lead_c.insert(0, total * m * n)
        total *= size
    a, w = b.input(total * m * k, dtype), b.input(total * n * k, dtype)
    bias, residual = b.input(n, dtype), b.input(total * m * n, dtype)
    y = b.output(total * m * n, dtype)
    left = b.load(a, (*lead_a, 1, 0, m) if a_transposed else (*lead_a, k, 0, 1))
    right = b.load(w, (*lead_b, 0, k, 1) if transposed else (*lead_b, 0, 1, n))
    v = b.contract(left, right, dtype)
    if epilogue:
        v = b.fn("gelu", b.fn("add", v, b.load(bias, (*[0] * count, 0, 1, 0))))
        v = b.fn("add", v, b.load(residual, (*lead_c, n, 1, 0)))
    b.store(v, y, (*lead_c, n, 1, 0))
    return b.kernel()


def swapped_batches(m=9, n=21, k=40, heads=2, batch=3, dtype="f32") -> KernelOp:
    """A matmul of two batch dims that lie in another order in each operand: they do not merge."""
    tile = {"block_m": 16, "block_n": 16, "block_k": 16}
    space = (batch, heads, m, n, k)
    b = Builder("swapped_batches", space, 4, (1, 1, 16, 16), "matmul", **tile)
    count = heads * batch
    a, w = b.input(count * m * k, dtype), b.input(count * k * n, dtype)
    y = b.output(count * m * n, dtype)
    left = b.load(a, (heads * m * k, m * k, k, 0, 1))
    right = b.load(w, (k * n, batch * k * n, 0, 1, n))
    b.store(b.contract(left, right, dtype), y, (m * heads * n, n, heads * n, 1, 0))
    return b.kernel()


def reductions(dtype: str, rows=5, columns=43) -> KernelOp:
    """Every reduction of a dtype, over two dims that do not merge."""
    b = Builder(f"reductions_{dtype}", (rows, 3, columns), 1, (2,))
    x = b.input(rows * columns * 3, dtype)
    functions = ("any", "all") if dtype == "i1" else ("sum", "max", "min", "prod")
    outputs = [b.output(rows, dtype) for _ in functions]
    v = b.load(x, (columns * 3, 1, 3))
    for fn, y in zip(functions, outputs, strict=True):
        b.store(b.reduce(fn, v), y, (1, 0, 0))
    return b.kernel()


def empty(rows=0, columns=5, name="empty") -> KernelOp:
    """A sum of no rows, or of rows without columns."""
    b = Builder(name, (rows, columns), 1, (4,))
    x, y = b.input(rows * columns, "f32"), b.output(rows, "f32")
    b.store(b.reduce("sum", b.load(x, (columns, 1))), y, (1, 0))
    return b.kernel()


def huge(rows=70_000, columns=40_000) -> KernelOp:
    """Offsets beyond 31 bits."""
    b = Builder("huge", (rows, columns), 1, (1,))
    x, y = b.input(rows * columns, "f16"), b.output(rows, "f16")
    b.store(b.reduce("sum", b.load(x, (columns, 1))), y, (1, 0))
    return b.kernel()


def random_kernel(seed: int) -> KernelOp:
    """Permuted, broadcast and offset accesses, functions and reductions at several levels."""
    numbers = random.Random(seed)
    parallel, reduced = numbers.randint(0, 3), numbers.randint(0, 2)
    space = [numbers.choice([1, 2, 3, 5, 8, 17]) for _ in range(parallel)]
    space += [numbers.choice([1, 4, 7, 33, 70]) for _ in range(reduced)]
    tile = [numbers.choice([1, 2, 4, 16]) for _ in range(parallel)]
    b = Builder(f"random_{seed}", space, parallel, tile)
    buffers = []
    for _ in range(numbers.randint(1, 3)):
        strides, size = [0] * len(space), 1
        for dim in numbers.sample(range(len(space)), len(space)):
            if numbers.random() < 0.8:
                strides[dim], size = size, size * space[dim]
        offset = numbers.choice([0, 0, 3])
        buffers.append(
            (b.input(size + offset, numbers.choice(["f32", "f32", "f16"])), strides, offset)
        )
    full = [b.load(x, strides, offset=offset) for x, strides, offset in buffers]
    full = [b.fn("cast", v, dtype="f32") if v.type.dtype == "f16" else v for v in full]
    for _ in range(numbers.randint(2, 9)):
        left, right = numbers.choice(full), numbers.choice(full)
        result = numbers.choice(
            [b.fn("add", left, right), b.fn("sub", left, right), b.fn("tanh", left)]
        )
        if reduced and result.type.is_full and numbers.random() < 0.4:
            result = b.fn("tanh", b.reduce(numbers.choice(["sum", "max", "min"]), result))
        full.append(result)
    for value in full[-numbers.randint(1, 3) :]:
        covered = space if value.type.is_full else space[:parallel]
        strides, size = [0] * len(space), 1
        for dim in numbers.sample(range(len(covered)), len(covered)):
            strides[dim], size = size, size * space[dim]
        b.store(value, b.output(size, "f32"), strides)
    return b.kernel()


def gpt_kernels(dtype: torch.dtype = torch.float32) -> dict[str, KernelOp]:
    """Every kernel of a small GPT and its loss, mapped for sm_90."""
    from irc.frontends.torch.capture import capture
    from irc.pipeline import Options, default_pipeline, run_passes
    from tests.models.gpt import GPT, GPTConfig

    model = GPT(GPTConfig(layers=2, hidden=48, heads=3, block=16, vocab=29)).eval().to(dtype)
    tokens = torch.zeros(2, 11, dtype=torch.long)
    module = capture(model, (tokens, tokens)).program.module
    run_passes(module, default_pipeline(Options(target="sm_90")))
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    return {op.sym_name.data: op for op in kernels}


def noted(kernel: KernelOp, note: str) -> KernelOp:
    """Give every op of the body an id."""
    for op in kernel.body.block.ops:
        op.attributes["id"] = StringAttr(note)
    return kernel
