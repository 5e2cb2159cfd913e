"""``task``: kernels as loops over task mappings.

A ``task.kernel`` is a symbol of the module. It has an iteration ``space``; the first ``parallel``
dims are the tasks that its mapping hands to workers, the others are reduced inside a task. Its body
is straight-line: values are ``full`` (one per point of the space) or ``row`` (one per task, after a
reduction, or because they do not depend on the reduced dims). Buffers are flat; a load or store
at point ``i`` touches element ``offset + sum(strides[d] * i[d])``: broadcast, transpose and slice
are strides, never copies. Points outside ``space`` (a mapping may round up) are masked.

Where an integer is a size, stride or offset, a polynomial over named sizes may stand
(``space = #flow.shape[S, 768]``, ``!task.buffer<768*S, f32>``): such a kernel serves every value
of its ``symbols``. How many of its tasks one worker does is decided when it runs, so its mapping is
that of one task, ``spatial(1, 1)``. :mod:`irc.dialects.task_sizes` puts numbers in.

A kernel with ``lengths`` (template ``foreach``) does one pointwise body for several tensors, a part
for each: its one dim runs over the parts laid end to end, and its buffers come part by part. The
body names the buffers of the first part.

``task.launch`` in a function calls a kernel on contiguous tensors; ``task.view`` renames memory,
and ``task.copy`` fills other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
)
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Region,
    SSAValue,
)
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from irc.dialects.attributes import to_attribute, to_python
from irc.dialects.fields import (
    integer_field,
    operand,
    operands_from,
    opt_integers_field,
    opt_number_field,
    opt_numbers_field,
    opt_sizes_field,
    size_field,
    sizes_field,
    text_field,
)
from irc.dialects.flow import FlowOp, Ints, flow_op
from irc.dialects.mapping import TaskMapping
from irc.dialects.mapping_attr import MappingAttr
from irc.dialects.size import Dim, UnboundSizeError, is_negative, least, names_of, value_of
from irc.dialects.task_types import BufferType, ValueType
from irc.dialects.types import ShapeAttr, SizeAttr


class KernelBodyOp(FlowOp):
    """Base of what stands inside a kernel."""

    @property
    def kernel(self) -> KernelOp:
        """The kernel around the op."""
        parent = self.parent_op()
        if not isinstance(parent, KernelOp):
            raise VerifyException(f"{self.name} stands in a task.kernel")
        return parent

    @property
    def value(self) -> ValueType:
        """The result's type."""
        kind = self.outputs[0].type
        if not isinstance(kind, ValueType):
            raise VerifyException(f"{self.name} gives !task.value")
        return kind

    def verify_(self) -> None:
        _ = self.kernel
        if self.name != "task.store":
            _ = self.value


@flow_op
class LoadOp(KernelBodyOp):
    """Read ``buffer[offset + sum(strides[d] * i[d]) + sum(index_strides[j] * index_j)]``.

    Operands: the buffer, then index values (i64 or i32), one per ``index_strides``: a gather. An
    index lies in 0..``index_counts[j]``-1, also where its stride is 0 or the buffer is longer.

    ``bounds`` has rows ``size, start, strides[d]..``: where ``start + sum(strides[d] * i[d])`` lies
    outside 0..size-1, a load gives ``fill`` and touches no memory (the border of a convolution).

    ``blocks`` are triples (dim, size, stride): along such a dim ``i`` counts blocks,
    ``strides[d] * (i // size) + stride * (i % size)``, as the panels of a packed weight lie.
    """

    name = "task.load"
    buffer = operand(0)
    indices = operands_from(1)
    offset = size_field()
    strides = sizes_field()
    index_strides = opt_sizes_field()
    index_counts = opt_sizes_field()
    blocks = opt_integers_field()
    bounds = opt_sizes_field()
    fill = opt_numbers_field()

    def verify_(self) -> None:
        space, value = self.kernel.extents, self.value
        strides = self.strides
        if len(strides) != len(space):
            raise VerifyException(
                f"load has {len(strides)} strides in a space of {len(space)} dims"
            )
        parallel = self.kernel.num_parallel
        if not value.is_full and any(strides[parallel:]):
            raise VerifyException("a row value does not depend on reduced dims")
        strided, counted = (len(row or ()) for row in (self.index_strides, self.index_counts))
        if not len(self.indices) == strided == counted:
            of = f"{len(self.indices)} indices, {strided} strides and {counted} counts for them"
            raise VerifyException(f"load has {of}")
        if self.bounds is not None:
            _verify_rows(self, space, value)
        else:
            verify_bounds(self, self.buffer.type)


@flow_op
class StoreOp(KernelBodyOp):
    """Write a value (operand 0) to ``buffer[offset + sum(strides[d] * i[d])]`` (operand 1).

    ``blocks`` as those of a load; padding at the end of a block is not written.
    """

    name = "task.store"
    stored = operand(0)
    buffer = operand(1)
    offset = size_field()
    strides = sizes_field()
    blocks = opt_integers_field()

    def verify_(self) -> None:
        kernel, value = self.kernel, self.stored.type
        strides = self.strides
        if len(strides) != len(kernel.extents):
            raise VerifyException(
                f"store has {len(strides)} strides in a space of {len(kernel.extents)} dims"
            )
        if (
            isinstance(value, ValueType)
            and not value.is_full
            and any(strides[kernel.num_parallel :])
        ):
            raise VerifyException(
                "a row value is stored once per task; its reduced dims have stride 0"
            )
        verify_bounds(self, self.buffer.type)


@flow_op
class KernelConstantOp(KernelBodyOp):
    """A scalar literal; of any dtype, it may be a size with names."""

    name = "task.constant"
    literals = sizes_field(stored_as="value")


@flow_op
class IndexOp(KernelBodyOp):
    """The position ``i[dim]`` as i64."""

    name = "task.index"
    dim = integer_field()


@flow_op
class KernelPointwiseOp(KernelBodyOp):
    """A scalar function (rows of irc.ops.functions); full where any operand is full."""

    name = "task.pointwise"
    fn = text_field()


@flow_op
class KernelReduceOp(KernelBodyOp):
    """Reduce a full value over the reduced dims (sum, max, min, prod, any, all): a row value.

    Half types accumulate in f32 (the value's dtype says in what the result is kept).
    """

    name = "task.reduce"
    x = operand(0)
    fn = text_field()

    def verify_(self) -> None:
        kind = self.x.type
        if self.value.is_full or not (isinstance(kind, ValueType) and kind.is_full):
            raise VerifyException("task.reduce makes a row value of a full one")


@flow_op
class KernelContractOp(KernelBodyOp):
    """sum over the reduced dims of a * b, accumulated in f32 (f64 for f64, i64 for integers): row.

    The last two parallel dims are m and n; a has stride 0 along n, b stride 0 along m. ``fill`` is
    the part of the space in which a grouped product is expected to compute, for prices.
    """

    name = "task.contract"
    a = operand(0)
    b = operand(1)
    fill = opt_number_field()

    def verify_(self) -> None:
        if len(self.inputs) != 2 or self.value.is_full:
            raise VerifyException("task.contract makes a row value of two full ones")


@irdl_op_definition
class KernelOp(IRDLOperation):
    """A kernel: a loop nest over ``space`` with a straight-line body.

    ``template`` (rows, matmul) names how emitters treat it; ``sources`` are the flow ids. Block
    arguments are buffers, the first ``num_inputs`` read, the others written.
    """

    name = "task.kernel"
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format: ClassVar[str | None] = "$sym_name attr-dict `:` $body"

    sym_name = prop_def(SymbolNameConstraint())
    template = prop_def(StringAttr)
    space = prop_def(Ints | ShapeAttr)
    parallel = prop_def(IntegerAttr)
    num_inputs = prop_def(IntegerAttr)
    mapping = prop_def(MappingAttr)
    tile = opt_prop_def(DictionaryAttr)
    sources = opt_prop_def(ArrayAttr[StringAttr])
    lengths = opt_prop_def(Ints)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    @staticmethod
    def make(
        name: str,
        body: Block,
        *,
        template: str,
        space: Sequence[Dim],
        parallel: int,
        num_inputs: int,
        mapping: TaskMapping,
        tile: dict[str, int] | None = None,
        sources: Sequence[str] = (),
        lengths: Sequence[int] = (),
        loc: str = "unknown",
    ) -> KernelOp:
        """Build a kernel around its body."""
        op = KernelOp(
            properties={
                "sym_name": StringAttr(name),
                "template": StringAttr(template),
                "space": to_attribute(tuple(space)),
                "parallel": to_attribute(parallel),
                "num_inputs": to_attribute(num_inputs),
                "mapping": MappingAttr(mapping),
                "tile": DictionaryAttr({k: to_attribute(v) for k, v in (tile or {}).items()}),
                "sources": ArrayAttr([StringAttr(s) for s in sources]),
            },
            regions=[Region(body)],
        )
        if lengths:
            op.properties["lengths"] = to_attribute(tuple(lengths))
        op.attributes["loc"] = StringAttr(loc)
        return op

    @property
    def extents(self) -> tuple[Dim, ...]:
        """The sizes of the iteration space, parallel dims first; some perhaps with names."""
        return to_python(self.space)

    @property
    def space_extents(self) -> tuple[int, ...]:
        """The sizes of the iteration space, parallel dims first.

        Raises:
            UnboundSizeError: where one of them has names.
        """
        if isinstance(self.space, ShapeAttr):
            return tuple(value_of(dim, {}) for dim in self.space.data)
        return tuple(self.space.get_values())  # type: ignore[arg-type]  # integers by construction

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the sizes that the kernel takes when it runs, in order."""
        dims: list[Dim] = [*self.space.data] if isinstance(self.space, ShapeAttr) else []
        dims += [arg.type.elements for arg in self.args if isinstance(arg.type, BufferType)]
        for op in self.body.block.ops:
            for attr in op.properties.values():
                if isinstance(attr, ShapeAttr | SizeAttr):
                    dims += attr.data if isinstance(attr, ShapeAttr) else [attr.data]
        return names_of(dims)

    @property
    def num_parallel(self) -> int:
        """How many leading dims are tasks."""
        return self.parallel.value.data

    @property
    def part_lengths(self) -> tuple[int, ...]:
        """The elements of each part; empty where the kernel is for one set of buffers."""
        return () if self.lengths is None else to_python(self.lengths)

    def part_args(self, part: int) -> tuple[BlockArgument, ...]:
        """The buffers of a part, inputs then outputs."""
        args, inputs, count = self.args, self.num_inputs.value.data, len(self.part_lengths)
        part_inputs, part_outputs = inputs // count, (len(args) - inputs) // count
        outputs = args[inputs + part * part_outputs :][:part_outputs]
        return (*args[part * part_inputs :][:part_inputs], *outputs)

    @property
    def task_mapping(self) -> TaskMapping:
        """How tasks are handed to workers."""
        return self.mapping.data

    @property
    def args(self) -> tuple[BlockArgument, ...]:
        """The buffers: inputs, then outputs."""
        return tuple(self.body.block.args)

    def position(self, buffer: SSAValue) -> int:
        """Return which argument a buffer is."""
        return next(i for i, arg in enumerate(self.args) if arg is buffer)

    @property
    def tile_sizes(self) -> dict[str, int]:
        """Tile-level schedule parameters (block_m, block_n, block_k, stages, warps...)."""
        return {} if self.tile is None else to_python(self.tile)

    def verify_(self) -> None:
        shape, space = self.mapping.data.task_shape, self.extents
        if len(shape) != self.num_parallel:
            raise VerifyException(
                f"mapping has {len(shape)} dims for {self.num_parallel} parallel dims"
            )
        if isinstance(self.space, ShapeAttr):
            if any(extent != 1 for extent in shape):
                raise VerifyException(
                    f"{self.mapping.data} divides {self.space}: sizes with names are divided when"
                    " the kernel runs, its mapping is that of one task"
                )
            space = shape
        for extent, size in zip(shape, space, strict=False):
            if extent < size:
                raise VerifyException(
                    f"mapping covers {shape} of the parallel space {space[: self.num_parallel]}"
                )
        if not isinstance(self.space, ShapeAttr):
            _verify_grid(self.mapping.data, self.space_extents)
        if self.mapping.data.replication != 1:
            raise VerifyException(f"{self.mapping.data} stores each task of a kernel several times")
        if not all(isinstance(arg.type, BufferType) for arg in self.args):
            raise VerifyException("kernel arguments are !task.buffer")
        if not all(isinstance(op, KernelBodyOp) for op in self.body.block.ops):
            raise VerifyException("a kernel holds task ops only")
        if self.lengths is not None or self.template.data == "foreach":
            _verify_parts(self)


def _verify_grid(mapping: TaskMapping, space: Sequence[int]) -> None:
    """Check that each worker of the grid has a task in the space.

    A mapping may round up: the last tile reaches beyond the space, and a tile may be larger than
    it. A worker that has nothing but such tasks is a mistake.
    """
    grid, _ = mapping.split()
    for dim, workers in enumerate(() if grid is None else grid.task_shape):
        tile = mapping.task_shape[dim] // workers
        if (workers - 1) * tile >= max(space[dim], 1):
            raise VerifyException(
                f"of {workers} workers along dim {dim} of {mapping}, {tile} tasks each, the last"
                f" has none in a space of {space[dim]}"
            )


def _verify_parts(kernel: KernelOp) -> None:
    """Check that the parts of a kernel are alike but for their lengths."""
    lengths, inputs = kernel.part_lengths, kernel.num_inputs.value.data
    outputs = len(kernel.args) - inputs
    if not lengths or kernel.template.data != "foreach" or min(lengths) < 1:
        raise VerifyException("template foreach, and no other, has lengths, each at least 1")
    if kernel.extents != (sum(lengths),) or kernel.num_parallel != 1:
        raise VerifyException(f"parts of {sum(lengths)} elements in a space of {kernel.space}")
    if inputs % len(lengths) or outputs % len(lengths):
        raise VerifyException(f"{inputs} + {outputs} buffers for {len(lengths)} parts")
    first = kernel.part_args(0)
    moving = {op.buffer for op in kernel.body.block.ops if isinstance(op, LoadOp)
              and any(op.strides)}  # fmt: skip
    moving |= {op.buffer for op in kernel.body.block.ops if isinstance(op, StoreOp)}
    if any(value not in first for op in kernel.body.block.ops for value in op.operands
           if isinstance(value.type, BufferType)):  # fmt: skip
        raise VerifyException("the body of a foreach kernel names buffers of its first part")
    for part, length in enumerate(lengths):
        for own, like in zip(kernel.part_args(part), first, strict=True):
            assert isinstance(like.type, BufferType)
            size = length if like in moving else like.type.elements
            if own.type != BufferType.of(size, like.type.dtype):
                raise VerifyException(f"a buffer of part {part} is {own.type}, not of {size}")


def blocks_of(op: LoadOp | StoreOp) -> dict[int, tuple[int, int]]:
    """Return the size and the inner stride of the blocks of each dim that has them."""
    flat = op.blocks or ()
    if len(flat) % 3:
        raise VerifyException(f"{op.name} has blocks that are no triples")
    return {flat[i]: (flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)}


def bound_rows(bounds: Sequence[Any], ndims: int) -> list[tuple[Any, Any, tuple[Any, ...]]]:
    """Return the rows of ``bounds`` as (size, start, strides).

    >>> bound_rows((56, -1, 1, 0, 1), 3)
    [(56, -1, (1, 0, 1))]
    """
    width = ndims + 2
    rows = [tuple(bounds[i : i + width]) for i in range(0, len(bounds), width)]
    return [(row[0], row[1], row[2:]) for row in rows]


def _verify_rows(op: LoadOp, space: Sequence[Dim], value: ValueType) -> None:
    rows = op.bounds or ()
    if op.fill is None or len(op.fill) != 1:
        raise VerifyException("a load with bounds says in fill what lies outside them")
    if not rows or len(rows) % (len(space) + 2):
        raise VerifyException(f"bounds come in rows of {len(space) + 2} numbers, not {len(rows)}")
    for _, _, strides in bound_rows(rows, len(space)):
        if not value.is_full and any(strides[op.kernel.num_parallel :]):
            raise VerifyException("a row value does not depend on reduced dims")


def verify_bounds(op: LoadOp | StoreOp, buffer: Attribute) -> None:
    """Prove that no point of the space reaches outside the buffer; with names, not at once."""
    if not isinstance(buffer, BufferType):
        raise VerifyException(f"{op.name} reaches into {buffer}, which is no buffer")
    try:
        low, high = reach_of(op)
    except UnboundSizeError:
        return  # such a kernel is never run as it is: its sizes are bound first
    room = [least(low), least(buffer.elements + -1 + -1 * high)]
    if any(n is not None and n < 0 for n in room) and 0 not in op.kernel.extents:
        raise VerifyException(
            f"{op.name} touches elements {low}..{high} of a buffer of {buffer.elements}"
        )


def reach_of(op: LoadOp | StoreOp) -> tuple[Dim, Dim]:
    """Return the least and the greatest element that an access touches.

    Raises:
        UnboundSizeError: where the sign of a stride depends on a size.
    """
    space, blocks = op.kernel.part_lengths[:1] or op.kernel.extents, blocks_of(op)
    if any(not 0 <= d < len(space) or size < 1 for d, (size, _) in blocks.items()):
        raise VerifyException(f"{op.name} has blocks along a dim that the space has not")
    low: Dim = op.offset
    high: Dim = op.offset
    moves = list[tuple[Dim, Dim]]()
    for d, (stride, extent) in enumerate(zip(op.strides, space, strict=True)):
        steps = [(stride, extent + -1)]
        if d in blocks:
            size, inner = blocks[d]
            steps = [(stride, (extent - 1) // size), (inner, min(size, extent) - 1)]
        moves += steps
    if isinstance(op, LoadOp):
        rows = zip(op.index_strides or (), op.index_counts or (), strict=True)
        moves += [(stride, count + -1) for stride, count in rows]
    for step, most in moves:
        if is_negative(step):
            low = low + step * most
        else:
            high = high + step * most
    return low, high
