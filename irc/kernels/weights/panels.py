"""Packed weights: panels in which a matmul on the CPU reads its weight, written once per weight.

A panel holds :data:`COLUMNS` columns of B, row after row: ``[n / 64][k][64]``. Of bfloat16 two rows
lie together (``[n / 64][k / 2][64][2]``), as dot products of pairs read them (GotoBLAS, Goto and
van de Geijn 2008, section 4; the layout of the pairs is that of VDPBF16PS).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, SSAValue
from xdsl.rewriter import Rewriter

from irc.dialects.attributes import to_attribute
from irc.dialects.flow import FlowOp, loc_of
from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.task import (
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    LoadOp,
    StoreOp,
)
from irc.dialects.task_types import BufferType, ValueType

COLUMNS = 64
"""Columns of a panel: four vectors of AVX-512, eight of AVX2."""
NARROW = 32
"""Columns where the last panel would be half empty and there are not many, or where twelve rows
fill the registers with them: then the weight is read once, from end to end."""
MANY = 512
TALL = range(7, 13)
"""Rows of A that are one register tile with narrow panels, and two with wide ones."""
PAIRED = {"f32": 1, "bf16": 2}
"""Dtypes that are packed, and how many rows of them lie together."""
FEW_ROWS = 4
"""Up to so many rows of A each weight is read once, in place, at the speed of memory."""
SMALLEST_NORMAL = 2.0**-126
"""Of float32."""
SPLIT = 64
"""Workers of a packing kernel."""


@dataclass(frozen=True)
class Packed:
    """A matmul on a packed weight.

    Attributes:
        kernel: the matmul; argument ``argument`` is the packed weight.
        argument: position of the weight among its arguments.
        pack: the kernel that packs: the weight in, panels out.
        source: position of the weight among the arguments of the kernel as it was: the same, but
            where the weight stays an argument and its panels are one more.
    """

    kernel: KernelOp
    argument: int
    pack: KernelOp
    source: int

    @property
    def elements(self) -> int:
        """How many the packed weight has, padding included."""
        kind = self.pack.args[1].type
        assert isinstance(kind, BufferType)
        return kind.num_elements


def weight_of(kernel: KernelOp, any_rows: bool = False) -> int | None:
    """Return the argument that would be packed, None where packing does not pay or fit.

    Args:
        kernel: any.
        any_rows: the kernel is to serve other numbers of rows than its own, if that is above one.
    """
    load = _right_operand(kernel)
    if load is None or load.blocks is not None or load.indices:
        return None
    space, strides = kernel.space_extents, load.strides
    m, n, k = (*space[kernel.num_parallel - 2 : kernel.num_parallel], space[-1])
    fits = len(space) == kernel.num_parallel + 1 and 0 not in space and n >= NARROW and k > 1
    if not fits or m <= (1 if any_rows else FEW_ROWS) or load.value.dtype not in PAIRED:
        return None
    n_dim = kernel.num_parallel - 1
    if not (strides[n_dim] and strides[-1]) or strides[n_dim - 1]:
        return None
    buffer = load.buffer
    readers = [op for op in kernel.body.ops if buffer in op.operands]
    return kernel.position(buffer) if len(readers) == 1 else None


def columns_of(n: int) -> int:
    """Return the columns of a panel of ``n`` columns in all."""
    return NARROW if n < MANY and 0 < n % COLUMNS <= NARROW else COLUMNS


def packed(kernel: KernelOp, argument: int, *, any_rows: bool = False) -> Packed:
    """Return a kernel as it reads the packed weight, and the kernel that packs.

    Args:
        kernel: a matmul of which :func:`weight_of` gave the argument.
        argument: what it gave.
        any_rows: as :func:`weight_of` was given it.
    """
    load = _right_operand(kernel)
    assert load is not None
    space, strides = kernel.space_extents, load.strides
    dtype = load.value.dtype
    pair, n_dim, k_dim = PAIRED[dtype], kernel.num_parallel - 1, len(space) - 1
    n, depth = space[n_dim], -(-space[k_dim] // pair)
    tall = space[n_dim - 1] in TALL and not any_rows
    columns = NARROW if tall else columns_of(n)
    panel = depth * columns * pair
    batch = [d for d in range(n_dim - 1) if strides[d]]
    placed = [0] * len(space)
    placed[n_dim], placed[k_dim] = panel, columns * pair
    blocks = (n_dim, columns, pair, k_dim, pair, 1) if pair > 1 else (n_dim, columns, 1)
    total = -(-n // columns) * panel
    for d in reversed(batch):
        placed[d] = total
        total *= space[d]
    dims = [*batch, n_dim, k_dim]
    mapping = _by_columns(tuple(space[d] for d in dims))
    return repacked(kernel, load, Places(tuple(dims), tuple(placed), blocks, total), mapping)


@dataclass(frozen=True)
class Places:
    """Where the elements of a weight lie when it is packed.

    Attributes:
        dims: of the kernel's space, along which the weight varies.
        strides: by dim of the space.
        blocks: as ``task.load`` has them.
        elements: in all, padding included.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    blocks: tuple[int, ...]
    elements: int


def repacked(kernel: KernelOp, load: LoadOp, places: Places, mapping: TaskMapping) -> Packed:
    """Return a kernel as it reads a weight at other places, and the kernel that puts it there.

    Args:
        kernel: as it reads the weight where it is.
        load: the one that does.
        places: where it is to lie.
        mapping: of the kernel that packs, over ``places.dims``.
    """
    argument, number = kernel.position(load.buffer), list(kernel.body.ops).index(load)
    reader = kernel.clone()
    packed_type = BufferType.of(places.elements, load.value.dtype)
    Rewriter.replace_value_with_new_type(reader.args[argument], packed_type)
    packed_load = list(reader.body.ops)[number]
    assert isinstance(packed_load, LoadOp)
    packed_load.properties["offset"] = to_attribute(0)
    packed_load.properties["strides"] = to_attribute(places.strides)
    packed_load.properties["blocks"] = to_attribute(places.blocks)
    return Packed(reader, argument, _writer(kernel, load, places, mapping), argument)


def _right_operand(kernel: KernelOp) -> LoadOp | None:
    """The load of B: the operand of the product that varies along n."""
    for op in kernel.body.block.ops:
        if isinstance(op, KernelContractOp):
            owner = op.b.owner
            return owner if isinstance(owner, LoadOp) else None
    return None


def _writer(kernel: KernelOp, load: LoadOp, places: Places, mapping: TaskMapping) -> KernelOp:
    """Build the kernel that copies a weight, over the dims that it varies along."""
    dims = places.dims
    space = tuple(kernel.space_extents[d] for d in dims)
    strides, dtype = load.strides, load.value.dtype
    target = BufferType.of(places.elements, dtype)
    block = Block(arg_types=[load.buffer.type, target])
    read = LoadOp.make(
        [block.args[0]],
        [ValueType.of(dtype, full=False)],
        offset=load.offset,
        strides=tuple(strides[d] for d in dims),
        loc=loc_of(load),
    )
    own = (dims.index(x) if i % 3 == 0 else x for i, x in enumerate(places.blocks))
    body: list[FlowOp] = [read]
    if dtype == "f32":
        body += without_denormals(read.outputs[0])
    write = StoreOp.make(
        [body[-1].outputs[0], block.args[1]],
        [],
        offset=0,
        strides=tuple(places.strides[d] for d in dims),
        blocks=tuple(own),
        loc=loc_of(load),
    )
    block.add_ops([*body, write])
    return KernelOp.make(
        "pack",
        block,
        template="rows",
        space=space,
        parallel=len(space),
        num_inputs=1,
        mapping=mapping,
        loc=loc_of(kernel),
    )


def without_denormals(value: SSAValue) -> list[FlowOp]:
    """Return ops of which the last gives a float32 row value, or 0 where it is denormal.

    What decay leaves of a dead channel's weights: no product of one can be seen beside another, but
    each costs some 100 cycles of microcode (Intel's Optimization Reference Manual, on assists).
    """
    row, flag = (ValueType.of(dtype, full=False) for dtype in ("f32", "i1"))
    size = KernelPointwiseOp.make([value], [row], fn="abs")
    least = KernelConstantOp.make([], [row], value=(SMALLEST_NORMAL,))
    tiny = KernelPointwiseOp.make([size.outputs[0], least.outputs[0]], [flag], fn="lt")
    zero = KernelConstantOp.make([], [row], value=(0.0,))
    operands = [tiny.outputs[0], zero.outputs[0], value]
    return [size, least, tiny, zero, KernelPointwiseOp.make(operands, [row], fn="where")]


def _by_columns(space: tuple[int, ...]) -> TaskMapping:
    """Hand out whole panels."""
    *batch, n, k = space
    panels = -(-n // COLUMNS)
    columns = -(-panels // min(SPLIT, panels)) * COLUMNS
    outer = spatial(*batch, -(-n // columns), 1)
    return TaskMapping((*outer.atoms, *repeat(*[1] * len(batch), columns, k).atoms))
