"""The shapes that the time of a kernel depends on: of a product, and of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.literals import ConstantOp
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
        apart: of an op that is several kernels on GPUs, the products of each, which all compute
            the scores: gradients of keys and values, and of queries.
    """

    heads: int
    rows: int
    keys: int
    products: int
    causal: bool = False
    shifted: bool = False
    backward: bool = False
    apart: tuple[int, ...] = ()


SHAPED = frozenset({"flow.contract", "flow.convolution", "flow.attention", "flow.extern"})
"""The ops that may have a shape."""


def shape_of(op: FlowOp, rule: Rule, sizes: Mapping[str, int]) -> Product | Attention | None:
    """Return the shape of an op; None for one that is neither a product of two nor attention.

    Args:
        op: of level flow or spmd.
        rule: its rule.
        sizes: of the rule's factors, of the whole op or of one rank.
    """
    if op.name in ("flow.contract", "flow.convolution"):
        return _product(rule, sizes, 2 + (op.name == "flow.convolution" and len(op.inputs) == 3))
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
    scores, gradient = 2 * depth + 2 * width, 2 * depth
    if not backward:
        return Attention(heads, rows, keys, scores, form.is_causal, shifted)
    products, apart = 2 * scores + gradient, (2 * scores, scores + gradient)
    return Attention(heads, rows, keys, products, form.is_causal, shifted, True, apart)


def _is_zero(value: SSAValue) -> bool:
    return isinstance(value.owner, ConstantOp) and not any(value.owner.plain["value"])


def product(batch: int, m: int, n: int, k: int) -> Product | None:
    """Return a product; None for several whose parts are narrow, which no tiles compute.

    Convolutions of groups of channels are such, and sums of a few products for each element.
    """
    narrow = batch > 1 and (k < LEAST or min(m, n) < LEAST)
    return None if narrow else Product(batch, m, n, k)


LEAST = 16
"""Rows, columns and steps of k of the instructions of tensor cores."""


def _product(rule: Rule, sizes: Mapping[str, int], operands: int) -> Product | None:
    if len(rule.operands) != operands:
        return None
    return product(*(prod(sizes[name] for name in group) for group in _groups(rule)))


@cache
def _groups(rule: Rule) -> tuple[tuple[str, ...], ...]:
    """Return the factors of batch, m, n and k of the first two operands.

    The places of a convolution's windows are in neither, and count as rows.
    """
    left, right = ({name for dim in term for name in dim} for term in rule.operands[:2])
    kept = {name for dim in rule.results[0] for name in dim}
    groups: tuple[list[str], ...] = ([], [], [], [])
    for name in rule.factors:
        if name not in kept:
            groups[3].append(name)
        elif name in right:
            groups[0 if name in left else 2].append(name)
        else:
            groups[1].append(name)
    return tuple(map(tuple, groups))
