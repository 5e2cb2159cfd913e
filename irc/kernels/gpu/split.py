"""One matmul kernel as two: products of parts of k, and their sum with what follows it.

A short grid of long sums leaves most of a GPU idle. Parts of k become a task dim of the first
kernel; the second adds the parts up and only then computes the epilogue, since ``f(a + b)`` is not
``f(a) + f(b)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.attributes import to_attribute, to_python
from irc.dialects.flow import FlowOp
from irc.dialects.task import (
    KernelBodyOp,
    KernelContractOp,
    KernelOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
)
from irc.dialects.task_types import BufferType, ValueType
from irc.kernels.gpu.limits import gpu
from irc.kernels.gpu.matmul import Problem, best_parts
from irc.kernels.schedule import Template, schedule
from irc.kernels.view import contiguous_strides

ACCUMULATORS = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}


@dataclass(frozen=True)
class Halves:
    """Both kernels, and which of the old kernel's inputs each reads.

    Attributes:
        products: its inputs, then ``[parts, *tasks]`` of partial sums.
        total: the partial sums, its inputs, then the old kernel's outputs.
        shape: of the partial sums.
        dtype: of the partial sums.
    """

    products: KernelOp
    total: KernelOp
    products_inputs: tuple[int, ...]
    total_inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str


def parts_of(kernel: KernelOp, target: str) -> int:
    """Return into how many parts a kernel's k is best cut; 1 for what is no plain matmul."""
    contract = _contract(kernel)
    if contract is None:
        return 1
    *batch, m, n, k = kernel.space_extents
    problem = Problem(prod(batch), m, n, k, _dtype(contract))
    return best_parts(problem, gpu(target))


def _contract(kernel: KernelOp) -> KernelContractOp | None:
    """Return the contraction of a matmul whose operands are loads without indices."""
    space = kernel.space_extents
    if kernel.template.data != "matmul" or kernel.num_parallel != len(space) - 1 or 0 in space:
        return None
    contracts = [op for op in kernel.body.block.ops if isinstance(op, KernelContractOp)]
    if len(contracts) != 1 or _dtype(contracts[0]) not in ACCUMULATORS:
        return None
    loads = [value.owner for value in contracts[0].inputs]
    plain = all(isinstance(load, LoadOp) and not load.indices for load in loads)
    return contracts[0] if plain else None


def _dtype(contract: KernelContractOp) -> str:
    kind = contract.a.type
    assert isinstance(kind, ValueType)
    return kind.dtype


def split(kernel: KernelOp, parts: int, target: str) -> Halves:
    """Cut k into parts.

    Args:
        kernel: one for which :func:`parts_of` gives more than 1.
        parts: a divisor of k.
        target: what the mappings are chosen for.
    """
    contract = _contract(kernel)
    assert contract is not None
    assert kernel.space_extents[-1] % parts == 0
    products, first = _products(kernel, contract, parts, target)
    total, second = _total(kernel, contract, parts, target)
    tasks = kernel.space_extents[:-1]
    return Halves(products, total, first, second, (parts, *tasks), ACCUMULATORS[_dtype(contract)])


def _products(
    kernel: KernelOp, contract: KernelContractOp, parts: int, target: str
) -> tuple[KernelOp, tuple[int, ...]]:
    *tasks, k = kernel.space_extents
    dtype = ACCUMULATORS[_dtype(contract)]
    loads = [value.owner for value in contract.inputs]
    used = _used(kernel, loads)
    kinds = [kernel.args[i].type for i in used]
    block = Block(arg_types=[*kinds, BufferType.of(parts * prod(tasks), dtype)])
    values: dict[SSAValue, SSAValue] = dict(
        zip([kernel.args[i] for i in used], block.args, strict=False)
    )
    for load in dict.fromkeys(loads):
        assert isinstance(load, LoadOp)
        *outer, inner = load.strides
        copy = load.clone(values)
        copy.properties["strides"] = to_attribute((inner * (k // parts), *outer, inner))
        block.add_op(copy)
    product = KernelContractOp.make(
        [values[v] for v in contract.inputs], [ValueType.of(dtype, full=False)]
    )
    _note(product, contract)
    block.add_op(product)
    strides = (prod(tasks), *contiguous_strides(tasks), 0)
    _store(block, product.outputs[0], block.args[-1], strides, contract)
    space = (parts, *tasks, k // parts)
    return _kernel(kernel, "parts", "matmul", space, block, len(used), target, contract), used


def _total(
    kernel: KernelOp, contract: KernelContractOp, parts: int, target: str
) -> tuple[KernelOp, tuple[int, ...]]:
    *tasks, _ = kernel.space_extents
    dtype = ACCUMULATORS[_dtype(contract)]
    gone = {contract, *(value.owner for value in contract.inputs)}
    rest = [op for op in kernel.body.block.ops if op not in gone]
    used = _used(kernel, [op for op in rest if isinstance(op, LoadOp)])
    outputs = range(kernel.num_inputs.value.data, len(kernel.args))
    partial = BufferType.of(parts * prod(tasks), dtype)
    block = Block(arg_types=[partial, *(kernel.args[i].type for i in (*used, *outputs))])
    values: dict[SSAValue, SSAValue] = dict(
        zip([kernel.args[i] for i in (*used, *outputs)], block.args[1:], strict=True)
    )
    total = _sum(block, (*contiguous_strides(tasks), prod(tasks)), dtype, contract)
    values[contract.outputs[0]] = total
    for op in rest:
        block.add_op(op.clone(values))
    space = (*tasks, parts)
    count = 1 + len(used)
    return _kernel(kernel, "sum", "rows", space, block, count, target, contract), used


def _sum(block: Block, strides: Sequence[int], dtype: str, origin: KernelContractOp) -> SSAValue:
    load = LoadOp.make(
        [block.args[0]], [ValueType.of(dtype, full=True)], offset=0, strides=tuple(strides)
    )
    kind = ValueType.of(origin.value.dtype, full=False)
    total = KernelReduceOp.make([load.outputs[0]], [kind], fn="sum")
    for op in (load, total):
        _note(op, origin)
        block.add_op(op)
    return total.outputs[0]


def _store(
    block: Block,
    value: SSAValue,
    buffer: BlockArgument,
    strides: Sequence[int],
    origin: KernelContractOp,
) -> None:
    op = StoreOp.make([value, buffer], [], offset=0, strides=tuple(strides))
    op.attributes["loc"] = origin.attributes["loc"]
    block.add_op(op)


def _kernel(
    kernel: KernelOp,
    suffix: str,
    template: Template,
    space: Sequence[int],
    block: Block,
    num_inputs: int,
    target: str,
    contract: KernelContractOp,
) -> KernelOp:
    chosen = schedule(template, space, len(space) - 1, target, _dtype(contract))
    return KernelOp.make(
        f"{kernel.sym_name.data}_{suffix}",
        block,
        template=template,
        space=space,
        parallel=len(space) - 1,
        num_inputs=num_inputs,
        mapping=chosen.mapping,
        tile=dict(chosen.tile),
        sources=() if kernel.sources is None else to_python(kernel.sources),
        loc=str(to_python(kernel.attributes["loc"])),
    )


def _used(kernel: KernelOp, loads: Sequence[Operation | Block]) -> tuple[int, ...]:
    """Return which inputs some loads read, in the order of the kernel's arguments."""
    read = {load.operands[0] for load in loads if isinstance(load, LoadOp)}
    return tuple(i for i, arg in enumerate(kernel.args) if arg in read)


def _note(op: FlowOp, origin: KernelBodyOp) -> None:
    for name in ("loc", "id"):
        if name in origin.attributes:
            op.attributes[name] = origin.attributes[name]
