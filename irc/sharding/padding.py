"""Parameters whose rows the ranks of an axis do not share equally: padded where they are stored.

All ranks run one program, on shards that are equal. A parameter of 5 rows over 2 ranks is therefore
stored as 6, of which the last is zero and stays so: each rank has the ceil-sized chunk that torch's
DTensor and FSDP give it (3 and 2 rows), at the front of memory for 3. The program cuts the padding
off behind whatever gathers the parameter, and pads the gradient with zeros before ranks add it up.

Only the first dim is padded, and only where the chunks of the padded size begin where those of the
size itself do: what a rank holds is then a slice of the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from irc.dialects.builder import arguments
from irc.dialects.flow import SliceOp, id_of, loc_of, phase_of, tensor
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import TensorType
from irc.sharding.shards import chunk_lengths

ROWS = "rows"
"""Attribute of an argument that is padded: how many of its rows are values."""
FRONT = "front"
"""How ids of ops end that cut padding off."""


def rows_of(attrs: DictionaryAttr) -> int:
    """Return how many rows of a padded argument are values; 0 where it has no padding."""
    attr = attrs.data.get(ROWS)
    return attr.value.data if isinstance(attr, IntegerAttr) else 0


def padded_arguments(func: FuncOp) -> dict[SSAValue, int]:
    """Return the arguments that are padded, and how many of their rows are values."""
    known = func.arg_attrs.data if func.arg_attrs else ()
    pairs = zip(func.body.block.args, known, strict=False)
    return {value: rows for value, attrs in pairs if (rows := rows_of(attrs))}


def padded_rows(rows: int, parts: Sequence[int]) -> int:
    """Return how many rows are stored of which each part has as many.

    >>> padded_rows(5, [2]), padded_rows(5, [3]), padded_rows(6, [3])
    (6, 6, 6)
    """
    count = prod(parts)
    return -(-rows // count) * count


def is_front(rows: int, stored: int, parts: Sequence[int]) -> bool:
    """Return whether each part of the stored rows begins with the part of the rows themselves.

    Args:
        rows: that are values.
        stored: with those that are padding.
        parts: into how many an axis splits them, axis after axis.

    >>> is_front(5, 6, [2]), is_front(5, 8, [2, 2])
    (True, False)
    """
    count = prod(parts)
    if stored % count:
        return False
    size = stored // count
    own = [min(size, max(rows - part * size, 0)) for part in range(count)]
    return own == chunk_lengths(rows, parts)


def is_front_of(rows: int, stored: int, placement: Placement, mesh: Mesh) -> bool:
    """Return :func:`is_front` of how a placement splits the rows."""
    parts = [mesh.size(axis) for axis in placement.split_axes(0)]
    return not parts or is_front(rows, stored, parts)


def pad_argument(func: FuncOp, number: int, stored: int) -> None:
    """Store an argument with more rows; what reads it reads its own rows, as before.

    Args:
        func: level flow; its argument has one dim or more, and is read by no return.
        number: of the argument.
        stored: the rows with padding.
    """
    value = func.body.block.args[number]
    kind = tensor(value)
    rows, *others = kind.static_shape()
    readers = {use.operation for use in value.uses}
    longer = TensorType.of((stored, *others), kind.dtype)
    Rewriter.replace_value_with_new_type(value, longer)
    value = func.body.block.args[number]
    known = list(func.arg_attrs.data) if func.arg_attrs else []
    known[number] = DictionaryAttr({**known[number].data, ROWS: IntegerAttr(rows, i64)})
    func.arg_attrs = ArrayAttr(known)
    func.update_function_type()
    first = next((op for op in func.body.block.ops if op in readers), None)
    if first is None:
        return
    front = SliceOp.make(
        [value],
        [kind],
        starts=(0,) * kind.ndim,
        stops=(rows, *others),
        steps=(1,) * kind.ndim,
        loc=loc_of(first),
        id=f"pad{number}.{FRONT}",
    )
    Rewriter.insert_op(front, InsertPoint.before(first))
    value.replace_uses_with_if(front.outputs[0], lambda use: use.operation is not front)


def front_of(value: SSAValue) -> SliceOp:
    """Return what cuts the padding off an argument."""
    return next(front for use in value.uses if (front := _front(use.operation)))


def cut_again(func: FuncOp) -> None:
    """Let the backward pass cut padding off by itself: it may gather parameters again."""
    ops = list(func.body.block.ops)
    place = {op: i for i, op in enumerate(ops)}
    for front in [front for op in ops if (front := _front(op)) is not None]:
        later = [use for use in front.outputs[0].uses if phase_of(use.operation) == "backward"]
        if not later:
            continue
        copy = front.clone()
        copy.attributes["id"] = StringAttr(f"{id_of(front)}.again")
        copy.attributes["phase"] = StringAttr("backward")
        first = min((use.operation for use in later), key=place.__getitem__)
        Rewriter.insert_op(copy, InsertPoint.before(first))
        for use in later:
            use.operation.operands[use.index] = copy.outputs[0]


def _front(op: Operation) -> SliceOp | None:
    """Return an op that cuts the padding off an argument; None for another."""
    if isinstance(op, SliceOp) and isinstance(op.x, BlockArgument):
        return op if id_of(op).endswith(f".{FRONT}") else None
    return None


def names_of_padded(func: FuncOp) -> dict[str, int]:
    """Return the names of padded arguments, and how many of their rows are values."""
    rows = padded_arguments(func)
    return {name: rows[value] for _, name, value in arguments(func) if value in rows}
