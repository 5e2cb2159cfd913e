"""Derivatives of convolution and attention."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import chain
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import ContractOp, ExternOp, IotaOp, tensor
from irc.dialects.size import Size
from irc.dialects.types import Shape, TensorType
from irc.ops.derivative import Adjoint, NotDifferentiable, PhaseBuilder
from irc.ops.derivatives_extern import operand_rule
from irc.ops.derivatives_layout import padded
from irc.ops.rule import Rule
from irc.ops.rules import rule_of


def convolution(at: Adjoint, operand: int) -> SSAValue:
    """Convolve the gradient with the kernel (for x), x with the gradient (for the kernel)."""
    if operand == 2:
        dims = [dim for dim in range(tensor(at.g).ndim) if dim != 1]
        return at.b.reduce("sum", at.g, dims, keep_dims=False)
    return _of_kernel(at) if operand == 1 else _of_image(at)


def _static(shape: Shape) -> tuple[int, ...]:
    for size in shape:
        if isinstance(size, Size):
            raise NotDifferentiable(f"size '{size}' must be bound to a number first")
    return tuple(size for size in shape if isinstance(size, int))


def _padding(at: Adjoint) -> tuple[int, ...] | None:
    """The padding where it is the same on both sides, as the library wants it."""
    low, high = tuple(at.attrs["low"]), tuple(at.attrs["high"])
    return low if low == high and min(low, default=0) >= 0 else None


def _of_image(at: Adjoint) -> SSAValue:
    """The transposed convolution: x itself is not read, so nobody has to keep it."""
    attrs, padding = at.attrs, _padding(at)
    count = len(attrs["strides"])
    zero = (0,) * count
    low, high = attrs["low"], attrs["high"]
    whole = [n + a + b for n, a, b in zip(_static(at.kind(0).shape)[2:], low, high, strict=True)]
    # The last elements that no window reaches: they make the size right.
    rest = [
        (n - d * (k - 1) - 1) % s
        for n, d, k, s in zip(
            whole,
            attrs["dilations"],
            _static(at.kind(1).shape)[2:],
            attrs["strides"],
            strict=True,
        )
    ]
    sizes = [n if padding is None else n - 2 * p for n, p in zip(whole, padding or zero, strict=True)]
    call = [
        [{"operand": 0}, {"operand": 1}, None, list(attrs["strides"]), list(padding or zero),
         list(attrs["dilations"]), True, rest, attrs["groups"]], {},
    ]  # fmt: skip
    x = at.kind(0)
    found = at.b.op(
        ExternOp,
        [at.g, at.inputs[1]],
        result=TensorType.of((*x.shape[:2], *sizes), x.dtype),
        target="aten::convolution",
        arguments=json.dumps(call),
        rule=str(_without_groups(rule_of(at.op), image=True)),
    )
    if padding is None:
        crop = tuple(-n for n in (0, 0, *low)), tuple(-n for n in (0, 0, *high))
        found = padded(at.b, found, *crop)
    return found


def _of_kernel(at: Adjoint) -> SSAValue:
    attrs, padding, x = at.attrs, _padding(at), at.x
    zero = (0,) * len(attrs["strides"])
    if padding is None:
        x = padded(at.b, x, (0, 0, *attrs["low"]), (0, 0, *attrs["high"]))
    call = [
        [{"operand": 0}, {"operand": 1}, {"operand": 2}, None, list(attrs["strides"]),
         list(padding or zero), list(attrs["dilations"]), False, list(zero), attrs["groups"],
         [False, True, False]], {},
    ]  # fmt: skip
    return at.b.op(
        ExternOp,
        [at.g, x, at.inputs[1]],
        result=at.kind(1),
        target="aten::convolution_backward",
        arguments=json.dumps(call),
        rule=str(_without_groups(rule_of(at.op), image=False)),
    )


def _without_groups(rule: Rule, *, image: bool) -> Rule:
    """Return the backward rule; the number of groups is in the call, so a group is not split."""
    (y,), (x, w) = rule.results, rule.operands[:2]
    whole = set(chain(chain(*y[2:]), chain(*w[2:]), ("g",)))
    operands, made = ((y, w), x) if image else ((y, x, w), w)
    known = dict.fromkeys(n for t in (*operands, made) for dim in t for n in dim)
    kept = {name for dim in made for name in dim}
    return Rule(
        operands,
        (made,),
        reduced=tuple((n, "sum") for n in known if n not in kept and n not in whole),
        whole=tuple(n for n in known if n in whole),
        linear=((0,), (1,)),
        sizes=tuple(pair for pair in rule.sizes if pair[0] in known),
    )


@dataclass(frozen=True)
class _Attention:
    """What the gradients of q, k, v and the mask share."""

    letters: str
    shape: Shape
    chances: SSAValue
    score_gradient: SSAValue


def attention(at: Adjoint, operand: int) -> SSAValue | None:
    """Compute the softmax again from q and k, then its gradient (arXiv:2205.14135, appendix B).

    With ``P`` the softmax, ``dV = P^T dO`` and ``dS = P * (dO V^T - sum(dO * O))``. Query heads that
    share a key are a dim of their own, which the contraction for k and v adds up.
    """
    made: _Attention = at.shared("attention", lambda: _probabilities(at))
    b, scale, lead = at.b, at.attrs["scale"], made.letters
    q, k = f"{lead}rsd", f"{lead}td"
    match operand:
        case 0:
            found = b.op(
                ContractOp, [_half(at, made.score_gradient), at.inputs[1]], spec=f"{lead}rst,{k}->{q}"
            )
        case 1:
            grouped = _grouped(b, at.inputs[0], at.kind(1))
            found = b.op(
                ContractOp, [_half(at, made.score_gradient), grouped], spec=f"{lead}rst,{q}->{k}"
            )
        case 2:
            g = _grouped(b, at.g, at.kind(2))
            return b.op(
                ContractOp, [_half(at, made.chances), g], spec=f"{lead}rst,{lead}rse->{lead}te"
            )
        case _:
            mask = at.kind(3)
            whole = b.reshape(made.score_gradient, made.shape)
            return b.cast(at.reduced_to(whole, mask.shape), mask.dtype)
    scaled = b.pointwise("mul", found, b.scalar(scale, tensor(found).dtype))
    return b.reshape(scaled, at.kind(operand).shape)


def _half(at: Adjoint, value: SSAValue) -> SSAValue:
    """Products take the operands' own dtype; the softmax between them is in float32."""
    return at.b.cast(value, at.kind(0).dtype)


def _grouped(b: PhaseBuilder, value: SSAValue, keys: TensorType) -> SSAValue:
    """View [.., H, S, D] as [.., G, R, S, D], where R heads read one key."""
    shape = tensor(value).shape
    if len(shape) == 2:
        return b.reshape(value, (1, *shape))
    groups, heads = keys.shape[-3], shape[-3]
    if isinstance(groups, Size) or isinstance(heads, Size):
        raise NotDifferentiable("the numbers of heads must be bound to numbers first")
    return b.reshape(value, (*shape[:-3], groups, heads // groups, *shape[-2:]))


def _probabilities(at: Adjoint) -> _Attention:
    b, scale = at.b, at.attrs["scale"]
    q, k, v, *mask = at.inputs
    lead = "abcfhijklm"[: at.kind(1).ndim - 2]
    dtype = at.kind(0).dtype
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    grouped = _grouped(b, q, at.kind(1))
    scores = b.op(ContractOp, [grouped, k], spec=f"{lead}rsd,{lead}td->{lead}rst")
    scores = b.pointwise("mul", b.cast(scores, wide), b.scalar(scale, wide))
    split = tensor(scores).shape
    shape: Shape = (*tensor(q).shape[:-1], tensor(k).shape[-2])
    scores = _masked(b, scores, shape, mask, at.attrs["is_causal"])
    chances = _softmax(b, scores, safe=bool(mask))
    g, y = (b.cast(_grouped(b, x, at.kind(2)), wide) for x in (at.g, at.y))
    given = b.op(
        ContractOp, [_grouped(b, at.g, at.kind(2)), v], spec=f"{lead}rse,{lead}te->{lead}rst"
    )
    share = b.reduce("sum", b.pointwise("mul", g, y), (len(split) - 1,), keep_dims=True)
    off = b.pointwise("sub", b.cast(given, wide), share)
    return _Attention(lead, shape, chances, b.pointwise("mul", chances, off))


def _masked(
    b: PhaseBuilder, scores: SSAValue, shape: Shape, mask: list[SSAValue], is_causal: bool
) -> SSAValue:
    split, dtype = tensor(scores).shape, tensor(scores).dtype
    never = b.scalar(-math.inf, dtype)
    for given in mask:
        # A mask is [.., H, S, T] or broadcasts to it; scores have H in two dims.
        spread = b.reshape(b.broadcast(given, shape), split)
        if tensor(given).dtype == "i1":
            scores = b.pointwise("where", spread, scores, never)
        else:
            scores = b.pointwise("add", scores, b.cast(spread, dtype))
    if is_causal:
        rows, columns = (
            b.op(IotaOp, [], result=TensorType.of(line, "i64"), dim=dim)
            for dim, line in ((0, (split[-2], 1)), (1, (1, split[-1])))
        )
        scores = b.pointwise("where", b.pointwise("ge", rows, columns), scores, never)
    return scores


def _softmax(b: PhaseBuilder, scores: SSAValue, *, safe: bool) -> SSAValue:
    """Return the softmax of the last dim; rows that the mask empties are zeros, as in torch."""
    dtype, last = tensor(scores).dtype, tensor(scores).ndim - 1
    top = b.reduce("max", scores, (last,), keep_dims=True)
    if safe:
        empty = b.pointwise("eq", top, b.scalar(-math.inf, dtype))
        top = b.pointwise("where", empty, b.scalar(0, dtype), top)
    powers = b.pointwise("exp", b.pointwise("sub", scores, top))
    total = b.reduce("sum", powers, (last,), keep_dims=True)
    if safe:
        total = b.pointwise("where", empty, b.scalar(1, dtype), total)
    return b.pointwise("div", powers, total)


