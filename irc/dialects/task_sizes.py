"""Numbers in place of the named sizes of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, SSAValue

from irc.dialects.along import KernelAlongOp, reach_of_row
from irc.dialects.attention import KernelAttentionOp, reach_of_role
from irc.dialects.attributes import to_attribute
from irc.dialects.mapping import spatial
from irc.dialects.mapping_attr import MappingAttr
from irc.dialects.recurrent import KernelRecurrentOp
from irc.dialects.size import Dim, least, value_of
from irc.dialects.task import KernelConstantOp, KernelOp, LoadOp, StoreOp, reach_of
from irc.dialects.task_types import BufferType
from irc.dialects.types import ShapeAttr, SizeAttr, is_float


def bind_kernel(kernel: KernelOp, values: Mapping[str, int]) -> KernelOp:
    """Return a kernel with numbers for its sizes; each task is one worker's.

    >>> from irc.dialects.text import load
    >>> text = '''task.kernel @copy {template = "rows", space = #flow.shape[4*S],
    ...     parallel = 1 : i64, num_inputs = 1 : i64, mapping = #task.map<spatial(1)>} : {
    ... ^bb0(%x: !task.buffer<4*S, f32>, %y: !task.buffer<4*S, f32>):
    ...   %a = task.load(%x) {offset = 0 : i64, strides = array<i64: 1>}
    ...       : (!task.buffer<4*S, f32>) -> !task.value<f32, full>
    ...   task.store(%a, %y) {offset = 0 : i64, strides = array<i64: 1>}
    ...       : (!task.value<f32, full>, !task.buffer<4*S, f32>) -> ()
    ... }'''
    >>> kernel = load(text).body.block.first_op
    >>> kernel.symbols, bind_kernel(kernel, {"S": 3}).space_extents
    (('S',), (12,))

    Args:
        kernel: with sizes; it is not changed.
        values: a number for each of its symbols.

    Raises:
        UnboundSizeError: naming a symbol that has no number.
    """
    clone = kernel.clone()
    assert isinstance(clone, KernelOp)
    if not kernel.symbols:
        return clone
    for op in (clone, *clone.body.block.ops):
        for name, attr in list(op.properties.items()):
            op.properties[name] = bound(attr, values)
        if isinstance(op, KernelConstantOp) and is_float(op.value.dtype):
            op.properties["value"] = to_attribute((float(op.literals[0]),))
    buffers: list[SSAValue] = [*clone.args]
    for value in buffers:
        value._type = bound(value.type, values)  # pyright: ignore[reportPrivateUsage] - keeps uses
    tasks = clone.space_extents[: clone.num_parallel]
    clone.properties["mapping"] = MappingAttr(spatial(*(max(size, 1) for size in tasks)))
    return clone


def bound(attr: Attribute, values: Mapping[str, int]) -> Attribute:
    """Return an attribute with numbers for its sizes.

    Raises:
        UnboundSizeError: naming a symbol that has no number.
    """
    match attr:
        case ShapeAttr():
            return to_attribute(tuple(value_of(dim, values) for dim in attr.data))
        case SizeAttr():
            return to_attribute(value_of(attr.data, values))
        case BufferType() if isinstance(attr.size, SizeAttr):
            return BufferType(IntegerAttr(value_of(attr.elements, values), 64), attr.element_type)
        case _:
            return attr


def unproven(kernel: KernelOp, most: Mapping[str, int] | None = None) -> str | None:
    """Return why a kernel may reach outside its buffers for some sizes of 2 and more, or None.

    Args:
        kernel: with sizes.
        most: the greatest number of each symbol that has one.

    Raises:
        UnboundSizeError: where the sign of a stride depends on a size.
    """
    for extent in kernel.extents:
        if (minimum := least(extent, most=most)) is None or minimum < 1:
            return f"a loop over {extent} may be empty"
    for name, low, high, size in _reaches(kernel):
        for what, number in (("first", low), ("last", size + -1 + -1 * high)):
            if (minimum := least(number, most=most)) is None or minimum < 0:
                return f"{name}: its {what} element lies inside where {number} >= 0"
    return None


def _reaches(kernel: KernelOp) -> Iterator[tuple[str, Dim, Dim, Dim]]:
    """Yield what each op touches: its name, the first and last element, the buffer's size."""
    for op in kernel.body.block.ops:
        if isinstance(op, KernelAttentionOp):
            for role, place in op.form.places.items():
                yield (role, *reach_of_role(role, place, op.form), place.size)
        if isinstance(op, KernelAlongOp):
            for role, place in op.form.places.items():
                yield (role, *reach_of_row(place, op.form), place.size)
        if isinstance(op, KernelRecurrentOp):
            yield from _reaches_of_cell(op)
        if not isinstance(op, LoadOp | StoreOp):
            continue
        if isinstance(op, LoadOp) and op.bounds is not None:
            continue  # outside its bounds it touches nothing
        buffer = op.inputs[0 if isinstance(op, LoadOp) else 1].type
        assert isinstance(buffer, BufferType)
        yield (op.name, *reach_of(op), buffer.elements)


def _reaches_of_cell(op: KernelRecurrentOp) -> Iterator[tuple[str, Dim, Dim, Dim]]:
    form = op.form
    for role, value in zip(op.roles, op.inputs, strict=True):
        kind = value.type
        assert isinstance(kind, BufferType)
        size = prod(form.shape(role), start=1) if role != "x" else 0
        low, high = (0, size + -1) if role != "x" else form.reach()
        yield role, low, high, kind.elements
