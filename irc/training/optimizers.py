"""Optimiser steps as formulas: from a parameter, its gradient and its state to their new values.

Numbers that parameters share (a learning rate with its bias corrections) are computed once, in
float64 scalars, as torch computes them in Python. Half types are updated in float32 and rounded
once; their moments are float32. Where they have masters, what a parameter lacks of its float32
value is kept as a state: the sum of both is that value exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.ops.derivatives_pointwise import Term


@dataclass(frozen=True)
class Settings:
    """What an optimiser is told, under torch's names.

    Attributes:
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: how fast parameters decay.
        momentum: of sgd.
        rate: the number of its learning rate.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    rate: int = 0


@dataclass(frozen=True)
class Shared:
    """Scalars of one step.

    Attributes:
        lr: the learning rate.
        scale: of the first moment: the learning rate over its bias correction.
        root: the square root of the second moment's bias correction.
    """

    lr: SSAValue
    scale: SSAValue | None = None
    root: SSAValue | None = None


Step: TypeAlias = Callable[
    [FlowBuilder, Settings, Shared, SSAValue, SSAValue, list[SSAValue]], list[SSAValue]
]
"""Takes a parameter, its gradient and its moments; returns the parameter and moments anew."""


@dataclass(frozen=True)
class Optimizer:
    """One kind of optimiser.

    Attributes:
        moments: names of the tensors that it keeps for each parameter.
        counts: true where it needs the number of the step.
        step: its formula.
        weight_decay: torch's default.
    """

    moments: tuple[str, ...]
    counts: bool
    step: Step
    weight_decay: float = 0.0


def shared(b: FlowBuilder, settings: Settings, lr: SSAValue, count: SSAValue | None) -> Shared:
    """Compute a step's scalars; ``count`` is the number of this step, from 1."""
    if count is None:
        return Shared(lr)
    steps = Term(b, b.cast(count, "f64"))
    corrections = [1 - steps.number(beta).of("pow", steps) for beta in settings.betas]
    scale = Term(b, b.cast(lr, "f64")) / corrections[0]
    return Shared(lr, scale.value, corrections[1].of("sqrt").value)


def _adam(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Kingma and Ba 2015; weight decay is part of the gradient."""
    if settings.weight_decay:
        gradient = (Term(b, gradient) + Term(b, parameter) * settings.weight_decay).value
    return _moved(b, settings, by, Term(b, parameter), Term(b, gradient), moments)


def _adamw(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Loshchilov and Hutter 2019: weight decay apart from the moments."""
    p = Term(b, parameter)
    if settings.weight_decay:
        lr = Term(b, b.cast(by.lr, tensor(parameter).dtype))
        p = p * (1 - lr * settings.weight_decay)
    return _moved(b, settings, by, p, Term(b, gradient), moments)


def _moved(
    b: FlowBuilder, settings: Settings, by: Shared, p: Term, g: Term, moments: list[SSAValue]
) -> list[SSAValue]:
    first, second = settings.betas
    m = Term(b, moments[0]) * first + g * (1 - first)
    v = Term(b, moments[1]) * second + g * g * (1 - second)
    assert by.scale is not None
    assert by.root is not None
    dtype = tensor(p.value).dtype
    scale, root = (Term(b, b.cast(value, dtype)) for value in (by.scale, by.root))
    p = p - m * scale / (v.of("sqrt") / root + settings.eps)
    return [p.value, m.value, v.value]


def _sgd(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Stochastic gradient descent, with momentum where it is not 0."""
    p, g = Term(b, parameter), Term(b, gradient)
    if settings.weight_decay:
        g = g + p * settings.weight_decay
    if moments:
        g = Term(b, moments[0]) * settings.momentum + g
    new = p - g * Term(b, b.cast(by.lr, tensor(parameter).dtype))
    return [new.value, *([g.value] if moments else [])]


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adamw": Optimizer(("exp_avg", "exp_avg_sq"), counts=True, step=_adamw, weight_decay=0.01),
    "adam": Optimizer(("exp_avg", "exp_avg_sq"), counts=True, step=_adam),
    "sgd": Optimizer((), counts=False, step=_sgd),
    "momentum": Optimizer(("momentum_buffer",), counts=False, step=_sgd),
}
"""By name; ``momentum`` is torch's SGD with a momentum."""

REMAINDER = "remainder"
"""What a master has more than its parameter, float32: a state beside the moments, zero at first."""

SQUARES = frozenset({"exp_avg_sq"})
"""Moments that are means of squares: no element is negative."""
