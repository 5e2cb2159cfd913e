"""Rules of the ops that stay whole for a library: convolution, pooling and attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from irc.dialects.size import Dim, divide
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import DimTerm, Rule, TensorTerm
from irc.ops.rules_naming import letters


def _spatial(prefix: str, count: int) -> TensorTerm:
    return tuple((f"{prefix}{i}",) for i in range(count))


def convolution_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    """Rule of a convolution over groups g, o output and c input channels each, window k, places y.

    The input channels add up, so their split gives partial sums, unless there is a bias: each rank
    would add it. A bias and its input are partial together, or neither.
    """
    groups, (weight, _), spatial = attrs["groups"], operands[1], len(attrs["strides"])
    out = divide(weight[0], groups)
    channels: DimTerm = tuple(n for n, s in (("g", groups), ("c", weight[1])) if s != 1)
    out_channels: DimTerm = tuple(n for n, s in (("g", groups), ("o", out)) if s != 1)
    places, window = _spatial("y", spatial), _spatial("k", spatial)
    inner = [name for name in channels if name == "c"]
    has_bias = len(operands) == 3
    x: TensorTerm = (("n",), channels, *(() for _ in places))
    w: TensorTerm = (out_channels, ("c",) if inner else (), *window)
    gone = tuple(chain(inner, *window))
    return Rule(
        (x, w, (out_channels,))[: len(operands)],
        ((("n",), out_channels, *places),),
        reduced=tuple((name, "sum") for name in gone),
        whole=(*chain(*window), *chain(*places), *(inner if has_bias else ())),
        linear=((0, 2), (1, 2)) if has_bias else ((0,), (1,)),
        sizes=(("g", groups),) if groups != 1 else (),
    )


def pool_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of a pooling: all dims before the windows; an average is linear."""
    lead = len(operands[0][0]) - len(attrs["window"])
    free = letters(operands[0][0][:lead])
    places = _spatial("y", len(attrs["window"]))
    return Rule(
        ((*free, *(() for _ in places)),),
        ((*free, *places),),
        whole=tuple(chain(*places)),
        linear=((0,),) if attrs["fn"] == "avg" else (),
    )


def attention_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    """Rule of attention: batch, heads, and rows of q unless a causal mask ties them to columns.

    Query heads are g groups of r; keys and values have one head a group, so a split of g splits
    all three alike. With one group (multi-query attention) r is split and keys stay whole.
    """
    q, k = operands[0][0], operands[1][0]
    batch = tuple(() if size == 1 else (f"b{i}",) for i, size in enumerate(q[:-3]))
    heads: Dim = q[-3] if len(q) > 2 else 1
    groups: Dim = k[-3] if len(k) > 2 else 1
    each = divide(heads, groups)
    query_heads: DimTerm = tuple(n for n, s in (("g", groups), ("r", each)) if s != 1)
    shared: DimTerm = ("g",) if groups != 1 else ()
    q_lead, k_lead = ((), ()) if len(q) == 2 else ((*batch, query_heads), (*batch, shared))
    terms: list[TensorTerm] = [
        (*q_lead, ("s",), ("d",)),
        (*k_lead, ("t",), ("d",)),
        (*k_lead, ("t",), ("e",)),
    ]
    full = (*q_lead, ("s",), ("t",))
    if len(operands) == 4:
        shape = operands[3][0]
        sizes = (*q[:-1], *k[-2:-1])
        skipped = len(sizes) - len(shape)
        terms.append(
            tuple(
                full[skipped + i] if size == sizes[skipped + i] else ()
                for i, size in enumerate(shape)
            )
        )
    size = (("g", groups),) if isinstance(groups, int) and len(query_heads) == 2 else ()
    return Rule(
        tuple(terms),
        ((*q_lead, ("s",), ("e",)),),
        reduced=(("t", "sum"), ("d", "sum")),
        whole=("t", "d", "e", *(("s",) if attrs["is_causal"] else ())),
        linear=((2,),),
        sizes=size,
    )
