"""Derivatives of convolution: of the image a transposed one, of the kernel a sum of shifts.

    dx[n, c, s y + d k - low] = sum over o, k of  g[n, o, y] w[o, c, k]
    dw[o, c, k] = sum over n, y of  g[n, o, y] x[n, c, s y + d k - low]

Both are library calls with a rule, which a mesh splits; where they run on a CPU they become
convolutions (:mod:`irc.kernels.transposed`, :mod:`irc.kernels.weight_gradient`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, signature, tensor
from irc.dialects.types import TensorType
from irc.ops.derivative import Adjoint, NotDifferentiable, known
from irc.ops.derivatives_layout import padded
from irc.ops.rule import Rule
from irc.ops.rules_window import convolution_rule


@dataclass(frozen=True)
class Geometry:
    """How the windows of a convolution lie: per spatial dim, and the groups of channels."""

    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def padding(self) -> tuple[int, ...] | None:
        """The padding where it is the same on both sides, as the library wants it."""
        return self.low if self.low == self.high and min(self.low, default=0) >= 0 else None

    def rule(self, g: SSAValue, x: SSAValue | TensorType, w: SSAValue, *, image: bool) -> str:
        """The rule of one of the gradients."""
        kind = x if isinstance(x, TensorType) else tensor(x)
        attrs = {"groups": self.groups, "strides": self.strides}
        forward = convolution_rule(attrs, [(kind.shape, kind.dtype), signature(w)], [signature(g)])
        return str(_without_groups(forward, image=image))


def convolution(at: Adjoint, operand: int) -> SSAValue:
    """Convolve the gradient with the kernel (for x), x with the gradient (for the kernel)."""
    if operand == 2:
        return bias_gradient(at.b, at.g)
    attrs = at.attrs
    if attrs.get("flipped"):
        raise NotDifferentiable("a convolution whose taps are flipped is made after derivatives")
    strides, low, high, dilations = (
        tuple(attrs[n]) for n in ("strides", "low", "high", "dilations")
    )
    own = Geometry(strides, low, high, dilations, attrs["groups"])
    if operand == 1:
        return kernel_gradient(at.b, own, at.g, at.x, at.inputs[1])
    return image_gradient(at.b, own, at.g, at.inputs[1], at.kind(0))


def bias_gradient(b: FlowBuilder, g: SSAValue) -> SSAValue:
    """Sum the gradient [N, O, spatial..] over all but its channels."""
    return b.reduce("sum", g, [d for d in range(tensor(g).ndim) if d != 1], keep_dims=False)


def image_gradient(
    b: FlowBuilder, at: Geometry, g: SSAValue, w: SSAValue, x: TensorType
) -> SSAValue:
    """The transposed convolution: x itself is not read, so nobody has to keep it."""
    padding, zero = at.padding, (0,) * len(at.strides)
    shape = [*map(known, x.shape[2:])]
    whole = [n + lo + hi for n, lo, hi in zip(shape, at.low, at.high, strict=True)]
    # The last elements that no window reaches: they make the size right.
    taps = [*map(known, tensor(w).shape[2:])]
    rest = [
        (n - d * (k - 1) - 1) % s
        for n, d, k, s in zip(whole, at.dilations, taps, at.strides, strict=True)
    ]
    sizes = [
        n if padding is None else n - 2 * p for n, p in zip(whole, padding or zero, strict=True)
    ]
    call: list[Any] = [
        [{"operand": 0}, {"operand": 1}, None, list(at.strides), list(padding or zero),
         list(at.dilations), True, rest, at.groups], {},
    ]  # fmt: skip
    gradient = b.op(
        ExternOp,
        [g, w],
        result=TensorType.of((*x.shape[:2], *sizes), x.dtype),
        target="aten::convolution",
        arguments=json.dumps(call),
        rule=at.rule(g, x, w, image=True),
    )
    if padding is None:
        crop = tuple(-n for n in (0, 0, *at.low)), tuple(-n for n in (0, 0, *at.high))
        gradient = padded(b, gradient, *crop)
    return gradient


def kernel_gradient(
    b: FlowBuilder, at: Geometry, g: SSAValue, x: SSAValue, w: SSAValue
) -> SSAValue:
    """The sum over the batch and over places; of the kernel only its type is read."""
    padding, zero = at.padding, (0,) * len(at.strides)
    if padding is None:
        x = padded(b, x, (0, 0, *at.low), (0, 0, *at.high))
    call: list[Any] = [
        [{"operand": 0}, {"operand": 1}, {"operand": 2}, None, list(at.strides),
         list(padding or zero), list(at.dilations), False, list(zero), at.groups,
         [False, True, False]], {},
    ]  # fmt: skip
    return b.op(
        ExternOp,
        [g, x, w],
        result=tensor(w),
        target="aten::convolution_backward",
        arguments=json.dumps(call),
        rule=at.rule(g, x, w, image=False),
    )


def _without_groups(rule: Rule, *, image: bool) -> Rule:
    """Return the backward rule; the number of groups is in the call, so a group is not split."""
    (y,), (x, w) = rule.results, rule.operands[:2]
    whole = set(chain(chain(*y[2:]), chain(*w[2:]), ("g",)))
    operands, result = ((y, w), x) if image else ((y, x, w), w)
    known = dict.fromkeys(n for t in (*operands, result) for dim in t for n in dim)
    kept = {name for dim in result for name in dim}
    return Rule(
        operands,
        (result,),
        reduced=tuple((n, "sum") for n in known if n not in kept and n not in whole),
        whole=tuple(n for n in known if n in whole),
        linear=((0,), (1,)),
        sizes=tuple(pair for pair in rule.sizes if pair[0] in known),
    )
