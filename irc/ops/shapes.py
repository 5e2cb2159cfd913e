"""The shapes that the time of a kernel depends on: of a product, and of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from xdsl.ir import SSAValue

from irc.dialects.flow import ConstantOp, FlowOp
from irc.ops.attention_ops import ATTENTION, BACKWARD, form_of
from irc.ops.rule import Rule


@dataclass(frozen=True)
class Product:
    """``batch`` products of [m, k] with [k, n]."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Attention:
    """Attention, or its gradients.

    Attributes:
        heads: of all sequences; each has ``rows`` rows of q, and ``keys`` keys.
        rows, keys: of one head.
        products: operations of the products of one score.
        causal: later keys of a row are masked.
        shifted: the first row stands elsewhere than at the first key.
        backward: the three gradients, the scores computed again.
    """

    heads: int
    rows: int
    keys: int
    products: int
    causal: bool = False
    shifted: bool = False
    backward: bool = False


SHAPED = frozenset({"flow.contract", "flow.attention", "flow.extern"})
"""The ops that may have a shape."""


def shape_of(op: FlowOp, rule: Rule, sizes: Mapping[str, int]) -> Product | Attention | None:
    """Return the shape of an op; None for one that is neither a product of two nor attention.

    Args:
        op: of level flow or spmd.
        rule: its rule.
        sizes: of the rule's factors, of the whole op or of one rank.
    """
    if op.name == "flow.contract":
        return _product(rule, sizes)
    if op.name not in SHAPED:
        return None
    attrs = op.plain
    target = attrs.get("target", ATTENTION)
    if target not in (ATTENTION, BACKWARD):
        return None
    form = form_of(attrs, len(op.inputs))
    heads = prod(size for name, size in sizes.items() if name not in ("s", "t", "d", "e"))
    rows, keys, depth, width = (sizes.get(name, 1) for name in ("s", "t", "d", "e"))
    # A ring's own columns are masked from a start that is the number 0.
    shifted = form.start is not None and not _is_zero(op.inputs[form.start])
    backward = target == BACKWARD
    products = 6 * depth + 4 * width if backward else 2 * depth + 2 * width
    return Attention(heads, rows, keys, products, form.is_causal, shifted, backward)


def _is_zero(value: SSAValue) -> bool:
    return isinstance(value.owner, ConstantOp) and not any(value.owner.plain["value"])


def _product(rule: Rule, sizes: Mapping[str, int]) -> Product | None:
    if (groups := _groups(rule)) is None:
        return None
    return Product(*(prod(sizes[name] for name in group) for group in groups))


@cache
def _groups(rule: Rule) -> tuple[tuple[str, ...], ...] | None:
    """Return the factors of batch, m, n and k; None where there are not two operands."""
    if len(rule.operands) != 2:
        return None
    left, right = ({name for dim in term for name in dim} for term in rule.operands)
    groups: dict[tuple[bool, bool], list[str]] = {}
    kept = {name for dim in rule.results[0] for name in dim}
    for name in rule.factors:
        if name in kept:
            groups.setdefault((name in left, name in right), []).append(name)
    order = ((True, True), (True, False), (False, True))
    summed = tuple(name for name in rule.factors if name not in kept)
    return (*(tuple(groups.get(key, ())) for key in order), summed)
