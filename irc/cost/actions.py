"""Seconds of the ops that a plan runs: launches, library ops, collectives, on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, log2, prod
from typing import TypeAlias

from xdsl.dialects.builtin import FloatAttr, ModuleOp
from xdsl.ir import Operation, SSAValue

from irc.cluster.device import Device
from irc.cluster.load import THIS_HOST, find_cluster
from irc.cost.kernels import computed_in, op_work, shape_work
from irc.cost.measured import Times, Typed, kernel_key, library_key, load_times
from irc.cost.model import ClusterCost
from irc.cost.roofline import roofline_s
from irc.dialects.along import KernelAlongOp
from irc.dialects.attention import AttentionForm, KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.comm import (
    CollectiveOp,
    LocalChunkOp,
    MarkedRowsOp,
    PermuteOp,
    RankIndexOp,
)
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.launches import LaunchOp, ViewOp
from irc.dialects.packed_products import EXPECTED
from irc.dialects.placement import Mesh
from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.task import IndexOp, KernelContractOp, KernelOp, KernelPointwiseOp, LoadOp
from irc.dialects.task_types import BufferType, ValueType
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.errors import InternalError
from irc.ops.attention_ops import SOFTMAX_FLOPS
from irc.ops.functions import POINTWISE
from irc.ops.rule import RuleError
from irc.ops.shapes import Attention, Product, product
from irc.ops.work import bytes_moved


class ActionCost:
    """Prices ops of level task; call it with one.

    A kernel or library op that was measured on this machine (`irc tune`) has its measured time,
    where the plan is for this machine; others are priced by the roofline. Times are those of a
    rank whose peers wait: the simulator shares the cores of a host.

    Args:
        module: level task: launches look up their kernels in it.
        cluster: preset or file.
        mesh: the mesh of the plan.
        within: the mesh of the whole run, where that of the plan is one stage's.
        sources: texts of the kernels, in the order of the module, that measured ones are known by.
    """

    def __init__(
        self,
        module: ModuleOp,
        cluster: str,
        mesh: Mesh,
        sources: Iterable[str] = (),
        *,
        within: Mesh | None = None,
    ) -> None:
        hardware = find_cluster(cluster)
        self._model = ClusterCost(hardware, mesh, within=within, alone=True)
        self._threads = hardware.device.threads((within or mesh).num_ranks)
        self._times = (load_times() if cluster == THIS_HOST else Times()).seconds
        kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
        self._kernels = {op.sym_name.data: self._kernel_s(op) for op in kernels}
        for op, text in zip(kernels, sources, strict=False):
            name = op.sym_name.data
            key = kernel_key(text, name, self._threads)
            self._kernels[name] = self._times.get(key, self._kernels[name])

    def __call__(self, op: Operation) -> float | None:
        """Return the seconds of an op, or None for one that the model does not know."""
        match op:
            case LaunchOp():
                return self._kernels[op.kernel_name]
            case ViewOp() | RankIndexOp():
                return 0.0
            case PermuteOp():
                return self._model.permute_seconds(op)
            case MarkedRowsOp():
                return self._model.exchange_seconds(op)
            case CollectiveOp():
                return self._model.start_seconds(op)
            case LocalChunkOp():
                return self._roofline_s(0, 2 * _bytes(tensor(op.outputs[0])), "f32")
            case FlowOp():
                return self._library_s(op)
            case _:
                return None

    def _roofline_s(self, operations: float, num_bytes: float, dtype: str) -> float:
        device = self._model.cluster.device
        return roofline_s(device, flops=operations, num_bytes=num_bytes, dtype=dtype)

    def _kernel_s(self, kernel: KernelOp) -> float:
        part = expected_part(kernel)
        num_bytes = sum(
            _touched_bytes(arg) * (1.0 if _is_looked_up(arg) else part) for arg in kernel.args
        )
        device = self._model.cluster.device
        work = kernel_work(kernel, device)
        # Each at the peak of its dtype, as so much arithmetic of one of them.
        seconds = sum(count / device.flops(dtype) for dtype, count in work.items())
        return self._roofline_s(seconds * device.flops("f32"), num_bytes, "f32")

    def _library_s(self, op: FlowOp) -> float | None:
        if not all(isinstance(v.type, TensorType) for v in (*op.inputs, *op.outputs)):
            return None
        if self._times:
            inputs, outputs = (map(_typed, values) for values in (op.inputs, op.outputs))
            key = library_key(op.name, op.plain, inputs, outputs, self._threads)
            if key in self._times:
                return self._times[key]
        try:
            work = op_work(self._model.cluster.device, op)
            return self._roofline_s(work, bytes_moved(op), computed_in(op))
        except (RuleError, KeyError):
            return None


def _touched_bytes(argument: SSAValue) -> int:
    """Return the bytes of a kernel's argument that move: of a table, at most what is looked up."""
    kind = argument.type
    if not isinstance(kind, BufferType):
        return 0
    most = kind.num_elements
    if _is_looked_up(argument):
        most = min(most, sum(_times(use.operation) for use in argument.uses))
    return most * ITEM_BYTES[kind.dtype]


def _is_looked_up(argument: SSAValue) -> bool:
    """Return whether a kernel reads an argument by an index alone: a table, or matrices."""
    loads = [use.operation for use in argument.uses]
    return bool(loads) and all(
        isinstance(op, LoadOp) and op.index_strides is not None for op in loads
    )


def expected_part(kernel: KernelOp) -> float:
    """Return the part of a kernel's rows that is expected to come, 1 where all do.

    Experts are sent the rows that chose them, into buffers for all. What does not come is priced as
    if kernels left it out, whether they do or compute zeros.
    """
    part = kernel.attributes.get(EXPECTED)
    return part.value.data if isinstance(part, FloatAttr) else 1.0


def _times(load: Operation) -> int:
    """Return how many elements a load reads, each once in the dims that it depends on."""
    assert isinstance(load, LoadOp)
    extents = load.kernel.space_extents
    return prod(extents if load.value.is_full else extents[: load.kernel.num_parallel])


def kernel_work(kernel: KernelOp, device: Device) -> dict[str, float]:
    """Return the work of a kernel on a device by dtype, in operations at its peak.

    Two operations per point of a contraction, else those of the table, and what the shape of
    products and attention adds (`irc.cost.kernels`). Products are of what is multiplied: a result
    that is kept wider does not slow them down.
    """
    full, tasks = prod(kernel.space_extents), prod(kernel.space_extents[: kernel.num_parallel])
    work: dict[str, float] = {}
    dims, part = _dims(kernel), expected_part(kernel)

    def add(value: SSAValue, amount: float) -> None:
        dtype = _dtype(value)
        work[dtype] = work.get(dtype, 0) + amount

    for op in kernel.body.block.ops:
        if device.units and (shape := _shape(op, dims)):
            add(op.operands[0], shape_work(device, shape, _dtype(op.operands[0])))
        elif isinstance(op, KernelContractOp):
            add(op.a, 2 * full * (1.0 if op.fill is None else op.fill))
        elif isinstance(op, KernelAttentionOp):
            add(op.operands[0], full * (_products(op.form) + SOFTMAX_FLOPS))
        elif isinstance(op, KernelAttentionBackwardOp):
            add(op.operands[0], full * (_gradient_products(op.form) + SOFTMAX_FLOPS))
        elif isinstance(op, KernelRecurrentOp):
            add(op.operands[0], 2 * full)
        elif isinstance(op, KernelAlongOp):
            steps = ceil(log2(max(kernel.space_extents[-1], 2))) if op.form.fn == "sort" else 1
            add(op.operands[0], full * steps)
        elif isinstance(op, KernelPointwiseOp):
            times = _times_computed(kernel, dims[op.results[0]]) if op.value.is_full else tasks
            add(op.results[0], POINTWISE[op.fn].flops * times * part)
    return work


TILE_COLUMNS = 128
"""What does not depend on some dims of a product is computed again for each tile of those."""


def _times_computed(kernel: KernelOp, own: frozenset[int]) -> int:
    """Return how often a value of a kernel's whole space is computed, given the dims it is of."""
    space, parallel = kernel.space_extents, range(kernel.num_parallel)
    others = prod(space[dim] for dim in parallel if dim not in own)
    return prod(space[dim] for dim in own) * ceil(others / TILE_COLUMNS)


def _dtype(value: SSAValue) -> str:
    kind = value.type
    if not isinstance(kind, ValueType | BufferType):
        raise InternalError(f"a kernel computes with {kind}, which has no dtype")
    return kind.dtype


def _shape(op: Operation, dims: _Dims) -> Product | Attention | None:
    """Return the shape of an op of a kernel that has one."""
    if isinstance(op, KernelContractOp):
        return _product(op, dims)
    if not isinstance(op, KernelAttentionOp | KernelAttentionBackwardOp):
        return None
    form, backward = op.form, isinstance(op, KernelAttentionBackwardOp)
    products = _gradient_products(form) if backward else _products(form)
    heads = prod(form.lead) * form.groups * form.repeats
    shifted = "start" in form.places
    return Attention(heads, form.rows, form.keys, products, form.causal, shifted, backward)


def _product(op: KernelContractOp, dims: _Dims) -> Product | None:
    """Return the sizes of a contraction: a dim of one operand alone is of its rows or columns.

    Of a grouped sum, k is what is expected to be of the group of a row of the result.
    """
    space, parallel = op.kernel.space_extents, op.kernel.num_parallel
    rows, columns = (dims[value] for value in op.inputs)
    sizes = {(True, True): 1, (True, False): 1, (False, True): 1, (False, False): 1}
    for dim, size in enumerate(space[:parallel]):
        sizes[dim in rows, dim in columns] *= size
    batch, m, n, _ = sizes.values()
    return product(batch, m, n, ceil(prod(space[parallel:]) * op.plain.get("fill", 1.0)))


_Dims: TypeAlias = Mapping[SSAValue, frozenset[int]]


def _dims(kernel: KernelOp) -> _Dims:
    """Return the dims of the space that each value of a kernel depends on."""
    dims: dict[SSAValue, frozenset[int]] = {arg: frozenset() for arg in kernel.args}
    for op in kernel.body.block.ops:
        own = frozenset[int]()
        if isinstance(op, IndexOp):
            own = frozenset({op.dim})
        elif isinstance(op, LoadOp):
            own = frozenset(dim for dim, stride in enumerate(op.strides) if stride)
        every = own.union(*(dims[value] for value in op.operands))
        dims.update(dict.fromkeys(op.results, every))
    return dims


def _products(form: AttentionForm) -> int:
    """Return the operations of one score's products."""
    return 2 * form.depth + 2 * form.width


def _gradient_products(form: AttentionForm) -> int:
    """Return those of a score, of its gradient, and of each result."""
    width = {"dq": form.depth, "dk": form.depth, "dv": form.width}
    return _products(form) + sum(2 * n for role, n in width.items() if role in form.places)


def _typed(value: SSAValue) -> Typed:
    kind = tensor(value)
    return kind.static_shape(), kind.dtype


def _bytes(kind: TensorType) -> int:
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]
