"""Which flow ops a kernel can hold."""

from __future__ import annotations

from math import prod

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ContractOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    names_of,
    tensor,
)
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.packed_products import GroupedContractOp, GroupedOuterOp, PackedContractOp
from irc.dialects.searches import ArgReduceOp
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.errors import IrcError

SHAPE_OPS = names_of(ReshapeOp, TransposeOp, BroadcastOp, SliceOp)
WINDOW_OPS = names_of(ConvolutionOp, PoolOp)
"""Kernels on the CPU; on a GPU a library has them."""
PIECE_OPS = names_of(ConcatOp, PadOp)
CPU_OPS = WINDOW_OPS | PIECE_OPS
"""Kernels on the CPU alone: they load within bounds."""
FEW_PIECES, MAX_PIECES, MAX_READS = 4, 64, 1 << 18
"""Pieces of a concat that a kernel selects among, each point reading all: few, or of few points."""
COMPUTE_OPS = CPU_OPS | names_of(
    PointwiseOp, ReduceOp, ContractOp, PackedContractOp, TakeOp, GatherOp, GroupedContractOp,
    GroupedOuterOp, ArgReduceOp,
)  # fmt: skip
FREE_OPS = names_of(ConstantOp, IotaOp)
LIBRARY_DTYPES = frozenset({
    "c32", "c64", "c128", "u16", "u32", "u64", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz",
    "f8e8m0fnu",
})  # fmt: skip
"""Element types that kernels do not know."""

KERNEL_OPS = SHAPE_OPS | COMPUTE_OPS | FREE_OPS
"""Ops that a kernel can hold; all others run in a library or move data between ranks."""


def has_kernel(op: Operation) -> bool:
    """True for an op that kernels can hold: one of theirs, on real numbers, not empty."""
    values = (*op.operands, *op.results)
    if op.name not in KERNEL_OPS or not all(isinstance(v.type, TensorType) for v in values):
        return False
    if any(tensor(v).dtype in LIBRARY_DTYPES or 0 in tensor(v).shape for v in values):
        return False
    if isinstance(op, ConcatOp) and len(op.operands) > FEW_PIECES:
        reads = prod(shape_of(op.results[0])) * len(op.operands)
        return len(op.operands) <= MAX_PIECES and reads <= MAX_READS
    if isinstance(op, GatherOp):
        # A gather from a part of its table would need the table cut first.
        table, index = shape_of(op.x), shape_of(op.index)
        return all(n == m or d == op.dim for d, (n, m) in enumerate(zip(table, index, strict=True)))
    return True


def require_static(func: FuncOp) -> None:
    """Refuse a function that still has named sizes.

    Raises:
        IrcError: ``size-unbound``, naming them.
    """
    values = [v for op in func.walk() for v in op.results] + list(func.body.block.args)
    dims = [d for v in values if isinstance(v.type, TensorType) for d in v.type.shape]
    names = sorted({name for dim in dims if isinstance(dim, Size) for name in dim.names()})
    if names:
        raise IrcError(
            "size-unbound",
            f"@{func.sym_name.data} has sizes without a number: {', '.join(names)}",
            because="kernels are made for numbers",
            help=f'run bind-sizes first: bind-sizes{{sizes="{",".join(f"{n}=8" for n in names)}"}}',
        )


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """Return a value's static shape."""
    return tensor(value).static_shape()


def is_unread(op: Operation) -> bool:
    """True for a flow op whose results nobody reads: flow ops are pure, so it can go."""
    flow = isinstance(op, FlowOp) and op.dialect_name() == "flow" and bool(op.results)
    return flow and not any(value.first_use for value in op.results)
