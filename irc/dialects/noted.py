"""What passes note on ops of level flow: ids of results, and placements of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from irc.dialects.flow import FusionOp, id_of
from irc.dialects.types import (
    PlacementAttr,
)


def result_id(value: SSAValue) -> str:
    """Return by which id a value goes: ``n7``, and ``n7#1`` for the second result of n7.

    What computes several ops, a fusion or a launch, says of each result whose it is. Arguments,
    and what no op of the program has computed, have the empty text.
    """
    if not isinstance(value, OpResult):
        return ""
    op, name = value.op, id_of(value.op)
    if (names := op.attributes.get("results")) is not None:
        return cast("ArrayAttr[StringAttr]", names).data[value.index].data
    if isinstance(op, FusionOp) and len(names := name.split(",")) == len(op.results):
        return names[value.index]
    return f"{name}#{value.index}" if name and value.index else name


def rename_ids(op: Operation, change: Callable[[str], str]) -> None:
    """Give an op, and each of its results that says whose it is, other ids."""
    if "id" in op.attributes:
        op.attributes["id"] = StringAttr(change(id_of(op)))
    if (attr := op.attributes.get("results")) is not None:
        names = cast("ArrayAttr[StringAttr]", attr).data
        op.attributes["results"] = ArrayAttr([StringAttr(change(each.data)) for each in names])
    if isinstance(bucket := op.properties.get("bucket"), StringAttr):
        op.properties["bucket"] = StringAttr(change(bucket.data))


def noted_placement(value: SSAValue) -> Attribute | None:
    """Return the placement that lower-boxing noted for a result, None where it noted none."""
    if not isinstance(value, OpResult) or "sbp" not in value.op.attributes:
        return None
    return cast("ArrayAttr[Attribute]", value.op.attributes["sbp"]).data[value.index]


def noted_placements(values: Sequence[SSAValue]) -> ArrayAttr[Attribute] | None:
    """Return the placements of values as the attribute ``sbp`` has them; None unless of all."""
    noted = [placed for value in values if (placed := noted_placement(value)) is not None]
    return ArrayAttr(noted) if len(noted) == len(values) else None


def placement_attr(attribute: Attribute) -> PlacementAttr:
    """Return an attribute as a placement (another one is an internal error)."""
    assert isinstance(attribute, PlacementAttr), attribute
    return attribute
