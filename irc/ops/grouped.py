"""Grouped matmuls: rows, sorted by group, times a matrix for each group.

A rule splits the columns and the summed dim. Rows and groups are split by a strategy, over one axis
or over several: each rank multiplies the rows that it holds of the groups that it holds. Ranks that
split the rows count offsets from their first; ranks that split the groups give zeros for the rows
of other groups, so their results add up (`irc.sharding.local_grouped`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.custom import Call, Declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, parse_rule
from irc.ops.strategies import Strategy

GROUPED_MM = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
GROUPED_ROWS = "irc::grouped_rows"
"""What a rank runs: operands rows, matrices, first row of each group, row after its last."""

GROUPS = "groups-of-rows"
"""Name of the strategy of the matmul; its derivative's ends in ``-back``."""

ROWS = "(s k, e k n, e) -> (s n) sum(k) whole(s e) linear(0) linear(1)"
RULES: Mapping[tuple[int, ...], str] = {
    (2, 3, 1): ROWS,
    (2, 2, 1): "(m k, k n, e) -> (e m n) whole(k e) linear(0) linear(1)",
    (3, 3): "(e s k, e k n) -> (e s n) sum(k) linear(0) linear(1)",
    (2, 3, 1, 1): "(s k, e k n, e, e) -> (s n) sum(k) whole(s e) linear(0) linear(1)",
}
"""By the number of dims of each operand; other forms (a bias) are replicated."""


def _rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    ranks = tuple(len(shape) for shape, _ in operands)
    if ranks in RULES:
        return parse_rule(RULES[ranks])
    from irc.ops.rules import RULES as KNOWN

    return KNOWN["flow.extern"](attrs, operands, results)


def _flops(call: Call) -> int:
    """Each row meets one matrix; where the summed dim is grouped, each of it meets one row."""
    sizes = call.sizes
    if not {"k", "n"} <= set(sizes):
        return 0
    rows = sizes.get("s", 1) * (sizes["e"] if "m" not in sizes and _is_batched(call) else 1)
    return 2 * rows * sizes.get("m", 1) * sizes["k"] * sizes["n"]


def _is_batched(call: Call) -> bool:
    positional, keywords = call.arguments
    return len(positional) < 3 and keywords.get("offs") is None


def strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the rows, or the groups, of rows by matrices."""
    if [len(shape) for shape, _ in operands] != [2, 3, 1]:
        return []
    return _splits(GROUPS, operands, (Split(0),), (Partial("sum"),))


def vjp_strategies(
    wanted: Sequence[int], operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """The same for the gradients: matrices' parts of the rows add up, rows' of the groups."""
    if [len(shape) for shape, _ in operands] != [2, 3, 1, 2]:
        return []
    part = Partial("sum")
    by_rows = tuple(Split(0) if operand == 0 else part for operand in wanted)
    by_groups = tuple(part if operand == 0 else Split(0) for operand in wanted)
    return _splits(f"{GROUPS}-back", operands, by_rows, by_groups)


def _splits(
    name: str,
    operands: Sequence[Signature],
    by_rows: tuple[AxisPlacement, ...],
    by_groups: tuple[AxisPlacement, ...],
) -> list[Strategy]:
    rows: Dim = operands[0][0][0]
    groups: Dim = operands[1][0][0]
    gradients = len(operands) - 3
    splits: list[Strategy] = []
    if rows != 1:
        placed = (Split(0), B, B, *(Split(0),) * gradients)
        splits.append(Strategy(name, placed, by_rows, rows, split="rows"))
    if groups != 1:
        placed = (B, Split(0), B, *(B,) * gradients)
        splits.append(Strategy(name, placed, by_groups, groups, split="groups", even=True))
    return splits


def with_rule(attrs: Attrs, operands: Sequence[Signature]) -> Attrs:
    """Return the attributes of an ``irc::vjp`` whose inner op says its rule as text."""
    name, call, count, *rest = json.loads(attrs["arguments"])
    text = RULES.get(tuple(len(shape) for shape, _ in operands[:count]))
    if text is None:
        return attrs
    return {**attrs, "arguments": json.dumps([name, {**call, "rule": text}, count, *rest])}


DECLARATIONS: tuple[Declaration, ...] = (
    *(
        Declaration(
            target,
            _rule,
            _flops,
            lambda call: 0,
            reference="irc.runtime.grouped:grouped_mm",
            strategies=strategies,
        )
        for target in GROUPED_MM
    ),
    Declaration(
        GROUPED_ROWS,
        _rule,
        _flops,
        lambda call: 0,
        reference="irc.runtime.grouped:grouped_rows",
    ),
)
