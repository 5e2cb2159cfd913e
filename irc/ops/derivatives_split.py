"""How an ``irc::vjp`` is sharded: as the op that it differentiates.

One run gives the gradients of several operands, and a split factor may be a dim of one and be added
up in another, which a rule cannot say; as strategies the placements of each result are its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.custom import declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, TensorTerm, parse_rule
from irc.ops.strategies import AS_IT_IS, Strategy


def vjp_strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the factors of the differentiated op's rule; sums pass from gradients to gradients."""
    call: tuple[str, Attrs, int, list[int], list[int]] = json.loads(attrs["arguments"])
    name, inner, count, reached, wanted = call
    text = _rule_text(name, inner)
    if "rule" in attrs or not text:
        return []
    rule = parse_rule(text)
    terms = (*rule.operands, *(rule.results[i] for i in reached))
    gradients = [rule.operands[i] for i in wanted]
    sizes = _sizes((*terms, *gradients), [shape for shape, _ in (*operands, *results)])
    splits = [
        _split(terms, gradients, factor, sizes[factor])
        for factor in rule.splittable()
        if _is_linear(rule, factor) and sizes.get(factor, 1) != 1
    ]
    partial = Partial("sum")
    passed: tuple[AxisPlacement, ...] = (*(B,) * count, *(partial,) * len(reached))
    sums = Strategy(AS_IT_IS, passed, (partial,) * len(wanted), 0, split="gradients")
    return [*splits, sums]


def _rule_text(name: str, inner: Attrs) -> str:
    if name != "flow.extern":
        return ""
    known = declaration(inner["target"])
    stated: str = inner.get("rule", "")
    return stated or (known.rule if known and isinstance(known.rule, str) else "")


def _is_linear(rule: Rule, factor: str) -> bool:
    """True where ranks that split a factor hold parts of one sum, in whole shards of any size."""
    return rule.reduction(factor) in (None, "sum") and not rule.compound(factor)


def _sizes(terms: Sequence[TensorTerm], shapes: Sequence[Sequence[Dim]]) -> dict[str, Dim]:
    return {
        dim[0]: size
        for term, shape in zip(terms, shapes, strict=True)
        for dim, size in zip(term, shape, strict=True)
        if len(dim) == 1
    }


def _split(
    operands: Sequence[TensorTerm], results: Sequence[TensorTerm], factor: str, size: Dim
) -> Strategy:
    def on(term: TensorTerm, otherwise: AxisPlacement) -> AxisPlacement:
        return Split(term.index((factor,))) if (factor,) in term else otherwise

    return Strategy(
        AS_IT_IS,
        tuple(on(term, B) for term in operands),
        tuple(on(term, Partial("sum")) for term in results),
        size,
        split=factor,
    )
