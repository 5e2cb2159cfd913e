"""How a plan lays out parameters, buffers, states and inputs, one line for those that are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.report.evidence import Evidence
from irc.report.notation import dtensor, oneflow

NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A component of a dotted name that is a number: the index of a block."""


@dataclass(frozen=True)
class Argument:
    """One argument of the entry."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    placement: Placement | None
    bytes_per_rank: int


@dataclass(frozen=True)
class ArgumentRow:
    """Arguments that differ only in the numbers of their names.

    Attributes:
        names: ``layers.{0-5}.mlp.up.weight``.
        bytes_per_rank: of all together.
    """

    names: str
    count: int
    role: str
    shape: tuple[int, ...]
    dtype: str
    oneflow: str
    dtensor: str
    bytes_per_rank: int


def entry_arguments(evidence: Evidence) -> list[Argument]:
    """Return the arguments of the entry that are tensors, as the logical program has them."""
    buffers = [evidence.plan.buffers[i] for i in (*evidence.plan.weights, *evidence.plan.inputs)]
    held = {b.name: prod(b.shape) * ITEM_BYTES[b.dtype] for b in buffers if b.dtype in ITEM_BYTES}
    return [
        Argument(
            name,
            role,
            value.type.static_shape(),
            value.type.dtype,
            value.type.placement,
            held.get(name, 0),
        )
        for role, name, value in arguments(entry(evidence.logical))
        if isinstance(value.type, TensorType)
    ]


def argument_rows(evidence: Evidence) -> list[ArgumentRow]:
    """Return the arguments, alike ones in one row, in the order of the first of them."""
    return [argument_row(evidence.mesh, group) for group in alike(entry_arguments(evidence))]


def argument_row(mesh: Mesh, group: Sequence[Argument]) -> ArgumentRow:
    """Return the row of arguments that are alike."""
    return ArgumentRow(
        merged_names([one.name for one in group]),
        len(group),
        group[0].role,
        group[0].shape,
        group[0].dtype,
        oneflow(group[0].placement),
        dtensor(group[0].placement, mesh),
        sum(one.bytes_per_rank for one in group),
    )


def alike(ungrouped: Iterable[Argument]) -> list[list[Argument]]:
    """Return arguments, together those that differ only in the numbers of their names."""
    groups: dict[object, list[Argument]] = {}
    for one in ungrouped:
        key = (NUMBER.sub("#", one.name), one.role, one.shape, one.dtype, one.placement)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def merged_names(names: Sequence[str]) -> str:
    """Write names that differ in their numbers as one.

    >>> merged_names(["h.0.w", "h.1.w", "h.3.w"])
    'h.{0-1,3}.w'
    """
    columns = list(zip(*([int(n) for n in NUMBER.findall(name)] for name in names), strict=True))
    texts = iter(_numbers(set(column)) for column in columns)
    return NUMBER.sub(lambda _: next(texts), names[0])


def _numbers(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    one = len(runs) == 1 and runs[0][0] == runs[0][1]
    return texts[0] if one else "{" + ",".join(texts) + "}"
