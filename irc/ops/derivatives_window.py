"""Derivatives of convolution."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp, tensor
from irc.dialects.types import TensorType
from irc.ops.derivative import Adjoint, known
from irc.ops.derivatives_layout import padded
from irc.ops.rule import Rule
from irc.ops.rules import rule_of


def convolution(at: Adjoint, operand: int) -> SSAValue:
    """Convolve the gradient with the kernel (for x), x with the gradient (for the kernel)."""
    if operand == 2:
        dims = [dim for dim in range(tensor(at.g).ndim) if dim != 1]
        return at.b.reduce("sum", at.g, dims, keep_dims=False)
    return _of_kernel(at) if operand == 1 else _of_image(at)


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
    whole = [
        n + a + b for n, a, b in zip([*map(known, at.kind(0).shape[2:])], low, high, strict=True)
    ]
    # The last elements that no window reaches: they make the size right.
    rest = [
        (n - d * (k - 1) - 1) % s
        for n, d, k, s in zip(
            whole,
            attrs["dilations"],
            [*map(known, at.kind(1).shape[2:])],
            attrs["strides"],
            strict=True,
        )
    ]
    sizes = [
        n if padding is None else n - 2 * p for n, p in zip(whole, padding or zero, strict=True)
    ]
    call: list[Any] = [
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
    call: list[Any] = [
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
